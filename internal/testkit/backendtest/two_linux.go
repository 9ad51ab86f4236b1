package backendtest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/pathtest"
	"github.com/lenonet/leno/internal/testkit/waiting"
)

// Partner is another backend that a network of the suite's is switched from and to.
type Partner struct {
	Type    backend.Type
	Options string // as JSON; "" is none
}

// suite returns what a host needs to know of the partner.
func (p Partner) suite(s Suite) Suite {
	return Suite{Type: p.Type, Options: p.Options, IPv6Underlay: s.IPv6Underlay}
}

// eachWay runs a test of two backends for each partner, with the suite's backend as the new one and as the old one. For
// the suite's own type with its defaults, both ways are the same.
func eachWay(t *testing.T, s Suite, run func(t *testing.T, before, after Suite)) {
	s.Dump = nil // the hosts' namespaces are all that is compared
	for _, p := range s.Partners {
		other := p.suite(s)
		t.Run(strings.TrimSpace("from "+p.Type.Name+" "+p.Options), func(t *testing.T) {
			t.Parallel()
			run(t, other, s)
		})
		if p.Type.Name == s.Type.Name && s.Options == "" {
			continue
		}
		t.Run(strings.TrimSpace("to "+p.Type.Name+" "+p.Options), func(t *testing.T) {
			t.Parallel()
			run(t, s, other)
		})
	}
}

// beside returns the host with another backend of the network, which has the network's other device.
func (h *host) beside(s Suite) *host {
	other := *h
	other.suite, other.dir = s, h.t.TempDir()
	other.link, other.alias = backend.LinkNameB(network), backend.LinkAliasB(network)
	other.b = other.open(other.node)
	return &other
}

// side is a host with two backends of one network.
type side struct {
	before, after *host // the same host with the backend that the network is switched from, and to
	peer          *side
	moved         []netip.Prefix            // destinations whose routes belong to the backend after
	known         map[*host]json.RawMessage // the peer's attributes for each backend, as far as they are known
	tester        *pathtest.Tester
	answered      map[uint64]bool // the ids of the test packets that the peer has answered
}

func newSides(t *testing.T, before, after Suite) (a, b *side) {
	t.Helper()
	sides := [2]*side{}
	one, two := newHosts(t, before)
	for i, h := range []*host{one, two} {
		h.newContainers()
		h.poll("the containers' addresses are usable", func() error {
			if out := h.ns.Sh("ip -o -6 addr show dev br0"); strings.Contains(out, "tentative") {
				return fmt.Errorf("%s", out)
			}
			return nil
		})
		if isStrict(before, after) {
			h.ns.Sh("sysctl -qw net.ipv4.conf.all.rp_filter=1")
		}
		sides[i] = &side{
			before: h, after: h.beside(after), known: map[*host]json.RawMessage{},
			tester: pathtest.New(), answered: map[uint64]bool{},
		}
		t.Cleanup(sides[i].tester.Close)
	}
	a, b = sides[0], sides[1]
	a.peer, b.peer = b, a
	return a, b
}

// isStrict reports whether the reverse path filter is strict in a test. Packets that are not encapsulated arrive on the
// underlay, whose filter is the operator's.
func isStrict(before, after Suite) bool {
	return before.Type.Device && after.Type.Device && !before.WiderPaths && !after.WiderPaths
}

// destinations returns what there are routes to.
func (s *side) destinations() []netip.Prefix {
	return append(subnets(s.peer.before.number), pools()...)
}

// learn makes the peer's attributes for one of the backends known.
func (s *side) learn(h *host) {
	theirs := s.peer.before
	if h == s.after {
		theirs = s.peer.after
	}
	s.known[h] = theirs.advertise(theirs.b).Attributes
}

// elsewhere returns the destinations whose routes do not belong to one of the backends.
func (s *side) elsewhere(h *host) []netip.Prefix {
	if h == s.before {
		return s.moved
	}
	return slices.DeleteFunc(s.destinations(), func(p netip.Prefix) bool { return slices.Contains(s.moved, p) })
}

// state returns the state for one of the backends.
func (s *side) state(h *host) backend.State {
	return backend.State{
		Subnets:   subnets(h.number),
		MTU:       min(s.before.advertise(s.before.b).MTU, s.after.advertise(s.after.b).MTU),
		Underlay:  h.underlay(),
		Elsewhere: s.elsewhere(h),
		Peers: []backend.Peer{{
			Node:       s.peer.before.node,
			Subnets:    subnets(s.peer.before.number),
			PublicIPs:  h.suite.publicIPs(s.peer.before.number),
			Backend:    h.suite.Type.Name,
			Attributes: s.known[h],
		}},
	}
}

