package backendtest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// Flannel describes how flanneld carries the packets of a network, for a backend that shares its
// networks with hosts that run flannel.
type Flannel struct {
	Options string // the backend's options, as flannel's configuration of the network has them
	Pools   int    // how many of the suite's pools flannel carries: 1 is IPv4 alone
	MTUs    []int  // of the paths to and from the host, for each pool

	// Attributes returns the attributes of flannel's lease, as registry/flannel.ParseLease does. The
	// generation changes when the host comes back with other MAC addresses.
	Attributes func(generation int) string

	// Start puts what flanneld makes at its start into a host's namespace. Called again, it finds
	// what it made before.
	Start func(h FlannelHost)

	// Stop removes what flanneld made, as a reboot does.
	Stop func(h FlannelHost)

	// Conflict is in Apply's error on a host where flanneld has left its own part.
	Conflict string
}

// FlannelHost is a host that runs flannel, with one peer.
type FlannelHost struct {
	T          *testing.T
	NS         *nstest.NS
	Underlay   string // name of the underlay's device
	Generation int
	Subnets    []netip.Prefix
	PublicIPs  []netip.Addr

	// Peer is the leno host, with the attributes that it publishes.
	Peer backend.Peer
}

// flannelPair is host 1, which runs leno, and host 2, which runs flannel.
type flannelPair struct {
	flannel    Flannel
	leno, them *host
	generation int
}

// RunFlannel checks that a host with the backend and one with the kernel state of flanneld reach
// each other, whichever of them is restarted. Its cases run beside each other, so the functions of Flannel are called at
// the same time, for different hosts. It needs root.
func RunFlannel(t *testing.T, s Suite, f Flannel) {
	t.Helper()
	s.Options = f.Options
	for name, test := range map[string]func(*flannelPair){
		"packets":                   testFlannelPackets,
		"flannel is restarted":      testFlannelRestarts,
		"leno is restarted":         testLenoRestarts,
		"flannel leaves nothing":    testFlannelLeaves,
		"both on one host":          testFlannelLeftovers,
		"repairs, and nothing else": testFlannelRepairs,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &flannelPair{flannel: f}
			p.leno, p.them = newHosts(t, s)
			p.leno.newContainers()
			p.them.newContainers()
			p.leno.ns.Settle()
			p.start(p.host())
			test(p)
		})
	}
}

// host returns what flanneld on host 2 knows.
func (p *flannelPair) host() FlannelHost {
	return FlannelHost{
		T: p.them.t, NS: p.them.ns, Underlay: underlay, Generation: p.generation,
		Subnets:   subnets(p.them.number)[:p.flannel.Pools],
		PublicIPs: p.leno.suite.publicIPs(p.them.number)[:p.flannel.Pools],
		Peer: backend.Peer{
			Node: p.leno.node, Subnets: subnets(p.leno.number), PublicIPs: p.leno.suite.publicIPs(p.leno.number),
			Backend: p.leno.suite.Type.Name, Attributes: p.leno.advertise(p.leno.b).Attributes,
		},
	}
}

// start starts flanneld and waits until the kernel has taken its addresses into use.
func (p *flannelPair) start(h FlannelHost) {
	p.flannel.Start(h)
	h.NS.Settle()
}

// state returns host 1's state with host 2 as the peer that its lease describes.
func (p *flannelPair) state() backend.State {
	h := p.host()
	return p.leno.state(backend.Peer{
		Node: "flannel-" + h.PublicIPs[0].String(), Subnets: h.Subnets, PublicIPs: h.PublicIPs,
		Backend: p.leno.suite.Type.Name, Attributes: json.RawMessage(p.flannel.Attributes(p.generation)),
	})
}

func (p *flannelPair) apply() backend.Report {
	p.leno.t.Helper()
	r := p.leno.apply(p.state())
	if r.Peers != 1 || len(r.Skipped) != 0 {
		p.leno.t.Fatalf("report %+v", r)
	}
	return r
}

// pingAll sends small packets and those of the full size both ways, in every family.
func (p *flannelPair) pingAll() {
	p.leno.t.Helper()
	for _, way := range []struct{ from, to *host }{{p.leno, p.them}, {p.them, p.leno}} {
		for pool := range p.flannel.Pools {
			way.from.poll("ping", func() error { return way.from.ping(way.to, pool, 64) })
			if err := way.from.ping(way.to, pool, p.flannel.MTUs[pool]); err != nil {
				p.leno.t.Errorf("a packet of the full size: %v", err)
			}
		}
	}
}

func testFlannelPackets(p *flannelPair) {
	p.apply()
	p.pingAll()
	p.leno.unchanged(p.state())
	// Packets of the hosts themselves, to a container and to the host. `leno doctor` sends the latter.
	for _, way := range []struct{ from, to *host }{{p.leno, p.them}, {p.them, p.leno}} {
		for _, subnet := range subnets(way.to.number)[:p.flannel.Pools] {
			targets := []netip.Addr{subnet.Addr().Next()}
			if p.leno.suite.Type.Device {
				targets = append(targets, subnet.Addr())
			}
			for _, to := range targets {
				if out, err := way.from.ns.Try("ping -n -c 1 -i 0.1 -w 60 " + to.String()); err != nil {
					p.leno.t.Errorf("from the host itself: %v\n%s", err, out)
				}
			}
		}
	}
}

