package datapath

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// awaitsCheck blocks until a check of the first network on a host has a status and its reason contains the words. It
// returns the reason.
func (w *testWorld) awaitsCheck(h *lab.Host, name, status string, words ...string) (reason string) {
	w.T.Helper()
	w.Eventually("the check "+name+" to be "+status, func(context.Context) error {
		_, all := w.Health(h)
		checks := all.Networks[0].Checks
		i := slices.IndexFunc(checks, func(c api.Check) bool { return c.Name == name })
		if i < 0 || checks[i].Status != status || slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(checks[i].Reason, word) }) {
			return fmt.Errorf("%+v", checks)
		}
		reason = checks[i].Reason
		return nil
	})
	return reason
}

// TestRoutingRule checks that a host on which a rule like Tailscale's takes the packets to other hosts says so in its
// health and in `leno doctor`, and that packets arrive after the command that the check names.
func TestRoutingRule(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	a, b := w.Hosts[0], w.Hosts[1]
	w.Start(func(h *lab.Host) []string {
		return []string{world.ShortLease, h.Network("default", world.Plan("vxlan"))}
	})
	for _, h := range w.Hosts {
		w.Container(h, "default")
	}
	w.Settle("default")
	run := func(command string) {
		t.Helper()
		_, err := a.Exec(w.Ctx, "sh", "-ec", command)
		w.Must(err)
	}
	routes := func(status string, words ...string) string {
		t.Helper()
		return w.awaitsCheck(a, health.Routes, status, words...)
	}
	routes(api.Passing)

	run("ip link add ts0 type veth peer name ts1; ip link set ts0 up; ip link set ts1 up; ip addr add 100.100.1.1/32 dev ts0;" +
		"ip rule add pref 5270 lookup 52; ip route add 10.5.0.0/16 dev ts0 table 52")
	reason := routes(api.Critical, "of "+b.Name+" leave by ts0", "5270: from all lookup 52", "lookup main priority 5269")
	out, err := a.Leno(w.Ctx, "doctor", "-passive", "-format=json")
	var d api.Diagnosis
	w.Must(json.Unmarshal([]byte(out), &d))
	if !slices.ContainsFunc(d.Findings, func(f api.Finding) bool {
		return f.Check == health.Routes && strings.Contains(f.Saw, "lookup main priority 5269") && strings.Contains(f.Do, "make it permanent")
	}) {
		t.Errorf("%v: %+v", err, d.Findings)
	}

	_, rest, _ := strings.Cut(reason, "`")
	command, _, ok := strings.Cut(rest, "`")
	if !ok {
		w.Must(errors.New("no command in " + reason))
	}
	run(command)
	routes(api.Passing)
	w.Matrix()
}

// TestInputRule: health and `leno doctor` name a rule that drops what containers of other hosts send to this host itself,
// and packets arrive after what they advise: Tailscale's rule for 100.64.0.0/10, and one of the operator.
func TestInputRule(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	a, b := w.Hosts[0], w.Hosts[1]
	w.Start(func(h *lab.Host) []string {
		return []string{world.ShortLease, h.Network("default", "\n  ipv4 { prefix = \"100.72.0.0/16\" }\n  backend \"vxlan\" {}")}
	})
	w.Container(a, "default") // its bridge has the address to which the other one sends
	from, to := w.Container(b, "default"), w.Subnet(a, "default").Addr().Next()
	w.Settle("default")
	w.Must(from.Reach(w.Ctx, to))
	for _, tt := range []struct{ rule, where, advice, cure string }{
		{"iptables -N ts-input; iptables -A ts-input -s 100.64.0.0/10 ! -i tailscale0 -j DROP; iptables -I INPUT -j ts-input",
			"chain ts-input", "run `tailscale set --netfilter-mode=nodivert`", "iptables -D INPUT -j ts-input"},
		{"iptables -I INPUT -s 100.64.0.0/10 -j DROP",
			"chain INPUT", "accept packets from 100.72.0.0/16 there, before that rule", "iptables -I INPUT -s 100.72.0.0/16 -j ACCEPT"},
	} {
		_, err := a.Exec(w.Ctx, "sh", "-euc", tt.rule)
		w.Must(err)
		result, err := from.Ping(w.Ctx, to, lab.PingOptions{})
		w.Must(err)
		if result.Lost() == 0 {
			t.Errorf("packets pass in spite of %s", tt.rule)
		}
		reason := w.awaitsCheck(a, health.ForeignRules, api.Warning, tt.where, "drops packets from 100.72.0.0/16 for this host itself", tt.advice)
		out, err := a.Leno(w.Ctx, "doctor", "-passive", "-format=json")
		var d api.Diagnosis
		w.Must(json.Unmarshal([]byte(out), &d))
		if !slices.ContainsFunc(d.Findings, func(f api.Finding) bool {
			return f.Check == doctor.CheckRules && strings.Contains(f.Saw, tt.where) && strings.Contains(f.Do, tt.advice)
		}) {
			t.Errorf("health says %q, the doctor %v: %+v", reason, err, d.Findings)
		}
		_, err = a.Exec(w.Ctx, "sh", "-euc", tt.cure)
		w.Must(err)
		w.Must(from.Reach(w.Ctx, to))
		w.awaitsCheck(a, health.ForeignRules, api.Passing)
	}
	w.Matrix()
}
