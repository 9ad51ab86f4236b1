package backendtest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/seed"
)

func testAdvertise(t *testing.T, s Suite) {
	h := newHost(t, s)
	before := h.dump()
	first := h.advertise(h.b)
	if got := h.dump(); got != before {
		t.Errorf("advertise changed the host:\n%s", diff(got, before))
	}
	if first.MTU < 1280 || first.MTU > 1500 {
		t.Errorf("mtu %d", first.MTU)
	}
	h.apply(h.state(h.peer(2, "node-2")))
	again := h.advertise(h.b)
	h.restart()
	fresh := h.advertise(h.b)
	if string(first.Attributes) != string(again.Attributes) || string(first.Attributes) != string(fresh.Attributes) ||
		first.MTU != again.MTU || first.MTU != fresh.MTU {
		t.Errorf("advertised %d %s, after apply %d %s, after restart %d %s",
			first.MTU, first.Attributes, again.MTU, again.Attributes, fresh.MTU, fresh.Attributes)
	}
}

func testApply(t *testing.T, s Suite) {
	h := newHost(t, s)
	state := h.state(h.peer(2, "node-2"), h.peer(3, "node-3"))
	r := h.apply(state)
	if r.Peers != 2 || len(r.Skipped) != 0 || len(r.Repaired) != 0 {
		t.Errorf("report %+v", r)
	}
	if wrote := r.Writes > 0; wrote == s.LeasesOnly {
		t.Errorf("first apply made %d writes", r.Writes)
	}
	want := h.dump()
	h.unchanged(state)
	// The same peers in another order are the same state.
	slices.Reverse(state.Peers)
	h.unchanged(state)
	h.restart()
	if r := h.apply(state); r.Peers != 2 {
		t.Errorf("report after a restart %+v", r)
	}
	h.wantDump(want)
	h.unchanged(state)
}

func testSmallerMTU(t *testing.T, s Suite) {
	h := newHost(t, s)
	state := h.state(h.peer(2, "node-2"), h.peer(3, "node-3"))
	plain := func() string { h.apply(state); return h.dump() }()
	smaller := (state.MTU - 100) / 16 * 16
	state.Peers[0].MTU, state.Peers[1].MTU = smaller, state.MTU+100
	h.apply(state)
	for _, tt := range []struct {
		to    string
		limit bool
	}{{"10.5.2.1", true}, {"fd00:5:0:2::1", true}, {"10.5.3.1", false}, {"fd00:5:0:3::1", false}} {
		route := h.ns.Sh("ip route get " + tt.to)
		if got := strings.Contains(route, fmt.Sprintf(" mtu %d ", smaller)); got != tt.limit {
			t.Errorf("limited to %d: %t, %s", smaller, got, route)
		}
	}
	h.unchanged(state)
	h.restart()
	h.apply(state)
	h.unchanged(state)
	state.Peers[0].MTU, state.Peers[1].MTU = 0, 0
	h.apply(state)
	h.wantDump(plain)
}

