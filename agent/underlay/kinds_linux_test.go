package underlay

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

var both = Need{IPv4: true, IPv6: true, Overlay: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}}

// text formats a choice in one line: the chosen interface, the source address if that is another one, and the MTU.
func text(c Choice) string {
	s := fmt.Sprintf("%s %v", c.Interface, c.Addrs)
	if fmt.Sprint(c.Own) != fmt.Sprint(c.Addrs) {
		s += fmt.Sprintf(" from %v", c.Own)
	}
	return fmt.Sprintf("%s, %d of %s %v", s, c.MTU, c.MTUFrom, c.Devices)
}

// TestKindsOfHosts tests the kinds of connections that hosts have. Every script changes a host with eth0 (192.0.2.34,
// 2001:db8::34) and its default routes, and eth1 (10.1.0.34).
func TestKindsOfHosts(t *testing.T) {
	t.Parallel()
	peers := func(list ...string) Need {
		need := both
		for _, p := range list {
			need.Peers = append(need.Peers, netip.MustParseAddr(p))
		}
		return need
	}
	const plain = "eth0 [192.0.2.34 2001:db8::34], 1500 of eth0 [eth0]"
	for _, tt := range []struct {
		name   string
		script string
		u      config.Underlay
		need   Need
		want   string // or part of the error
	}{
		{"as it is", "", config.Underlay{}, both, plain},
		{"a second IPv4 address", "ip addr add 192.0.2.35/24 dev eth0", config.Underlay{}, both, plain},
		{"a primary IPv4 address of another network", "ip addr add 198.51.100.7/24 dev eth0", config.Underlay{}, both, plain},
		{"a second IPv6 address", "ip addr add 2001:db8::35/64 dev eth0 nodad", config.Underlay{}, both, plain},
		{"an IPv6 address that goes out of use", "ip addr add 2001:db8::35/64 dev eth0 nodad; ip addr change 2001:db8::34/64 dev eth0 preferred_lft 0 valid_lft 600",
			config.Underlay{}, both, "eth0 [192.0.2.34 2001:db8::35], 1500 of eth0 [eth0]"},
		{"an IPv6 address not found to be unique", "ip addr del 2001:db8::34/64 dev eth0; sysctl -qw net.ipv6.conf.eth0.accept_dad=1 net.ipv6.conf.eth0.dad_transmits=100; ip addr add 2001:db8::36/64 dev eth0",
			config.Underlay{}, both, "eth0 [192.0.2.34], 1500 of eth0 [eth0]"},
		{"a temporary IPv6 address", `sysctl -qw net.ipv6.conf.eth1.use_tempaddr=2; ip addr add 2001:db8:1::35/64 dev eth1 nodad mngtmpaddr
			for i in $(seq 200); do ip -6 addr show dev eth1 temporary -tentative | grep -q 2001 && break; sleep 0.05; done`,
			config.Underlay{Interfaces: []string{"eth1"}}, both, "eth1 [10.1.0.34 2001:db8:1::35], 1400 of eth1 [eth1]"},
		{"a link-local address by name", "ip link set eth1 addrgenmode none; ip addr add fe80::77/64 dev eth1 nodad", config.Underlay{Interfaces: []string{"fe80::77"}}, both, "fe80::77 is link-local"},
		{"an IPv4 link-local address alone", "ip addr flush dev eth1; ip addr add 169.254.7.7/16 dev eth1", config.Underlay{Interfaces: []string{"eth1"}}, both, "169.254.7.7 is link-local"},
		{"an IPv6 address by name", "", config.Underlay{Interfaces: []string{"2001:db8::34"}}, both, "eth0 [2001:db8::34 192.0.2.34], 1500 of eth0 [eth0]"},

		{"a public address behind NAT", "", config.Underlay{PublicIP: "203.0.113.34"}, both,
			"eth0 [203.0.113.34 2001:db8::34] from [192.0.2.34 2001:db8::34], 1500 of eth0 [eth0]"},
		{"a public address by a template, of another interface", "", config.Underlay{PublicIP: `{{ GetInterfaceIP "eth1" }}`}, Need{IPv4: true},
			"eth0 [10.1.0.34], 1500 of eth0 [eth0]"},
		{"a public IPv6 address by a template", "", config.Underlay{PublicIPv6: `{{ GetAllInterfaces | include "name" "^eth0$" | include "type" "IPv6" | exclude "flags" "link-local unicast" | attr "address" }}`}, Need{IPv6: true},
			"eth0 [2001:db8::34], 1500 of eth0 [eth0]"},
		{"a public address without one of its own behind it", "ip -4 addr flush dev eth1", config.Underlay{Interfaces: []string{"eth1"}, PublicIP: "203.0.113.34"}, both,
			"eth1 [203.0.113.34] from [invalid IP], 1400 of eth1 [eth1]"},

		{"an address on loopback", "ip addr add 203.0.113.7/32 dev lo; ip link set eth0 mtu 1480", config.Underlay{Interfaces: []string{"203.0.113.7"}}, both,
			"lo [203.0.113.7], 1480 of eth0, by which the IPv4 default route leaves, [eth0 lo]"},
		{"an address on loopback over two ways", `ip addr add 203.0.113.7/32 dev lo; ip route del default
			ip route add default nexthop via 192.0.2.1 nexthop via 10.1.0.1`, config.Underlay{Interfaces: []string{"lo"}}, both,
			"lo [203.0.113.7], 1400 of eth1, by which the IPv4 default route leaves, [eth0 eth1 lo]"},
		{"an address on loopback, hosts behind a route", "ip addr add 203.0.113.7/32 dev lo; ip route add 203.0.113.8 nexthop via 192.0.2.1 nexthop via 10.1.0.1",
			config.Underlay{Interfaces: []string{"lo"}}, peers("203.0.113.8"),
			"lo [203.0.113.7], 1400 of eth1, by which the route to 203.0.113.8 leaves, [eth0 eth1 lo]"},

		{"two default routes", "ip route add default via 10.1.0.1 metric 1; ip route del default via 192.0.2.1; ip route add default via 192.0.2.1 metric 2", config.Underlay{}, both,
			"eth1 [10.1.0.34], 1400 of eth1 [eth1]"},
		{"two ways of one default route", "ip route replace default nexthop via 192.0.2.1 nexthop via 10.1.0.1", config.Underlay{}, both,
			"eth0 [192.0.2.34 2001:db8::34], 1400 of eth1, by which the IPv4 default route leaves, [eth0 eth1]"},
		{"a default route with a source", "ip addr add 192.0.2.35/24 dev eth0; ip route replace default via 192.0.2.1 src 192.0.2.35", config.Underlay{}, both,
			"eth0 [192.0.2.35 2001:db8::34], 1500 of eth0 [eth0]"},
		{"policy routing alone", "ip route flush default; ip -6 route flush default; ip route add default via 10.1.0.1 table 100; ip rule add from all lookup 100", config.Underlay{}, both,
			"eth1 [10.1.0.34], 1400 of eth1 [eth1]"},
		{"policy routing by source, for one host", "ip route add default via 10.1.0.1 table 100; ip rule add from 192.0.2.34 lookup 100 pref 90; ip route add 192.0.2.0/24 dev eth0 table 100",
			config.Underlay{}, peers("198.51.100.9", "192.0.2.35"), "eth0 [192.0.2.34 2001:db8::34], 1400 of eth1, by which the route to 198.51.100.9 leaves, [eth0 eth1]"},
		{"policy routing by another source", "ip route add default via 10.1.0.1 table 100; ip rule add from 192.0.2.77 lookup 100 pref 90",
			config.Underlay{}, peers("198.51.100.9"), plain},

		{"a route with an MTU", "ip route replace default via 192.0.2.1 mtu 1400", config.Underlay{}, both,
			"eth0 [192.0.2.34 2001:db8::34], 1400 of the IPv4 default route by eth0 [eth0]"},
		{"a route to a host with an MTU", "ip route add 198.51.100.0/24 via 192.0.2.1 mtu 1420", config.Underlay{}, peers("198.51.100.9", "2001:db8:9::9"),
			"eth0 [192.0.2.34 2001:db8::34], 1420 of the route to 198.51.100.9 by eth0 [eth0]"},
		{"hosts that cannot be reached", "ip route add unreachable 198.51.100.0/24; ip route add blackhole 198.51.101.0/24", config.Underlay{}, peers("198.51.100.9", "198.51.101.9", "192.0.2.34"), plain},
		{"a host through a TUN", "ip tuntap add tun0 mode tun; ip link set tun0 mtu 1380 up; ip route add 198.51.100.0/24 dev tun0", config.Underlay{}, peers("198.51.100.9"),
			"eth0 [192.0.2.34 2001:db8::34], 1380 of tun0, by which the route to 198.51.100.9 leaves, [eth0 tun0]"},
		{"a bridge", "ip link add br0 type bridge; ip link set eth1 master br0; ip addr flush dev eth1; ip addr add 10.1.0.34/24 dev br0; ip link set br0 up", config.Underlay{Interfaces: []string{"br0"}}, both,
			"br0 [10.1.0.34], 1400 of br0 [br0]"},
		{"VXLAN", "ip link add vx0 type vxlan id 7 dstport 4789 local 10.1.0.34 dev eth1; ip addr add 172.16.0.1/24 dev vx0; ip link set vx0 up", config.Underlay{Interfaces: []string{"vx0"}}, both,
			"vx0 [172.16.0.1], 1350 of vx0 [eth1 vx0]"},
		{"VXLAN wider than what carries it", "ip link add vx0 type vxlan id 7 dstport 4789 local 10.1.0.34 dev eth1; ip addr add 172.16.0.1/24 dev vx0; ip link set vx0 up; ip link set eth1 mtu 1360", config.Underlay{Interfaces: []string{"vx0"}}, both,
			"vx0 [172.16.0.1], 1310 of vx0 (1360 of eth1 - 50) [eth1 vx0]"},
		{"VXLAN over IPv6 in VXLAN", `ip link add vx0 type vxlan id 7 dstport 4789 local 2001:db8::34 dev eth0; ip addr add 172.16.0.1/24 dev vx0; ip link set vx0 up
			ip link add vx1 type vxlan id 8 dstport 4789 local 172.16.0.1 dev vx0; ip addr add 172.17.0.1/24 dev vx1; ip link set vx1 up; ip link set eth0 mtu 1490`, config.Underlay{Interfaces: []string{"vx1"}}, both,
			"vx1 [172.17.0.1], 1370 of vx1 (1490 of eth0 - 120) [eth0 vx0 vx1]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := plainHost(t)
			if tt.script != "" {
				ns.Sh(tt.script)
			}
			ns.Do(func() {
				got, err := Select(tt.u, tt.need)
				if err != nil && (!errors.Is(err, ErrNone) || !strings.Contains(err.Error(), tt.want)) || err == nil && text(got) != tt.want {
					t.Errorf("got  %s, %v\nwant %s", text(got), err, tt.want)
				}
			})
		})
	}
}

func plainHost(t *testing.T) *nstest.NS {
	t.Helper()
	ns, other := nstest.New(t), nstest.New(t)
	nstest.Join(nstest.Joint{NS: ns, Link: "eth0", Addrs: []string{"192.0.2.34/24", "2001:db8::34/64"}},
		nstest.Joint{NS: other, Link: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8::1/64"}})
	nstest.Join(nstest.Joint{NS: ns, Link: "eth1", Addrs: []string{"10.1.0.34/24"}},
		nstest.Joint{NS: other, Link: "eth1", Addrs: []string{"10.1.0.1/24"}})
	ns.Sh(`
		ip link set eth1 mtu 1400
		ip route add default via 192.0.2.1
		ip -6 route add default via 2001:db8::1`)
	return ns
}
