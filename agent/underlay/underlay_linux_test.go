package underlay

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/internal/testkit/waiting"
)

func TestMain(m *testing.M) {
	nstest.RunMoreAtOnce()
	m.Run()
}

// host returns a namespace with two veth interfaces, a bridge that carries the overlay, and one of leno's devices.
func host(t *testing.T) *nstest.NS {
	ns, other := nstest.New(t), nstest.New(t)
	nstest.Join(nstest.Joint{NS: ns, Link: "eth0", Addrs: []string{"192.0.2.34/24", "192.0.2.35/24", "2001:db8::34/64"}},
		nstest.Joint{NS: other, Link: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8::1/64"}})
	nstest.Join(nstest.Joint{NS: ns, Link: "eth1", Addrs: []string{"10.1.0.34/24"}},
		nstest.Joint{NS: other, Link: "eth1", Addrs: []string{"10.1.0.1/24"}})
	ns.Sh(`
		ip link set eth1 mtu 1400
		ip route add default via 192.0.2.1
		ip -6 route add default via 2001:db8::1
		ip route add default via 10.1.0.1 metric 500
		ip route add 198.51.100.0/24 via 10.1.0.1
		ip link add br0 type bridge
		ip addr add 10.5.34.1/24 dev br0
		ip link set br0 up
		ip link add leno-default type bridge
		ip addr add 10.6.34.0/32 dev leno-default
		ip link set leno-default up
		ip link add down0 type bridge
		ip addr add 10.7.0.1/24 dev down0`)
	return ns
}

func TestSelectOnAHost(t *testing.T) {
	t.Parallel()
	ns := host(t)
	need := Need{IPv4: true, IPv6: true, Overlay: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}}
	for _, tt := range []struct {
		name  string
		u     config.Underlay
		link  string
		mtu   int
		addrs string
	}{
		{"default route", config.Underlay{}, "eth0", 1500, "[192.0.2.34 2001:db8::34]"},
		{"address", config.Underlay{Interfaces: []string{"192.0.2.35"}}, "eth0", 1500, "[192.0.2.35 2001:db8::34]"},
		{"expression", config.Underlay{InterfaceRegex: []string{`^10\.`}}, "eth1", 1400, "[10.1.0.34]"},
		{"route", config.Underlay{CanReach: netip.MustParseAddr("198.51.100.7")}, "eth1", 1400, "[10.1.0.34]"},
		{"IPv6 route", config.Underlay{CanReach: netip.MustParseAddr("2001:db8:7::7")}, "eth0", 1500, "[2001:db8::34 192.0.2.34]"},
		{"down", config.Underlay{Interfaces: []string{"down0"}}, "down0", 1500, "[10.7.0.1]"},
		{"template", config.Underlay{PublicIP: `{{ GetInterfaceIP "eth1" }}`, PublicIPv6: "2001:db8::99"}, "eth0", 1500, "[10.1.0.34 2001:db8::99]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got Choice
			var err error
			ns.Do(func() { got, err = Select(tt.u, need) })
			if err != nil {
				t.Fatal(err)
			}
			addrs := fmt.Sprint(got.Addrs)
			if got.Interface != tt.link || got.Index != ns.Index(tt.link) || got.MTU != tt.mtu || addrs != tt.addrs {
				t.Errorf("got %+v, want %s, MTU %d, %s", got, tt.link, tt.mtu, tt.addrs)
			}
		})
	}

	for name, u := range map[string]config.Underlay{
		"no such interface": {Interfaces: []string{"bond0"}},
		"own device":        {InterfaceRegex: []string{"^leno-", `^10\.[567]\.`}},
	} {
		ns.Do(func() {
			if c, err := Select(u, need); !errors.Is(err, ErrNone) {
				t.Errorf("%s: got %+v, %v", name, c, err)
			}
		})
	}
	ns.Sh("ip route add unreachable 203.0.113.0/24")
	ns.Do(func() {
		_, err := Select(config.Underlay{CanReach: netip.MustParseAddr("203.0.113.1")}, need)
		if !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "no route") {
			t.Errorf("unreachable: %v", err)
		}
		_, err = Select(config.Underlay{PublicIP: `{{ GetInterfaceIP "none" }}`}, need)
		if err == nil || !strings.HasPrefix(err.Error(), "underlay.public_ip: ") {
			t.Errorf("template without a value: %v", err)
		}
	})
}

// TestToPeers checks whether most of the other hosts are reached through the chosen interface, which has no default route.
func TestToPeers(t *testing.T) {
	t.Parallel()
	ns := host(t)
	ns.Sh("ip route del default via 192.0.2.1")
	toPeers := func(link string, peers ...string) bool {
		t.Helper()
		need := Need{IPv4: true}
		for _, p := range peers {
			need.Peers = append(need.Peers, netip.MustParseAddr(p))
		}
		var got Choice
		var err error
		ns.Do(func() { got, err = Select(config.Underlay{Interfaces: []string{link}}, need) })
		if err != nil {
			t.Fatal(err)
		}
		return got.ToPeers
	}
	for _, tt := range []struct {
		link  string
		peers []string
		want  bool
	}{
		{"eth0", []string{"192.0.2.50", "192.0.2.51", "203.0.113.7"}, true},
		{"eth0", []string{"192.0.2.34", "203.0.113.7"}, false}, // the first one is this host
		{"eth0", nil, false},
		{"eth1", []string{"192.0.2.50", "203.0.113.7", "198.51.100.7"}, true},
	} {
		if got := toPeers(tt.link, tt.peers...); got != tt.want {
			t.Errorf("%s to %v: %t", tt.link, tt.peers, got)
		}
	}
	ns.Sh("ip link add eth2 type veth; ip addr add 10.8.0.34/24 dev eth2; ip link set eth2 up") // the other end is down
	waiting.Until(t, "an interface without a carrier does not count", func() bool { return !toPeers("eth2", "10.8.0.1") })
}
