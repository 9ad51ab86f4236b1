package datapath

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

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
	reason := ""
	routes := func(status string, words ...string) {
		t.Helper()
		w.Eventually("the check of the routes to be "+status, func(context.Context) error {
			_, all := w.Health(a)
			checks := all.Networks[0].Checks
			i := slices.IndexFunc(checks, func(c api.Check) bool { return c.Name == health.Routes })
			if i < 0 || checks[i].Status != status || slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(checks[i].Reason, word) }) {
				return fmt.Errorf("%+v", checks)
			}
			reason = checks[i].Reason
			return nil
		})
	}
	routes(api.Passing)

	run("ip link add ts0 type veth peer name ts1; ip link set ts0 up; ip link set ts1 up; ip addr add 100.100.1.1/32 dev ts0;" +
		"ip rule add pref 5270 lookup 52; ip route add 10.5.0.0/16 dev ts0 table 52")
	routes(api.Critical, "of "+b.Name+" leave by ts0", "5270: from all lookup 52", "lookup main priority 5269")
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
