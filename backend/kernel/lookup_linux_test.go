package kernel_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestLookUpRoute: the kernel's answer names the entry of the table, and the rule that leads to it or refuses the packets.
func TestLookUpRoute(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	ns.Sh("ip link add eth0 type veth peer name eth1; ip link set eth0 up; ip link set eth1 up; ip addr add 192.0.2.1/24 dev eth0; ip route add default via 192.0.2.9\n" +
		"ip link add br0 type bridge; ip link set br0 up; ip addr add 10.5.1.1/24 dev br0; sysctl -qw net.ipv4.ip_forward=1\n" +
		"ip route add 10.5.2.0/24 dev eth0 proto 108; ip route add 10.5.2.128/25 dev br0\n" +
		"ip route add unreachable 10.5.0.0/16 metric 16777216 proto 108; ip route add unreachable 10.6.0.0/16 metric 16777216 proto 108; ip route add blackhole 10.6.0.0/16\n" +
		"ip route add 10.5.3.0/24 dev br0 table 52; ip rule add pref 90 iif br0 to 10.5.3.0/24 lookup 52; ip rule add pref 91 to 10.5.4.0/24 prohibit")
	for _, tt := range []struct {
		dst, in, want string
	}{
		{"10.5.2.2", "", "10.5.2.0/24 eth0 own=true local=false 254 none"},
		{"10.5.2.2", "br0", "10.5.2.0/24 eth0 own=true local=false 254 none"},
		{"10.5.2.200", "br0", "10.5.2.128/25 br0 own=false local=false 254 none"},
		{"198.51.100.1", "", "0.0.0.0/0 eth0 own=false local=false 254 none"},
		{"10.5.1.1", "", "10.5.1.1/32 br0 own=false local=true 255 none"},
		{"10.5.3.3", "br0", "10.5.3.0/24 br0 own=false local=false 52 90: from all to 10.5.3.0/24 iif br0 lookup 52"},
		{"10.5.3.3", "", "error none"}, // leno's own route refuses them
		{"10.6.0.1", "", "error none blackhole 10.6.0.0/16"},
		{"10.5.4.4", "br0", "error 91: from all to 10.5.4.0/24"},
	} {
		var got string
		ns.Do(func() {
			handle, err := netlink.NewHandle()
			if err != nil {
				t.Error(err)
				return
			}
			defer handle.Close()
			q := kernel.RouteQuery{Dst: netip.MustParseAddr(tt.dst), In: tt.in}
			if tt.in != "" {
				q.Src = netip.MustParseAddr("10.5.1.2")
			}
			r, err := kernel.LookUpRoute(handle, q)
			rule := "none"
			if r.Rule != nil {
				rule = fmt.Sprintf("%d: %s", r.Rule.Priority, r.Rule.Text)
			}
			got = fmt.Sprintf("%s %s own=%t local=%t %d %s", r.Dst, r.Link, r.Own, r.Local, r.Table, rule)
			if r.Rejecting != nil {
				rule += " " + r.Rejecting.String()
			}
			if err != nil {
				got = "error " + rule
			}
		})
		if got != tt.want {
			t.Errorf("%s by %q: %s, want %s", tt.dst, tt.in, got, tt.want)
		}
	}
}