// apply applies the state to one of the backends, which has nothing to repair.
func (s *side) apply(h *host) backend.Report {
	h.t.Helper()
	r := h.apply(s.state(h))
	if len(r.Repaired) > 0 || len(r.Skipped) > 0 || s.known[h] != nil && r.Peers != 1 {
		h.t.Errorf("%s reports %+v", h.suite.Type.Name, r)
	}
	for _, node := range r.Unproven {
		if node != s.peer.before.node {
			h.t.Errorf("%s reports %q unproven", h.suite.Type.Name, node)
		}
	}
	return r
}

// answers returns an error if the peer does not answer test packets on the ways that the backend after reports: a handshake
// proves less.
func (s *side) answers(r backend.Report) error {
	h := s.after
	packets := map[string][]pathtest.Packet{} // by device
	for i, subnet := range subnets(s.peer.after.number) {
		link, p := h.link, pathtest.Packet{ID: uint64(i), From: subnets(h.number)[i].Addr(), To: subnet.Addr(), Via: subnet.Addr()}
		if !h.suite.Type.Device || slices.Contains(r.Direct, subnet) {
			link = underlay
			p.From, _, _ = h.underlay().SourceOf(subnet.Addr())
			p.Via, _ = backend.Peer{PublicIPs: h.suite.publicIPs(s.peer.after.number)}.PublicIP(subnet.Addr())
		}
		p.Behind = backend.AddrBehind(subnet)
		packets[link] = append(packets[link], p)
	}
	var errs []error
	for link, sent := range packets {
		h.ns.Do(func() {
			answered, err := s.tester.Test(link, sent)
			maps.Copy(s.answered, answered)
			errs = append(errs, err)
		})
	}
	if err := errors.Join(errs...); err != nil || len(s.answered) < len(subnets(h.number)) {
		return fmt.Errorf("answers to %v: %v, %v", packets, s.answered, err)
	}
	return nil
}

// move gives the routes to exactly these destinations to the backend after.
func (s *side) move(destinations ...netip.Prefix) {
	s.before.t.Helper()
	order := []*host{s.before, s.after}
	if len(destinations) < len(s.moved) {
		slices.Reverse(order)
	}
	s.moved = destinations
	events := s.before.events(func() {
		for _, h := range order {
			s.apply(h)
		}
	})
	for _, e := range events {
		if isDeletedSubnet(e) {
			s.before.t.Errorf("a route was deleted: %s", e)
		}
	}
	for _, h := range order {
		if r := s.apply(h); r.Writes != 0 {
			h.t.Errorf("%s wrote again: %+v", h.suite.Type.Name, r)
		}
	}
	for _, subnet := range subnets(s.peer.before.number) {
		s.wantRoute(subnet)
	}
}

// wantRoute checks that there is one route to a subnet, into the device of the backend that it belongs to.
func (s *side) wantRoute(subnet netip.Prefix) {
	s.before.t.Helper()
	h := s.before
	if slices.Contains(s.moved, subnet) {
		h = s.after
	}
	routes := h.routesTo(subnet)
	link := underlay
	if h.suite.Type.Device && !h.suite.WiderPaths {
		link = h.link
	}
	if strings.Count(routes, "\n") != 1 || !strings.Contains(routes, " dev "+link+" ") {
		h.t.Errorf("routes to %s, which belongs to %s:\n%s", subnet, h.suite.Type.Name, routes)
	}
}

// routesTo returns the routes to exactly this subnet, one a line.
func (h *host) routesTo(subnet netip.Prefix) string {
	family := map[bool]string{true: "-4", false: "-6"}[subnet.Addr().Is4()]
	return h.ns.Sh(fmt.Sprintf("ip %s -o route show exact %s", family, subnet))
}

