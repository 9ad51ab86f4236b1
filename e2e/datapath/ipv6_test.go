package datapath

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// TestIPv6Disabled checks a host without IPv6 in a network that has it: its containers get IPv4 and reach the others, it
// is ready, and its health names the switch. Once IPv6 is on, it has it.
func TestIPv6Disabled(t *testing.T) {
	t.Parallel()
	for _, backend := range world.Carrying {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2})
			off, other := w.Hosts[0], w.Hosts[1]
			w.setIPv6(off, "1")
			w.Start(func(h *lab.Host) []string {
				return []string{world.ShortLease, h.Network("default", world.Plan(backend))}
			})
			from, to := w.Container(off, "default"), w.Container(other, "default")
			if len(from.Addrs) != 1 || !from.Addrs[0].Is4() || len(to.Addrs) != 2 {
				t.Fatalf("the containers have %v and %v", from.Addrs, to.Addrs)
			}
			w.Eventually("an answer over IPv4", func(ctx context.Context) error {
				r, err := from.Ping(ctx, to.Addrs[0], lab.PingOptions{Count: 2})
				if err == nil && r.Received == 0 {
					err = fmt.Errorf("none\n%s", r.Output)
				}
				return err
			})
			link := map[bool]string{true: "eth0", false: "leno-default"}[backend == "host-gw"]
			w.WaitHealth(off, http.StatusTooManyRequests, "sysctl net.ipv6.conf."+link+".disable_ipv6 is 1")
			w.setIPv6(off, "0")
			w.Eventually("a subnet file with IPv6", func(context.Context) error {
				file, err := lab.ReadSubnetFile(off.SubnetFile("default"))
				if err == nil && len(file.Subnets()) != 2 {
					err = fmt.Errorf("%v", file.Subnets())
				}
				return err
			})
		})
	}
}

// TestIPv6Added: the plan that adds IPv6 names the host on which it is off, whose containers keep IPv4 and can be started
// afterwards.
func TestIPv6Added(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	off, other := w.Hosts[0], w.Hosts[1]
	w.setIPv6(off, "1")
	both := world.Plan("vxlan")
	v4 := strings.Replace(both, "  ipv6 { prefix = \"fd00:5::/48\" }\n", "", 1)
	w.Start(func(h *lab.Host) []string { return []string{world.ShortLease, h.Network("default", v4)} })
	before := w.Container(off, "default")
	out, err := other.Leno(w.Ctx, "network", "plan", "-format=json", w.Definition("default", both))
	w.Must(err)
	var plans struct{ Networks []api.NetworkPlan }
	w.Must(json.Unmarshal([]byte(out), &plans))
	if len(plans.Networks) != 1 || len(plans.Networks[0].Hosts) != 2 {
		t.Fatal(out)
	}
	for _, h := range plans.Networks[0].Hosts {
		if said := strings.Contains(strings.Join(h.What, "; "), "if IPv6 is switched off on it"); said != (h.Node == off.Name) {
			t.Errorf("%s: %q", h.Node, h.What)
		}
	}
	w.Apply("default", both)
	w.WaitHealth(off, http.StatusTooManyRequests, "sysctl net.ipv6.conf.leno-default.disable_ipv6 is 1")
	w.Eventually("IPv6 on the other host", func(context.Context) error {
		file, err := lab.ReadSubnetFile(other.SubnetFile("default"))
		if err == nil && len(file.Subnets()) != 2 {
			err = fmt.Errorf("%v", file.Subnets())
		}
		return err
	})
	after, to := w.Container(off, "default"), w.Container(other, "default")
	for _, c := range []*lab.Container{before, after} {
		w.Must(c.Reach(w.Ctx, to.Addrs[0]))
	}
}

// setIPv6 switches IPv6 off or on for the devices of a host that are not a network's, and for those made afterwards.
func (w *testWorld) setIPv6(h *lab.Host, disabled string) {
	w.T.Helper()
	script := "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo " + disabled + " >$f; done"
	if disabled == "0" {
		script += "; ip addr add $1/64 dev eth0 nodad"
	}
	var ipv6 string
	for _, a := range h.Addrs {
		if a.Is6() {
			ipv6 = a.String()
		}
	}
	_, err := h.Exec(w.Ctx, "sh", "-euc", script, "sh", ipv6)
	w.Must(err)
}