func testSkips(t *testing.T, s Suite) {
	h := newHost(t, s)
	good, other := h.peer(2, "node-2"), h.peer(3, "node-3")
	h.apply(h.state(good, other))
	want := h.dump()

	stranger := h.peer(4, "node-4")
	stranger.Backend = "carrier-pigeon"
	bad := map[string]backend.Peer{"carrier-pigeon": stranger}
	if s.Bad != nil {
		for reason, p := range s.Bad(h.peer(4, "node-4")) {
			bad[reason] = p
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(bad)) {
		p := bad[reason]
		t.Run(reason, func(t *testing.T) {
			h := *h
			h.t = t
			p.Node = "the-bad-one"
			r := h.apply(h.state(good, p, other))
			if len(r.Skipped) != 1 || r.Skipped[0].Node != "the-bad-one" || !strings.Contains(r.Skipped[0].Reason, reason) || r.Peers != 2 {
				t.Errorf("report %+v, want one skip that says %q", r, reason)
			}
			h.wantDump(want)
			h.unchanged(h.state(good, p, other))
		})
	}
}

const foreignRoutes = `ip route add 10.5.200.0/24 via 192.0.2.99 onlink dev eth0 proto static
ip route add 10.6.0.0/16 via 192.0.2.99 onlink dev eth0 proto 108
ip -6 route add fd00:5:0:c8::/64 via 2001:db8::99 dev eth0 proto static
ip -6 route add fd00:6::/48 via 2001:db8::99 dev eth0 proto 108
ip route add 10.5.201.0/24 via 192.0.2.99 onlink dev eth0 proto 108 table 77`

func testForeign(t *testing.T, s Suite) {
	h := newHost(t, s)
	if s.IPv6Underlay {
		h.ns.Sh("ip addr add 192.0.2.1/24 dev eth0")
	}
	h.ns.Sh(foreignRoutes)
	before := h.dump()
	state := h.state(h.peer(2, "node-2"))
	h.apply(state)
	h.wantLines(before)
	h.unchanged(state)
	h.apply(backend.State{})
	h.wantDump(before)
}

func testZero(t *testing.T, s Suite) {
	h := newHost(t, s)
	before := h.dump()
	// If there is nothing to remove, nothing is done.
	h.unchanged(backend.State{})
	h.wantDump(before)
	state := h.state(h.peer(2, "node-2"), h.peer(3, "node-3"))
	h.apply(state)
	h.apply(backend.State{})
	h.wantDump(before)
	h.unchanged(backend.State{})

	// A new process removes what another one left.
	h.apply(state)
	h.restart()
	h.apply(backend.State{})
	h.wantDump(before)

	// What another network has in a pool by then stays.
	h.apply(state)
	h.ns.Sh("ip route add unreachable 10.5.200.0/24 proto 108")
	h.except = []netip.Prefix{netip.MustParsePrefix("10.5.200.0/22")}
	h.restart()
	h.apply(backend.State{})
	h.ns.Sh("ip route del unreachable 10.5.200.0/24 proto 108")
	h.wantDump(before)
}

// testAnyOrder checks that each state leaves the host the same, whichever states came before.
func testAnyOrder(t *testing.T, s Suite) {
	h := newHost(t, s)
	base := h.state(h.peer(2, "node-2"), h.peer(3, "node-3"))
	moved := base
	moved.Peers = []backend.Peer{h.peer(2, "node-2-reborn"), h.peer(3, "node-3")}
	moved.Peers[0].PublicIPs = s.publicIPs(12)
	swapped := base
	swapped.Peers = []backend.Peer{h.peer(2, "node-3"), h.peer(3, "node-2")}
	fewer := base
	fewer.Peers = base.Peers[1:]
	renumbered := base
	renumbered.Subnets = subnets(9)
	exchanged := base // we have what a peer had, and vice versa
	exchanged.Subnets = subnets(2)
	exchanged.Peers = []backend.Peer{h.peer(1, "node-2"), h.peer(3, "node-3")}
	smaller := base
	smaller.MTU -= 50
	alone := base
	alone.Peers = nil
	states := []backend.State{base, moved, swapped, fewer, renumbered, exchanged, smaller, alone, {}}

	var want []string
	for _, state := range states {
		h.apply(backend.State{})
		h.restart()
		h.apply(state)
		want = append(want, h.dump())
	}
	rnd := seed.Rand(t)
	before := len(states) - 1
	for range 4 * len(states) {
		i := rnd.IntN(len(states))
		if rnd.IntN(8) == 0 {
			h.restart()
		}
		h.apply(states[i])
		got := h.dump()
		if got != want[i] {
			h.wantDump(want[i]) // polls, because the kernel does some things by itself
		}
		if r := h.apply(states[i]); r.Writes != 0 {
			t.Fatalf("state %d after state %d: second apply wrote: %+v", i, before, r)
		}
		before = i
	}
}

func testPeerChanges(t *testing.T, s Suite) {
	h := newHost(t, s)
	two, three := h.peer(2, "node-2"), h.peer(3, "node-3")
	h.apply(h.state(two, three))

	reborn := h.peer(2, "node-2-reborn")
	reborn.PublicIPs = s.publicIPs(12)
	r := h.apply(h.state(reborn, three))
	if r.Writes == 0 || len(r.Repaired) != 0 || r.Peers != 2 {
		t.Errorf("changed peer: %+v", r)
	}
	h.unchanged(h.state(reborn, three))

	r = h.apply(h.state(three))
	if r.Writes == 0 || len(r.Repaired) != 0 || r.Peers != 1 {
		t.Errorf("removed peer: %+v", r)
	}
	h.unchanged(h.state(three))
	for _, trace := range []string{"10.5.2.", "fd00:5:0:2:", "192.0.2.12 ", "2001:db8::c "} {
		if dump := h.dump(); strings.Contains(dump, trace) {
			t.Errorf("%q is left of the removed peer:\n%s", trace, dump)
		}
	}
}

func testLeftovers(t *testing.T, s Suite) {
	h := newHost(t, s)
	state := h.state(h.peer(2, "node-2"))
	h.apply(state)
	want := h.dump()

	old := state
	old.Subnets = subnets(9)
	old.Peers = []backend.Peer{h.peer(2, "node-2-old")}
	for n := 20; n < 40; n++ {
		old.Peers = append(old.Peers, h.peer(n, fmt.Sprint("node-", n)))
	}
	h.restart()
	h.apply(old)
	h.restart()
	r := h.apply(state)
	if r.Writes == 0 || r.Peers != 1 {
		t.Errorf("report %+v", r)
	}
	h.wantDump(want)
	h.unchanged(state)
}

func testClose(t *testing.T, s Suite) {
	h := newHost(t, s)
	state := h.state(h.peer(2, "node-2"))
	h.apply(state)
	// A device that no process serves is listed with "linkdown".
	list := func() string {
		return strings.ReplaceAll(h.ns.Sh("ip route show proto 108 | sort; ip -6 route show proto 108 | sort"), "linkdown ", "")
	}
	routes := list()
	for range 2 {
		if err := h.b.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	if left := list(); left != routes || routes == "" {
		t.Errorf("routes after close\n%s\nbefore\n%s", left, routes)
	}
}

func testLostRoutes(t *testing.T, s Suite) {
	h := newHost(t, s)
	state := h.state(h.peer(2, "node-2"), h.peer(3, "node-3"))
	h.apply(state)
	want := h.dump()
	for _, loss := range []struct{ name, script string }{
		{"flush", "ip route flush proto 108; ip -6 route flush proto 108"},
		{"flush of IPv6 alone", "ip -6 route flush proto 108"},
	} {
		h.ns.Sh(loss.script)
		r := h.apply(state)
		if r.Writes == 0 || len(r.Repaired) == 0 {
			t.Errorf("%s: report %+v", loss.name, r)
		}
		h.wantDump(want)
		h.unchanged(state)
	}
}

// testPartial checks that, for a state that may be out of date, missing entries are added and
// existing ones are left alone.
func testPartial(t *testing.T, s Suite) {
	h := newHost(t, s)
	two, three := h.peer(2, "node-2"), h.peer(3, "node-3")
	h.apply(h.state(two, three))
	full := h.dump()
	tables, _, _ := strings.Cut(full, peersTitle) // what a process has ends with it
	h.restart()
	old := h.state(two)
	old.Partial = true
	reborn := h.peer(2, "node-2-before")
	reborn.PublicIPs = s.publicIPs(12)
	for _, tt := range []struct {
		name  string
		peers []backend.Peer
	}{{"one", []backend.Peer{two}}, {"none", nil}, {"one as it was before", []backend.Peer{reborn}}, {"one again", []backend.Peer{two}}} {
		old.Peers = tt.peers
		if r := h.apply(old); len(r.Repaired) != 0 {
			t.Errorf("%s: report %+v", tt.name, r)
		}
		h.wantLines(tables)
	}
	h.restart()
	old.Peers = []backend.Peer{two, three}
	h.apply(old)
	harm := []string{"ip route flush proto 108; ip -6 route flush proto 108"}
	if s.Type.Device {
		harm = append(harm, "ip link set "+linkName+" down", "ip addr flush dev "+linkName, "ip link del "+linkName)
	}
	for _, script := range harm {
		h.ns.Sh(script)
		if r := h.apply(old); r.Writes == 0 || len(r.Repaired) == 0 {
			t.Errorf("%s: report %+v", script, r)
		}
	}
	now := h.state(two, three)
	if r := h.apply(now); len(r.Repaired) != 0 {
		t.Errorf("what had been left alone was repaired: %+v", r)
	}
	h.wantDump(full)
	h.unchanged(now)
	// What another program has changed since is repaired as soon as the whole state is known.
	h.apply(old)
	h.ns.Sh("ip route replace 10.5.2.0/24 dev eth0")
	h.apply(old)
	wantRouteChanged(t, "a change while the state was partial", h.apply(now))
	h.wantDump(full)
}

// wantRouteChanged checks that the only repair was that of one route.
func wantRouteChanged(t *testing.T, what string, r backend.Report) {
	t.Helper()
	if r.Writes == 0 || len(r.Repaired) != 1 || r.Repaired[0].Part != backend.Routes || r.Repaired[0].Fault != "routes were changed" {
		t.Errorf("%s: report %+v", what, r)
	}
}

// testReplacedRoutes checks that a route put by hand in the place of ours is replaced, and that a
// daemon's route is not.
func testReplacedRoutes(t *testing.T, s Suite) {
	h := newHost(t, s)
	state := h.state(h.peer(2, "node-2"), h.peer(3, "node-3"))
	h.apply(state)
	want := h.dump()
	if s.IPv6Underlay {
		h.ns.Sh("ip addr add 192.0.2.1/24 dev eth0")
		want = h.dump()
	}
	for _, script := range []string{
		"ip route replace 10.5.2.0/24 via 192.0.2.99 onlink dev eth0",
		"ip route replace 10.5.2.0/24 via 192.0.2.99 onlink dev eth0 proto static",
		"ip route replace 10.5.2.0/24 via 192.0.2.99 onlink dev eth0 proto 108",
		"ip route replace 10.5.2.0/24 dev eth0",
		"ip route replace blackhole 10.5.2.0/24 proto 108",
		"ip route replace blackhole 10.5.2.0/24",
		"ip route replace unreachable 10.5.2.0/24 proto static",
		"ip route replace prohibit 10.5.2.0/24",
		"ip -6 route replace fd00:5:0:2::/64 via 2001:db8::99 dev eth0",
		"ip -6 route replace fd00:5:0:2::/64 dev eth0",
		"ip -6 route replace fd00:5:0:2::/64 via 2001:db8::99 dev eth0 proto 108",
		"ip -6 route replace blackhole fd00:5:0:2::/64",
		"ip -6 route replace unreachable fd00:5:0:2::/64",
		"ip -6 route replace prohibit fd00:5:0:2::/64 proto static",
	} {
		h.ns.Sh(script)
		wantRouteChanged(t, script, h.apply(state))
		h.wantDump(want)
		h.unchanged(state)
	}
	for _, script := range []string{
		"ip route replace 10.5.2.0/24 dev eth0 proto bird",
		"ip route replace blackhole 10.5.2.0/24 proto bird",
		"ip route replace 10.5.2.0/24 dev eth0 proto kernel",
	} {
		h.ns.Sh(script)
		theirs := h.ns.Sh("ip route show 10.5.2.0/24")
		for range 2 {
			_, err := h.tryApply(state)
			if err == nil || !strings.Contains(err.Error(), "10.5.2.0/24") {
				t.Errorf("%s: error %v does not name the route", script, err)
			}
			wantPart(t, err, backend.Routes)
		}
		// It does not keep others from being repaired.
		h.ns.Sh("ip route replace 10.5.3.0/24 dev eth0")
		r, err := h.tryApply(state)
		wantRouteChanged(t, script, r)
		if err == nil || strings.Contains(err.Error(), "10.5.3.0/24") {
			t.Errorf("%s: error %v, want one about the other route alone", script, err)
		}
		if got := h.ns.Sh("ip route show 10.5.2.0/24"); got != theirs {
			t.Errorf("%s: made it %s", script, got)
		}
		h.ns.Sh("ip route del 10.5.2.0/24")
		h.apply(state)
		h.wantDump(want)
	}
}

func testDevice(t *testing.T, s Suite) {
	h := newHost(t, s)
	state := h.state(h.peer(2, "node-2"))
	h.apply(state)
	check := func(n int) {
		t.Helper()
		out := h.ns.Sh("ip -o addr show dev " + linkName + " scope global")
		if strings.Count(out, "\n") != 2 {
			t.Errorf("addresses of the device:\n%s", out)
		}
		for _, subnet := range subnets(n) {
			if want := fmt.Sprintf(" %s/%d ", subnet.Addr(), subnet.Addr().BitLen()); !strings.Contains(out, want) {
				t.Errorf("no address %s on the device:\n%s", want, out)
			}
		}
		if out := h.ns.Sh("ip -o link show " + linkName); !strings.Contains(out, fmt.Sprintf(" mtu %d ", state.MTU)) || !strings.Contains(out, ",UP") {
			t.Errorf("device: %s, want mtu %d and up", out, state.MTU)
		}
	}
	check(1)
	index := h.ns.Index(linkName)
	state.Subnets = subnets(9)
	h.apply(state)
	check(9)
	state.MTU -= 100
	h.apply(state)
	check(9)
	want := h.dump()
	for _, meddling := range []string{
		"ip link set " + linkName + " down",
		"ip link set " + linkName + " mtu 1290",
		"ip addr flush dev " + linkName,
		"ip addr add 10.99.0.1/32 dev " + linkName,
	} {
		h.ns.Sh(meddling)
		if r := h.apply(state); r.Writes == 0 || len(r.Repaired) == 0 || r.Repaired[0].Part != backend.Device {
			t.Errorf("%s: report %+v", meddling, r)
		}
		h.wantDump(want)
		h.unchanged(state)
	}
	if now := h.ns.Index(linkName); now != index {
		t.Errorf("the device was recreated: ifindex %d, then %d", index, now)
	}
}

func testDeviceDeleted(t *testing.T, s Suite) {
	h := newHost(t, s)
	state := h.state(h.peer(2, "node-2"), h.peer(3, "node-3"))
	h.apply(state)
	want := h.dump()
	for range 3 {
		h.ns.Sh("ip link del " + linkName)
		r := h.apply(state)
		if r.Writes == 0 || len(r.Repaired) == 0 || r.Peers != 2 {
			t.Errorf("report %+v", r)
		}
		h.wantDump(want)
		h.unchanged(state)
	}
}

// testForeignDevice checks that a device that only has our name is not treated as ours, and that packets to the network
// are refused as long as it is there.
func testForeignDevice(t *testing.T, s Suite) {
	h := newHost(t, s)
	h.ns.Sh("ip link add " + linkName + " type bridge")
	before := h.ns.Sh("ip -o -d link show " + linkName)
	_, err := h.tryApply(h.state(h.peer(2, "node-2")))
	if err == nil || !strings.Contains(err.Error(), linkName) {
		t.Errorf("error %v does not name the device", err)
	}
	wantPart(t, err, backend.Device)
	for _, pool := range pools() {
		if routes := h.routesTo(pool); !strings.HasPrefix(routes, "unreachable ") {
			t.Errorf("routes to %s:\n%s", pool, routes)
		}
	}
	if _, err := h.tryApply(backend.State{}); err != nil {
		t.Errorf("zero state: %v", err)
	}
	if after := h.ns.Sh("ip -o -d link show " + linkName); after != before {
		t.Errorf("the device was touched:\n%s\nbefore\n%s", after, before)
	}
}