func testFlannelRestarts(p *flannelPair) {
	p.apply()
	p.pingAll()
	before := p.leno.dump()
	p.start(p.host()) // the process alone
	p.pingAll()
	p.flannel.Stop(p.host())
	p.start(p.host()) // the host, with the addresses that its lease has
	p.pingAll()
	p.leno.wantDump(before)
	p.leno.unchanged(p.state())

	p.flannel.Stop(p.host())
	p.generation++
	p.start(p.host())
	if r := p.apply(); len(r.Repaired) != 0 {
		p.leno.t.Errorf("report %+v", r)
	}
	p.pingAll()
	p.leno.unchanged(p.state())
}

func testLenoRestarts(p *flannelPair) {
	p.apply()
	p.pingAll()
	before, theirs := p.leno.dump(), p.them.dump()
	p.leno.restart()
	p.apply()
	p.leno.wantDump(before)
	p.pingAll()
	p.leno.apply(backend.State{})
	p.leno.restart()
	p.apply() // as after a reboot: flanneld has learned nothing of it
	p.leno.wantDump(before)
	p.pingAll()
	p.them.wantDump(theirs)

	// A new process has only a remembered state at first.
	p.leno.restart()
	partial := p.state()
	partial.Partial = true
	if r := p.leno.apply(partial); r.Peers != 1 {
		p.leno.t.Errorf("report %+v", r)
	}
	p.leno.wantDump(before)
	p.pingAll()
}

// testFlannelLeaves checks that nothing remains on host 1 of a host that ran flannel, nor of leno's
// own part in the network.
func testFlannelLeaves(p *flannelPair) {
	empty := p.leno.dump()
	alone := p.state()
	alone.Peers = nil
	p.leno.apply(alone)
	want := p.leno.dump()
	p.apply()
	p.pingAll()
	p.leno.apply(alone)
	p.leno.wantDump(want)
	p.leno.unchanged(alone)
	p.apply()
	p.pingAll()
	p.leno.restart()
	p.leno.apply(backend.State{})
	p.leno.wantDump(empty)
	p.leno.unchanged(backend.State{})
}

// testFlannelLeftovers checks that what flanneld left on a host stays as it is when leno starts
// there, and that the error names it.
func testFlannelLeftovers(p *flannelPair) {
	own := p.host()
	own.NS, own.Subnets, own.PublicIPs = p.leno.ns, subnets(p.leno.number)[:p.flannel.Pools], p.leno.suite.publicIPs(p.leno.number)
	own.Peer.Subnets, own.Peer.PublicIPs = subnets(p.them.number), p.leno.suite.publicIPs(p.them.number)
	p.start(own)
	before := p.leno.dump()
	_, err := p.leno.tryApply(p.state())
	if err == nil || !strings.Contains(err.Error(), p.flannel.Conflict) {
		p.leno.t.Errorf("%v, want %q", err, p.flannel.Conflict)
	}
	p.leno.wantLines(before)
	p.leno.apply(backend.State{})
	p.leno.wantDump(before)
	p.flannel.Stop(own)
	p.apply()
	p.pingAll()
}

// testFlannelRepairs checks that every device that the path to host 2 needs is made again.
func testFlannelRepairs(p *flannelPair) {
	if !p.leno.suite.Type.Device {
		p.apply()
		p.leno.ns.Sh("ip route flush proto 108; ip -6 route flush proto 108")
		p.apply()
		p.pingAll()
		return
	}
	p.apply()
	p.pingAll()
	want := p.leno.dump()
	for link := range strings.FieldsSeq(p.leno.ns.Sh("ip -o link | sed -n 's/^[0-9]*: \\(leno-[^:@]*\\).*/\\1/p'")) {
		for _, harm := range []string{"del", "set down", "set mtu 1300"} {
			verb, rest, _ := strings.Cut(harm, " ")
			p.leno.ns.Sh(fmt.Sprintf("ip link %s dev %s %s", verb, link, rest))
			if r := p.apply(); r.Writes == 0 || len(r.Repaired) != 1 || r.Repaired[0].Part != backend.Device {
				p.leno.t.Errorf("%s of %s: report %+v", harm, link, r)
			}
			p.leno.wantDump(want)
			p.leno.unchanged(p.state())
			p.pingAll()
		}
	}
}

// Attribute returns a text attribute that a peer publishes.
func Attribute(t *testing.T, p backend.Peer, name string) string {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal(p.Attributes, &all); err != nil {
		t.Fatal(err)
	}
	text, _ := all[name].(string)
	return text
}
