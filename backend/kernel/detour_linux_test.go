package kernel_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
)

// TestFindDetours: packets that a rule of another program takes from leno's route or from the underlay are found, with the
// rule, and rules that take none are not.
func TestFindDetours(t *testing.T) {
	t.Parallel()
	const (
		bridge  = "ip link add br0 type bridge; ip addr add 10.5.1.1/24 dev br0; ip -6 addr add fd00:5:0:1::1/64 dev br0; ip link set br0 up\n"
		forward = "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1\n"
		tunnel  = "ip tuntap add tun0 mode tun; ip addr add 100.100.1.1/32 dev tun0; ip link set tun0 up\n"
		veth    = "ip link add ts0 type veth peer name ts1; ip link set ts0 up; ip link set ts1 up\n"
	)
	const pool, far = "10.5.2.0", "198.51.100.2"
	for _, tt := range []struct {
		name, script string
		dst, want    string // "" for no detour
	}{
		{"no rule", "", "", ""},
		{"no rule, with containers", bridge + forward, "", ""},
		{"a table before main", veth + "ip rule add pref 5270 lookup 52; ip route add 10.5.0.0/16 dev ts0 table 52",
			pool, "b ts0 52 5270: from all lookup 52"},
		{"a table before main, with containers", bridge + forward + veth + "ip rule add pref 5270 lookup 52; ip route add 10.5.0.0/16 dev ts0 table 52",
			pool, "b ts0 52 5270: from all lookup 52"},
		{"a default route before main", veth + "ip rule add pref 5270 lookup 52; ip route add default dev ts0 table 52",
			pool, "b ts0 52 5270: from all lookup 52"},
		{"a rule for containers alone", bridge + forward + veth + "ip rule add pref 90 iif br0 lookup 52; ip route add default dev ts0 table 52",
			pool, "b ts0 52 90: from all iif br0 lookup 52"},
		{"another rule before the one that counts", veth + "ip rule add pref 80 fwmark 7 lookup 52; ip rule add pref 81 from 192.0.2.77 lookup 52;" +
			"ip rule add pref 82 to 10.5.0.0/16 lookup 52; ip route add default dev ts0 table 52", pool, "b ts0 52 82: from all to 10.5.0.0/16 lookup 52"},
		{"a rule that refuses", "ip rule add pref 90 to 10.5.0.0/16 prohibit", pool, "b  0 90: from all to 10.5.0.0/16"},
		{"a table that refuses", "ip rule add pref 90 lookup 52; ip route add unreachable 10.0.0.0/8 table 52", pool, "b  52 90: from all lookup 52"},
		{"a longer route in main", veth + "ip route add 10.5.2.0/25 dev ts0", pool, "b ts0 254 none"},
		{"a longer route in main that refuses", "ip route add blackhole 10.5.2.0/25", pool, "b  254 none blackhole 10.5.2.0/25"},
		{"a route of two that refuses", veth + "ip route add unreachable 10.5.2.0/26; ip route add prohibit 10.5.2.0/28; ip route add 10.5.2.0/25 dev ts0", pool, "b  254 none prohibit 10.5.2.0/28"},
		{"IPv6, a longer route in main that refuses", "ip -6 route add blackhole fd00:5:0:2::/80", "fd00:5:0:2::", "b  254 none blackhole fd00:5:0:2::/80"},
		{"a route that refuses the address of the peer", "ip route add prohibit 198.51.100.2", far, "b  254 none prohibit 198.51.100.2/32"},
		{"IPv6", veth + "ip -6 rule add pref 5270 lookup 52; ip -6 route add fd00:5::/48 dev ts0 table 52", "fd00:5:0:2::", "b ts0 52 5270: from all lookup 52"},
		{"IPv6, with containers", bridge + forward + veth + "ip -6 rule add pref 5270 lookup 52; ip -6 route add fd00:5::/48 dev ts0 table 52",
			"fd00:5:0:2::", "b ts0 52 5270: from all lookup 52"},

		{"wg-quick", tunnel + "ip rule add pref 32765 not fwmark 0xca6c lookup 51820; ip rule add pref 32764 lookup main suppress_prefixlength 0;" +
			"ip route add default dev tun0 table 51820", far, "b tun0 51820 32765: not from all fwmark 0xca6c lookup 51820"},
		{"a tunnel that is switched off", "ip rule add pref 90 not fwmark 0xca6c lookup 51820; ip rule add pref 89 lookup main suppress_prefixlength 0;" +
			"ip route add unreachable default table 51820", far, "b  51820 90: not from all fwmark 0xca6c lookup 51820"},

		{"a default route that leaves the pool out", veth + "ip rule add pref 5270 lookup 52; ip route add default dev ts0 table 52;" +
			"ip route add throw 10.5.0.0/16 table 52; ip route add 198.51.100.0/24 via 192.0.2.2 dev eth0", far, "b ts0 52 5270: from all lookup 52"},

		{"a table with other destinations", veth + "ip rule add pref 5270 lookup 52; ip route add 10.6.0.0/16 dev ts0 table 52", "", ""},
		{"a table that leaves the pool out", veth + "ip rule add pref 5270 lookup 52; ip route add default via 192.0.2.2 table 52; ip route add throw 10.5.0.0/16 table 52;" +
			"ip route add throw 10.0.0.0/8 table 52", "", ""},
		{"main without its default route", veth + "ip rule add pref 100 lookup main suppress_prefixlength 0; ip rule add pref 101 lookup 52; ip route add default via 192.0.2.2 table 52", "", ""},
		{"the rule that leno names", veth + "ip rule add pref 5270 lookup 52; ip route add 10.5.0.0/16 dev ts0 table 52; ip rule add to 10.5.0.0/16 lookup main priority 5269", "", ""},
		{"another uplink", veth + "ip rule add pref 90 to 198.51.100.0/24 lookup 52; ip route add default dev ts0 table 52", "", ""},
		{"no route to the peer and a rule", "ip route del default; ip rule add pref 90 lookup 52; ip route add 10.6.0.0/16 dev eth0 table 52", "", ""},
		{"leno's route is missing", "ip route del 10.5.2.0/24", "", ""},
		{"leno refuses a subnet", "ip route add unreachable 10.5.2.0/25 proto 108", "", ""},
		{"leno's route is missing, and the pool is refused", "ip route del 10.5.2.0/24; ip route add unreachable 10.5.0.0/16", "", ""},
		{"the rest of the pool is refused", "ip route add blackhole 10.5.0.0/16; ip route add unreachable 10.5.2.128/25", "", ""},
		{"no default route", "ip route replace unreachable default", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns, _ := host(t)
			ns.Sh(`ip route add default via 192.0.2.2
ip -6 addr add fd00:5:0:1::/128 dev leno-t
ip route add 10.5.2.0/24 via 10.5.2.0 dev leno-t onlink proto 108
ip -6 route add fd00:5:0:2::/64 via fd00:5:0:2:: dev leno-t onlink proto 108
` + tt.script)
			q := kernel.PathQuery{
				Subnets:      []netip.Prefix{prefix("10.5.1.0/24"), prefix("fd00:5:0:1::/64")},
				Underlay:     backend.Underlay{Interface: "eth0", Index: ns.Index("eth0"), Own: []netip.Addr{addr("192.0.2.1")}},
				Encapsulated: true,
				Peers: []backend.Peer{{Node: "b", Subnets: []netip.Prefix{prefix("10.5.2.0/24"), prefix("fd00:5:0:2::/64")},
					PublicIPs: []netip.Addr{addr(far)}}},
			}
			ns.Do(func() {
				found, err := kernel.FindDetours(q)
				if err != nil {
					t.Fatal(err)
				}
				got, dst := describe(found)
				if got != tt.want || dst != tt.dst {
					t.Errorf("%q to %q, want %q to %q\n%s", got, dst, tt.want, tt.dst, ns.Sh("ip rule; ip route show table all"))
				}
			})
		})
	}
}

// describe returns what was found, such as "b ts0 52 5270: from all lookup 52", and the destination.
func describe(found []kernel.Detour) (text, dst string) {
	var parts []string
	for _, d := range found {
		rule := "none"
		if d.Route != nil {
			rule += " " + d.Route.String()
		}
		if d.Rule != nil {
			rule = fmt.Sprintf("%d: %s", d.Rule.Priority, d.Rule.Text)
		}
		parts = append(parts, fmt.Sprintf("%s %s %d %s", d.Node, d.Link, d.Table, rule))
		dst = d.Dst.String()
	}
	return strings.Join(parts, "; "), dst
}