// testTwo switches a network with traffic from one backend to the other, one host after the other, back and forth again.
// No packet is lost, and nothing of the old backend is left.
func testTwo(t *testing.T, s Suite) {
	eachWay(t, s, func(t *testing.T, before, after Suite) {
		a, b := newSides(t, before, after)
		sides := []*side{a, b}
		clean := a.before.dump()
		for _, side := range sides {
			side.learn(side.before)
			side.apply(side.before)
		}
		for pool := range pools() {
			a.before.poll("ping", func() error { return a.before.ping(b.before, pool, 100) })
			b.before.poll("ping", func() error { return b.before.ping(a.before, pool, 100) })
		}
		traffic := startTraffic(t, a.before, b.before)
		defer traffic.stop()

		// The peers' attributes are not known yet.
		for _, side := range sides {
			side.apply(side.after)
		}
		traffic.settle("the other backend was added")
		b.learn(b.after)
		if r := b.apply(b.after); len(r.Unproven) == 0 {
			b.move(b.destinations()...)
			traffic.settle("one host sends by the new backend, and the other does not know its attributes")
			b.move()
		}
		a.learn(a.after)
		for _, side := range sides {
			side.after.poll("the peer is proven", func() error {
				r := side.apply(side.after)
				if len(r.Unproven) > 0 {
					return fmt.Errorf("%+v", r)
				}
				return side.answers(r)
			})
		}
		for _, step := range []struct {
			what  string
			side  *side
			moved []netip.Prefix
		}{
			{"the first host moved one family", a, a.destinations()[:1]},
			{"the first host moved all", a, a.destinations()},
			{"the second host moved the other family", b, b.destinations()[1:]},
			{"the second host moved all", b, b.destinations()},
			{"the first host moved back", a, nil},
			{"the second host moved back", b, nil},
			{"the second host moved again", b, b.destinations()},
			{"the first host moved again", a, a.destinations()},
		} {
			step.side.move(step.moved...)
			traffic.settle(step.what)
		}
		for _, side := range sides {
			elsewhere := backend.State{Elsewhere: side.destinations()}
			side.before.apply(elsewhere)
			traffic.settle("the old backend was removed")
			side.before.unchanged(elsewhere)
			if r := side.apply(side.after); r.Writes != 0 {
				t.Errorf("the new backend wrote: %+v", r)
			}
		}
		traffic.stop()

		switched := a.after.dump()
		a.after.apply(backend.State{})
		a.after.wantDump(clean)
		a.apply(a.after)
		a.after.wantDump(switched)
	})
}

// testLeft checks that a route of the backend before is no fault to the one that takes its destination over, not even if
// that has no use for it.
func testLeft(t *testing.T, s Suite) {
	eachWay(t, s, func(t *testing.T, before, after Suite) {
		a, _ := newSides(t, before, after)
		for _, h := range []*host{a.before, a.after} {
			a.learn(h)
			a.apply(h)
		}
		a.moved = a.destinations()
		state := a.state(a.after)
		state.Peers = nil
		if r := a.after.apply(state); r.Writes < 2 || len(r.Repaired) > 0 {
			t.Errorf("report %+v", r)
		}
		for _, subnet := range subnets(2) {
			if routes := a.after.routesTo(subnet); routes != "" {
				t.Errorf("left: %s", routes)
			}
		}
		a.after.unchanged(state)
	})
}

// testTwoDevices checks that neither of a network's two devices is taken for the other, also after it was renamed.
func testTwoDevices(t *testing.T, s Suite) {
	eachWay(t, s, func(t *testing.T, before, after Suite) {
		if !before.Type.Device || !after.Type.Device {
			return
		}
		a, _ := newSides(t, before, after)
		for _, h := range []*host{a.before, a.after} {
			a.learn(h)
			a.apply(h)
		}
		links := func() string { return a.before.ns.Sh("ip -o link | grep -o 'leno-test[^:@]*\\|alias .*' | sort") }
		want := links()
		if n := strings.Count(want, "\n"); n != 4 {
			t.Fatalf("devices\n%s", want)
		}
		for _, tt := range []struct{ renamed, other *host }{{a.before, a.after}, {a.after, a.before}} {
			tt.renamed.ns.Sh(fmt.Sprintf("ip link set %s down; ip link set %[1]s name other; ip link set other up", tt.renamed.link))
			if r := a.apply(tt.other); r.Writes != 0 {
				t.Errorf("%s wrote: %+v", tt.other.suite.Type.Name, r)
			}
			r, err := tt.renamed.tryApply(a.state(tt.renamed))
			if err != nil || len(r.Repaired) == 0 || r.Repaired[0].Fault != "device was renamed" || r.Repaired[0].Detail != "to other" {
				t.Errorf("%s: %+v, %v", tt.renamed.suite.Type.Name, r, err)
			}
			a.apply(tt.other)
			if got := links(); got != want {
				t.Errorf("devices\n%swant\n%s", got, want)
			}
		}
	})
}

