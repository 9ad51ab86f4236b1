package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/api"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// examplePlanner returns the planner of host 1, whose peers are neighbours by device 2.
func examplePlanner(backend string) planner {
	return planner{
		Host{Network: "n", Backend: backend, Options: json.RawMessage(`{"port":8472}`), Link: "leno-n", MTU: 1450,
			Subnets:  []netip.Prefix{prefix("10.5.1.0/24"), prefix("fd00:5:0:1::/64")},
			Underlay: api.Underlay{Interface: "eth0", MTU: 1500, Addresses: []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")}}},
		kernelState{
			local: map[netip.Addr]bool{}, link: 7,
			route:    func(netip.Addr, int) (int, bool) { return 2, true },
			routeMTU: func(netip.Addr) int { return 0 },
		},
	}
}

func examplePeer() api.Peer {
	return api.Peer{Node: "host-b", Held: true, Subnets: []netip.Prefix{prefix("10.5.2.0/24"), prefix("fd00:5:0:2::/64")},
		PublicIPs: []netip.Addr{addr("192.0.2.2"), addr("2001:db8::2")}}
}

// addOtherFamilyLink makes IPv6 packets to peers leave by the device for the other address family.
func addOtherFamilyLink(p *planner) {
	p.kernel.otherFamily, p.kernel.otherFamilyMTU = 8, 1430
	p.kernel.route = func(a netip.Addr, _ int) (int, bool) {
		switch {
		case prefix("fd00:5::/48").Contains(a):
			return 8, true
		case prefix("10.5.0.0/16").Contains(a):
			return 7, true
		}
		return 2, true
	}
}

// TestWays checks the destinations and sources of packets.
func TestWays(t *testing.T) {
	for _, tt := range []struct {
		name, backend string
		change        func(p *planner, peer *api.Peer)
		want          string
	}{
		{"a tunnel", "vxlan", nil, `
overlay 10.5.1.0 > 10.5.2.0 1450
overlay fd00:5:0:1:: > fd00:5:0:2:: 1450
underlay 192.0.2.1 > 192.0.2.2 1500`},
		{"a tunnel over IPv6", "udp", func(p *planner, peer *api.Peer) {
			p.Underlay.Addresses = p.Underlay.Addresses[1:]
		}, `
overlay 10.5.1.0 > 10.5.2.0 1450
overlay fd00:5:0:1:: > fd00:5:0:2:: 1450
underlay 2001:db8::1 > 2001:db8::2 1500`},
		{"behind NAT", "vxlan", func(p *planner, peer *api.Peer) {
			p.Underlay.Addresses, p.Underlay.Own = []netip.Addr{addr("203.0.113.9")}, []netip.Addr{addr("10.0.0.9")}
		}, `
overlay 10.5.1.0 > 10.5.2.0 1450
overlay fd00:5:0:1:: > fd00:5:0:2:: 1450
underlay 10.0.0.9 > 192.0.2.2 1500`},
		{"direct routing", "vxlan", func(p *planner, _ *api.Peer) { p.Options = json.RawMessage(`{"direct_routing":true}`) }, `
overlay 10.5.1.0 > 10.5.2.0 1450
overlay fd00:5:0:1:: > fd00:5:0:2:: 1450
underlay 192.0.2.1 > 192.0.2.2 1500
underlay 2001:db8::1 > 2001:db8::2 1500`},
		{"routes alone", "host-gw", nil, `
overlay 192.0.2.1 > 10.5.2.1 1450 in 1 hops, or errors of [10.5.2.0/24 fd00:5:0:2::/64 192.0.2.2/32 2001:db8::2/128]
overlay 2001:db8::1 > fd00:5:0:2::1 1450 in 1 hops, or errors of [10.5.2.0/24 fd00:5:0:2::/64 192.0.2.2/32 2001:db8::2/128]
underlay 192.0.2.1 > 192.0.2.2 1500
underlay 2001:db8::1 > 2001:db8::2 1500`},
		{"routes alone, with a gateway of our own", "host-gw", func(p *planner, peer *api.Peer) {
			p.kernel.local[addr("10.5.1.1")] = true
			peer.Subnets, peer.PublicIPs = peer.Subnets[:1], peer.PublicIPs[:1]
		}, `
overlay 10.5.1.1 > 10.5.2.1 1450 in 1 hops, or errors of [10.5.2.0/24 192.0.2.2/32]
underlay 192.0.2.1 > 192.0.2.2 1500`},
		{"a tunnel of each family", "vxlan", func(p *planner, _ *api.Peer) { addOtherFamilyLink(p) }, `
overlay 10.5.1.0 > 10.5.2.0 1450
overlay fd00:5:0:1:: > fd00:5:0:2:: 1430
underlay 192.0.2.1 > 192.0.2.2 1500
underlay 2001:db8::1 > 2001:db8::2 1500`},
		{"a peer with a smaller MTU", "vxlan", func(p *planner, peer *api.Peer) {
			peer.PublicIPs = peer.PublicIPs[:1]
			p.kernel.routeMTU = func(a netip.Addr) int { return map[bool]int{true: 1312, false: 9000}[a.Is4()] }
		}, `
overlay 10.5.1.0 > 10.5.2.0 1312
overlay fd00:5:0:1:: > fd00:5:0:2:: 1450
underlay 192.0.2.1 > 192.0.2.2 1500`},
		{"nothing is carried", "alloc", nil, `
overlay > 10.5.2.0: the backend alloc carries no packets
overlay > fd00:5:0:2::: the backend alloc carries no packets
underlay 192.0.2.1 > 192.0.2.2 1500
underlay 2001:db8::1 > 2001:db8::2 1500`},
		{"left out", "vxlan", func(_ *planner, peer *api.Peer) { peer.Skipped = "vni is 2" }, `
overlay > 10.5.2.0: left out of the datapath: vni is 2
overlay > fd00:5:0:2::: left out of the datapath: vni is 2
underlay 192.0.2.1 > 192.0.2.2 1500`},
		{"no common family", "vxlan", func(p *planner, peer *api.Peer) {
			p.Subnets, peer.PublicIPs = p.Subnets[1:], peer.PublicIPs[1:]
		}, `
overlay > 10.5.2.0: this host has no IPv4 subnet in the network
overlay fd00:5:0:1:: > fd00:5:0:2:: 1450`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, peer := examplePlanner(tt.backend), examplePeer()
			if tt.change != nil {
				tt.change(&p, &peer)
			}
			got := ""
			ways := p.ways(peer)
			p.limitSizes(ways)
			for _, w := range ways {
				got += "\n" + w.path
				if w.skipReason != "" {
					got += fmt.Sprintf(" > %s: %s", w.to, w.skipReason)
					continue
				}
				got += fmt.Sprintf(" %s > %s %d", w.from, w.to, w.mtu)
				if w.hops > 0 {
					got += fmt.Sprintf(" in %d hops, or errors of %s", w.hops, w.hostPrefixes)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestDetours checks how each direction is probed alone, or why it is not.
func TestDetours(t *testing.T) {
	type change = func(*planner, *api.Peer)
	router := func(p *planner, _ *api.Peer) { p.kernel.route = func(netip.Addr, int) (int, bool) { return 2, false } }
	for _, tt := range []struct {
		name, backend string
		changes       []change
		there, back   string
	}{
		{"a neighbour", "vxlan", nil, "192.0.2.1 > 10.5.2.0", "10.5.1.0 > 10.5.2.0 by 2"},
		{"udp", "udp", nil, "in this host's subnet", "10.5.1.0 > 10.5.2.0 by 2"},
		{"a router", "vxlan", []change{router}, "192.0.2.1 > 10.5.2.0", "10.5.1.0 > 192.0.2.2"},
		{"a router, masquerading", "vxlan", []change{router, func(p *planner, _ *api.Peer) { p.Masquerade = true }}, "192.0.2.1 > 10.5.2.0", "would be masqueraded"},
		{"udp over a router", "udp", []change{router}, "in this host's subnet", "is not a neighbour"},
		{"a strict filter here", "vxlan", []change{func(p *planner, peer *api.Peer) { p.kernel.strictFilter, peer.Subnets = true, peer.Subnets[:1] }}, "rp_filter of eth0 is 1", "10.5.1.0 > 10.5.2.0 by 2"},
		{"a strict filter here, and IPv6", "vxlan", []change{func(p *planner, _ *api.Peer) { p.kernel.strictFilter = true }}, "2001:db8::1 > fd00:5:0:2::", "10.5.1.0 > 10.5.2.0 by 2"},
		{"over IPv6 alone", "vxlan", []change{func(p *planner, peer *api.Peer) {
			p.Underlay.Addresses, peer.PublicIPs = p.Underlay.Addresses[1:], peer.PublicIPs[1:]
		}},
			"2001:db8::1 > fd00:5:0:2::", "10.5.1.0 > 10.5.2.0 by 2"},
		{"tunnels of each family beside direct routing", "vxlan", []change{func(p *planner, peer *api.Peer) {
			addOtherFamilyLink(p)
			p.Options = json.RawMessage(`{"direct_routing":true}`)
			peer.Subnets = peer.Subnets[1:]
		}}, "2001:db8::1 > fd00:5:0:2::", "fd00:5:0:1:: > 2001:db8::2"},
		{"routed, not tunnelled", "vxlan", []change{func(p *planner, _ *api.Peer) { p.Options = json.RawMessage(`{"direct_routing":true}`) }}, "routed, not tunnelled", "routed, not tunnelled"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, peer := examplePlanner(tt.backend), examplePeer()
			for _, change := range tt.changes {
				change(&p, &peer)
			}
			for what, pair := range map[string][2]string{"there": {tt.there, formatDetour(p.detourToPeer(peer))}, "back": {tt.back, formatDetour(p.detourFromPeer(peer))}} {
				if pair[1] != pair[0] && !(strings.HasPrefix(pair[1], "?") && strings.Contains(pair[1], pair[0])) {
					t.Errorf("%s: %s, want %s", what, pair[1], pair[0])
				}
			}
		})
	}
}

func formatDetour(d detour) string {
	if d.whyNone != "" {
		return "? " + d.whyNone
	}
	text := fmt.Sprintf("%s > %s", d.echo.from, d.echo.to)
	if d.echo.link > 0 {
		text += fmt.Sprintf(" by %d", d.echo.link)
	}
	return text
}

func TestNormalize(t *testing.T) {
	got, err := Normalize(api.ProbeRequest{})
	if want := (api.ProbeRequest{Count: 3, IntervalMS: 100, TimeoutMS: 1000, Small: 64}); err != nil || !cmp.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for field, r := range map[string]api.ProbeRequest{
		"count": {Count: -1}, "interval_ms": {IntervalMS: 9}, "timeout_ms": {TimeoutMS: 10_001}, "small": {Small: 63}, "full": {Full: 65_001},
		"less than small": {Small: 1000, Full: 900}, "longer than 45000 ms": {Count: 100, IntervalMS: 1000},
	} {
		var wrong *FieldError
		if _, err := Normalize(r); !errors.As(err, &wrong) || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: %v, which names no %s", r, err, field)
		}
	}
}

// TestCheckDuration checks which requests are refused because they take too long, and the text of the refusal.
func TestCheckDuration(t *testing.T) {
	for _, tt := range []struct {
		name                        string
		peers, ways, count, timeout int
		want                        []string // of the refusal; none where it fits
	}{
		{"no peers", 0, 0, 100, 10_000, nil},
		{"a peer, as much as there is", 1, 3, 100, 10_000, nil},
		{"many peers", 10_000, 20_000, 3, 1000, nil},
		{"half the packets of many peers", 1000, 2000, 90, 1000, nil},
		{"all the packets of many peers", 1000, 2000, 100, 1000, []string{"count is 100", "200000 packets", "1000 peers", "50000 ms", "ask for a count of 90 at most, or fewer peers"}},
		{"long times of many peers", 1000, 2000, 10, 10_000, []string{"timeout_ms of 10000", "20000 packets", "a count of 9 at most", "a timeout_ms of 9216 at most"}},
		{"both", 1000, 2000, 100, 10_000, []string{"488281 ms", "longer than 45000", "ask for a count of 9 at most, or fewer peers"}},
		{"too many peers", 100_000, 200_000, 1, 1000, []string{"200000 packets", "100000 peers", "ask for fewer peers"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := checkDuration(tt.peers, tt.ways, api.ProbeRequest{Count: tt.count, TimeoutMS: tt.timeout})
			var wrong *FieldError
			if errors.As(err, &wrong) != (tt.want != nil) {
				t.Fatal(err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v, which does not say %q", err, want)
				}
			}
		})
	}
}

func TestSelectPeers(t *testing.T) {
	peers := make([]api.Peer, 30)
	for i := range peers {
		peers[i].Node = fmt.Sprintf("host-%d", i)
	}
	if got, err := SelectPeers(peers, []string{"host-7"}); err != nil || len(got) != 1 || got[0].Node != "host-7" {
		t.Errorf("%+v, %v", got, err)
	}
	_, err := SelectPeers(peers, []string{"host-7", "host-77"})
	if err == nil || !strings.Contains(err.Error(), `"host-77"`) || !strings.Contains(err.Error(), "and 10 more") {
		t.Error(err)
	}
}

// narrowPinger is a line on which packets up to a size pass, after a delay; it never ends by itself.
type narrowPinger struct{ most int }

func (w narrowPinger) tunnelErrors(netip.Addr, int) []answer { return nil }

func (w narrowPinger) send(ctx context.Context, e echo, _ time.Duration) func() answer {
	return func() answer {
		if e.size <= w.most {
			return answer{outcome: gotReply, from: e.to, roundTrip: time.Millisecond}
		}
		<-ctx.Done()
		return answer{outcome: interrupted}
	}
}

// lossyPinger is a line on which packets up to a size pass, except those it loses.
type lossyPinger struct {
	narrowPinger
	mu    sync.Mutex
	small int // how many more of the shortest packets it loses
	lose  int // how many more longer packets it loses
}

func (m *lossyPinger) send(ctx context.Context, e echo, timeout time.Duration) func() answer {
	m.mu.Lock()
	defer m.mu.Unlock()
	lost := func() answer { return answer{outcome: noAnswer} }
	if e.size > m.most {
		return lost
	}
	of := &m.lose
	if e.size == minSize {
		of = &m.small
	}
	if *of > 0 {
		*of--
		return lost
	}
	return m.narrowPinger.send(ctx, e, timeout)
}

// TestLossWhileSearching checks that packets lost by chance do not make a path look narrow.
func TestLossWhileSearching(t *testing.T) {
	r, err := Normalize(api.ProbeRequest{IntervalMS: 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ most, lose, want int }{{1500, 3, 1500}, {1500, 5, 1500}, {1500, 9, 1500}, {1400, 3, 1400}, {1400, 7, 1400}} {
		w := way{path: api.PathOverlay, to: peer4, mtu: 1500}
		if got := measure(context.Background(), &lossyPinger{narrowPinger: narrowPinger{tt.most}, lose: tt.lose}, w, r); got.Largest != tt.want {
			t.Errorf("%d of %d lost: %+v", tt.lose, tt.most, got)
		}
	}
}

// TestLossOfAllFull checks that full packets are sent again if none was answered and small ones were
// lost, too: the path may lose packets of any size.
func TestLossOfAllFull(t *testing.T) {
	r, err := Normalize(api.ProbeRequest{IntervalMS: 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ small, lose, sent, answered int }{{0, 3, 3, 0}, {1, 2, 3, 1}, {1, 7, 9, 2}, {1, 1000, 12, 0}} {
		w := way{path: api.PathOverlay, to: peer4, mtu: 1500}
		got := measure(context.Background(), &lossyPinger{narrowPinger: narrowPinger{1500}, small: tt.small, lose: tt.lose}, w, r)
		if got.Full.Sent != tt.sent || got.Full.Answered != tt.answered {
			t.Errorf("%d small and %d full packets lost: %+v", tt.small, tt.lose, got)
		}
	}
}

// TestSilenceOfGateway checks that all lost packets to the gateway of a peer's containers count, if no error arrives either:
// whether the peer drops echo requests shows after more than one.
func TestSilenceOfGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := Normalize(api.ProbeRequest{Count: 5})
		if err != nil {
			t.Fatal(err)
		}
		w := way{path: api.PathOverlay, to: peer4, mtu: 1500, hops: 1, hostPrefixes: hostPrefixes([]netip.Addr{peer4})}
		got := measure(t.Context(), &lossyPinger{}, w, r)
		if want := (api.ProbedSize{Bytes: r.Small, Sent: 6}); got.Small != want {
			t.Errorf("%+v, want %+v", got.Small, want)
		}
	})
}

// TestInterrupted checks that a path not probed in time says so, and that finished results stay.
func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the time that a busy machine takes does not count
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		r, err := Normalize(api.ProbeRequest{IntervalMS: 10})
		if err != nil {
			t.Fatal(err)
		}
		p := examplePlanner("vxlan")
		got := probeAll(ctx, narrowPinger{1450}, p, []api.Peer{examplePeer()}, r)[0]
		checkProbe(t, got, true, `
overlay 10.5.2.0 3/3 3/3 largest 1450 of 1450, echo reply
overlay fd00:5:0:2:: 3/3 3/3 largest 1450 of 1450, echo reply
underlay 192.0.2.2 not probed: the probe ended before this was done`)
	})
}
