package hostgw

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/reconcile"
	"github.com/lenonet/leno/backend/vxlan"
	"github.com/lenonet/leno/internal/testkit/backendtest"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

func TestMain(m *testing.M) {
	nstest.RunMoreAtOnce()
	m.Run()
}

func TestConformance(t *testing.T) {
	t.Parallel()
	partners := []backendtest.Partner{{Type: vxlan.Type()}}
	backendtest.Run(t, backendtest.Suite{Type: Type(), Crowd: 1000, Partners: partners, Bad: func(good backend.Peer) map[string]backend.Peer {
		with := func(change func(p *backend.Peer)) backend.Peer {
			p := good
			change(&p)
			return p
		}
		addr := netip.MustParseAddr
		return map[string]backend.Peer{
			"no route to 198.51.100.1":  with(func(p *backend.Peer) { p.PublicIPs = []netip.Addr{addr("198.51.100.1"), addr("2001:db9::1")} }),
			"an address of this host":   with(func(p *backend.Peer) { p.PublicIPs = []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")} }),
			"no IPv6 public address":    with(func(p *backend.Peer) { p.Subnets, p.PublicIPs = p.Subnets[1:], []netip.Addr{addr("192.0.2.4")} }),
			"is node host-2's too":      with(func(p *backend.Peer) { p.Subnets = []netip.Prefix{netip.MustParsePrefix("10.5.2.0/24")} }),
			"10.6.0.0/24 is outside":    with(func(p *backend.Peer) { p.Subnets = []netip.Prefix{netip.MustParsePrefix("10.6.0.0/24")} }),
			"subnet 10.5.1.0/24 is our": with(func(p *backend.Peer) { p.Subnets = []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")} }),
		}
	}})
}

func TestPlan(t *testing.T) {
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, s := range texts {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	peer := func(n int, ips ...string) backend.Peer {
		p := backend.Peer{Node: fmt.Sprint("host-", n), Backend: Name,
			Subnets: prefixes(fmt.Sprintf("10.5.%d.0/24", n), fmt.Sprintf("fd00:5:0:%x::/64", n))}
		for _, ip := range ips {
			p.PublicIPs = append(p.PublicIPs, netip.MustParseAddr(ip))
		}
		return p
	}
	stranger := peer(5, "192.0.2.5")
	stranger.Backend = "vxlan"
	s := backend.State{
		Subnets:  prefixes("10.5.1.0/24", "fd00:5:0:1::/64"),
		Underlay: backend.Underlay{Index: 2},
		Peers: []backend.Peer{
			stranger,
			peer(3, "192.0.2.3"),
			peer(2, "192.0.2.2", "2001:db8::2"),
			peer(4, "198.51.100.4", "2001:db8::4"),
		},
	}
	indirect := map[netip.Addr]string{netip.MustParseAddr("198.51.100.4"): "198.51.100.4 is behind a gateway"}
	p := newPlan(prefixes("10.5.0.0/16", "fd00:5::/48"), options{}, s, indirect, true)
	got := reconcile.Dump(p.routes, kernel.CompareRoutes)
	for _, skip := range p.skipped {
		got += skip.Node + ": " + skip.Reason + "\n"
	}
	// Subnets of a peer that can be routed are, even if the others are reported.
	want := `10.5.0.0/16 metric 16777216 unreachable
10.5.2.0/24 via 192.0.2.2 link 2
10.5.3.0/24 via 192.0.2.3 link 2
fd00:5::/48 metric 16777216 unreachable
fd00:5:0:2::/64 via 2001:db8::2 link 2
fd00:5:0:4::/64 via 2001:db8::4 link 2
host-3: no IPv6 public address for fd00:5:0:3::/64
host-4: not on the same layer 2: 198.51.100.4 is behind a gateway
host-5: runs backend "vxlan"
`
	if got != want || p.peers != 1 {
		t.Errorf("plan\n%swant\n%speers %d, want 1", got, want, p.peers)
	}
}

func TestAdvertiseRefuses(t *testing.T) {
	t.Parallel()
	ns, other := nstest.New(t), nstest.New(t)
	nstest.Join(nstest.Joint{NS: ns, Link: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8::1/64"}}, nstest.Joint{NS: other, Link: "eth0"})
	ns.Sh("ip addr add 198.51.100.1/32 dev lo")
	b, err := Type().New(backend.Config{Pools: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00:5::/48")}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, tt := range []struct {
		addrs []string
		vrf   int
		want  []string
	}{
		{[]string{"192.0.2.1", "2001:db8::1"}, 0, nil},
		{[]string{"192.0.2.1", "2001:db8::1"}, 7, []string{"interface eth0 is in a VRF", "use the backend vxlan or udp"}},
		{[]string{"203.0.113.9", "2001:db8::1"}, 0, []string{"public address 203.0.113.9 is not an address of interface eth0"}},
		{[]string{"198.51.100.1"}, 0, []string{"198.51.100.1 is not an address of interface eth0", "pool fd00:5::/48 needs an IPv6 public address on interface eth0"}},
		{nil, 0, []string{"pool 10.5.0.0/16 needs an IPv4", "pool fd00:5::/48 needs an IPv6"}},
	} {
		u := backend.Underlay{Interface: "eth0", Index: ns.Index("eth0"), MTU: 1500, VRF: tt.vrf}
		for _, a := range tt.addrs {
			u.Addrs = append(u.Addrs, netip.MustParseAddr(a))
		}
		ns.Do(func() {
			adv, err := b.Advertise(u)
			if tt.want == nil && (err != nil || adv.MTU != 1500 || string(adv.Attributes) != "{}") {
				t.Errorf("%v: %+v, %v", tt.addrs, adv, err)
			}
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v: error %v lacks %q", tt.addrs, err, want)
				}
			}
		})
	}
}

func TestNormalize(t *testing.T) {
	for _, options := range []string{"", "{}"} {
		if got, err := normalize(json.RawMessage(options)); err != nil || string(got) != `{"mtu":0}` {
			t.Errorf("normalize(%q) = %s, %v", options, got, err)
		}
	}
	_, err := normalize(json.RawMessage(`{"vni":1}`))
	if of := (*backend.OptionError)(nil); !errors.As(err, &of) || of.Option != "vni" {
		t.Errorf("error %v", err)
	}
}