// traffic is packets between the containers of two hosts, both ways and of each family.
type traffic struct {
	t       *testing.T
	streams []*stream
	once    sync.Once
}

// stream is numbered packets one way.
type stream struct {
	name       string
	from, to   *net.UDPConn
	stopped    chan struct{}
	goroutines sync.WaitGroup

	mu       sync.Mutex
	sent     int
	received map[int]bool
	complete int   // all packets before this one have arrived
	failed   error // the first error of the sender
}

// streamInterval is the time between two packets of a stream.
const streamInterval = 5 * time.Millisecond

// mostUnderWay limits how many packets of a stream have not arrived yet. On a busy machine their receiver may have to wait
// for its turn, and a queue on the way has no room for more.
const mostUnderWay = 50

func startTraffic(t *testing.T, a, b *host) *traffic {
	t.Helper()
	traffic := &traffic{t: t}
	for _, way := range [][2]*host{{a, b}, {b, a}} {
		for pool := range pools() {
			traffic.streams = append(traffic.streams, startStream(t, way[0], way[1], pool))
		}
	}
	return traffic
}

func startStream(t *testing.T, from, to *host, pool int) *stream {
	t.Helper()
	address := func(h *host) *net.UDPAddr {
		return net.UDPAddrFromAddrPort(netip.AddrPortFrom(subnets(h.number)[pool].Addr().Next(), 7000))
	}
	s := &stream{name: fmt.Sprintf("%s > %s", address(from), address(to)), stopped: make(chan struct{}), received: map[int]bool{}}
	var err error
	to.ns.Do(func() { s.to, err = net.ListenUDP("udp", address(to)) })
	if err != nil {
		t.Fatal(err)
	}
	from.ns.Do(func() { s.from, err = net.DialUDP("udp", &net.UDPAddr{IP: address(from).IP}, address(to)) })
	if err != nil {
		t.Fatal(err)
	}
	s.goroutines.Go(s.send)
	s.goroutines.Go(s.receive)
	return s
}

func (s *stream) send() {
	packet := make([]byte, 1000)
	tick := time.NewTicker(streamInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.stopped:
			return
		case <-tick.C:
		}
		s.mu.Lock()
		if s.sent-len(s.received) >= mostUnderWay {
			s.mu.Unlock()
			continue
		}
		binary.BigEndian.PutUint64(packet, uint64(s.sent))
		s.sent++
		s.mu.Unlock()
		if _, err := s.from.Write(packet); err != nil {
			s.mu.Lock()
			if s.failed == nil {
				s.failed = err
			}
			s.mu.Unlock()
		}
	}
}

func (s *stream) receive() {
	packet := make([]byte, 1500)
	for {
		n, err := s.to.Read(packet)
		if err != nil {
			return // closed
		}
		if n == 1000 {
			s.mu.Lock()
			s.received[int(binary.BigEndian.Uint64(packet))] = true
			s.mu.Unlock()
		}
	}
}

// missing returns an error if fewer than n packets were sent, or if one of the first n has not arrived.
func (s *stream) missing(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return fmt.Errorf("%s: %w", s.name, s.failed)
	}
	if s.sent < n {
		return fmt.Errorf("%s: %d of %d packets sent, %d have arrived", s.name, s.sent, n, len(s.received))
	}
	for s.complete < n && s.received[s.complete] {
		s.complete++
	}
	var lost []int
	for i := s.complete; i < n; i++ {
		if !s.received[i] {
			lost = append(lost, i)
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("%s: lost %d of %d packets: %v", s.name, len(lost), n, lost[:min(len(lost), 10)])
	}
	return nil
}

// settle waits until some more packets of each stream have arrived, and all before them.
func (tr *traffic) settle(after string) {
	tr.t.Helper()
	wanted := make([]int, len(tr.streams))
	for i, s := range tr.streams {
		s.mu.Lock()
		wanted[i] = s.sent + 10
		s.mu.Unlock()
	}
	for i, s := range tr.streams {
		waiting.Eventually(tr.t, func() error {
			if err := s.missing(wanted[i]); err != nil {
				return fmt.Errorf("after %s: %w", after, err)
			}
			return nil
		})
	}
}

// stop ends the streams.
func (tr *traffic) stop() {
	tr.once.Do(func() {
		for _, s := range tr.streams {
			close(s.stopped)
			for _, conn := range []*net.UDPConn{s.from, s.to} {
				if err := conn.Close(); err != nil {
					tr.t.Error(err)
				}
			}
			s.goroutines.Wait()
		}
	})
}
