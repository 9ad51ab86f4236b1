package agent

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend/kernel/nstest"
)

// TestEnsureForwarding sets what was asked for, and leaves IPv6 alone where that
// would cost the host a route that it learnt.
func TestEnsureForwarding(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.5.1.0"), netip.MustParseAddr("fd00:5::")
	const (
		switch4 = "net.ipv4.ip_forward"
		switch6 = "net.ipv6.conf.all.forwarding"
	)
	for _, tt := range []struct {
		name, script string
		addr         netip.Addr
		ask          bool
		want         Forwarding
		after        string // of all switches
	}{
		{"off, not asked for", "", v4, false, Forwarding{Off: []string{switch4, "net.ipv4.conf.leno-n.forwarding"}}, "0 0 0"},
		{"off, asked for", "", v4, true, Forwarding{Set: []string{switch4}}, "1 1 0"},
		{"on", "sysctl -w net.ipv4.ip_forward=1", v4, true, Forwarding{}, "1 1 0"},
		{"off for our device alone", "sysctl -w net.ipv4.ip_forward=1 net.ipv4.conf.leno-n.forwarding=0", v4, true,
			Forwarding{Set: []string{"net.ipv4.conf.leno-n.forwarding"}}, "1 1 0"},
		{"IPv6 off, not asked for", "", v6, false, Forwarding{Off: []string{switch6}}, "0 0 0"},
		{"IPv6 off, asked for", "", v6, true, Forwarding{Set: []string{switch6}}, "0 0 1"},
		{"IPv6 off, and a route from an advertisement", "ip -6 route add default via fe80::1 dev eth0 proto ra", v6, true,
			Forwarding{Off: []string{switch6}, Advertised: []string{"eth0"}}, "0 0 0"},
		{"the same where advertisements are accepted by routers, too",
			"ip -6 route add default via fe80::1 dev eth0 proto ra; sysctl -w net.ipv6.conf.eth0.accept_ra=2", v6, true,
			Forwarding{Set: []string{switch6}}, "0 0 1"},
		{"the same where a program reads them",
			"ip -6 route add default via fe80::1 dev eth0 proto ra; sysctl -w net.ipv6.conf.eth0.accept_ra=0", v6, true,
			Forwarding{Set: []string{switch6}}, "0 0 1"},
		{"IPv6 on, and a route from an advertisement",
			"sysctl -w net.ipv6.conf.all.forwarding=1; ip -6 route add default via fe80::1 dev eth0 proto ra", v6, true, Forwarding{}, "0 0 1"},
		{"routes of two interfaces", `ip -6 route add 2001:db8:7::/48 proto ra nexthop via fe80::1 dev eth0 nexthop via fe80::2 dev eth1
			ip -6 route add default via fe80::1 dev eth0 proto ra`, v6, true,
			Forwarding{Off: []string{switch6}, Advertised: []string{"eth0", "eth1"}}, "0 0 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := nstest.New(t)
			for _, link := range []string{"eth0", "eth1", "leno-n"} {
				ns.Sh("ip link add " + link + " type bridge; ip link set " + link + " up")
			}
			ns.Sh("sysctl -w net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0")
			if tt.script != "" {
				ns.Sh(tt.script)
			}
			ns.Do(func() {
				got, err := ensureForwarding(tt.addr, []string{"leno-n"}, tt.ask)
				must(t, err)
				if fmt.Sprint(got) != fmt.Sprint(tt.want) {
					t.Errorf("%+v, want %+v", got, tt.want)
				}
			})
			after := ns.Sh("sysctl -n net.ipv4.ip_forward net.ipv4.conf.leno-n.forwarding net.ipv6.conf.all.forwarding")
			if after := strings.Join(strings.Fields(after), " "); after != tt.after {
				t.Errorf("the switches are %s, want %s", after, tt.after)
			}
		})
	}
}

// TestForwardingOfTheUnderlay: where packets come in by the underlay's device, too,
// its switch counts beside that of the network's own, which may not exist.
func TestForwardingOfTheUnderlay(t *testing.T) {
	ns := nstest.New(t)
	for _, link := range []string{"eth0", "leno-n"} {
		ns.Sh("ip link add " + link + " type bridge; sysctl -w net.ipv4.ip_forward=1 net.ipv4.conf.eth0.forwarding=0")
		ns.Do(func() {
			got, err := ensureForwarding(netip.MustParseAddr("10.5.1.0"), []string{"leno-n", "eth0"}, false)
			must(t, err)
			if fmt.Sprint(got.Off) != "[net.ipv4.conf.eth0.forwarding]" {
				t.Errorf("%+v", got)
			}
		})
	}
}
