package datapath

import (
	"context"
	"fmt"
	"net/http"
	"testing"

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
