package udp

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/gaissmai/bart"

	"github.com/lenonet/leno/backend/udp/offload"
)

// table is all the forwarder knows about who is where. It is never changed
// once the engine has it: a new state is a new table.
type table struct {
	own     []netip.Prefix // this host's subnets
	subnets bart.Table[*peer]
	sources map[netip.AddrPort]*peer
	peers   []*peer
}

// peer is another host as the packet path sees it.
type peer struct {
	peerPlan
	count *counters
	alone atomic.Bool // datagrams to it cannot share a message; found out anew with each table
}

// newTable indexes the peers of a plan. A peer that was in the table before,
// by name, goes on with its counters.
func newTable(own []netip.Prefix, peers []peerPlan, before *table) *table {
	t := &table{
		own:     own,
		sources: make(map[netip.AddrPort]*peer, len(peers)),
		peers:   make([]*peer, 0, len(peers)),
	}
	known := map[string]*counters{}
	if before != nil {
		for _, p := range before.peers {
			known[p.node] = p.count
		}
	}
	for _, plan := range peers {
		p := &peer{peerPlan: plan, count: known[plan.node]}
		if p.count == nil {
			p.count = new(counters)
			known[plan.node] = p.count
		}
		t.peers = append(t.peers, p)
		for _, subnet := range p.subnets {
			t.subnets.Insert(subnet, p)
		}
		for _, source := range p.sources {
			// Two leases may name one address: a reinstalled host and the
			// lease it left behind. The inner source tells them apart, here
			// the first only stands for both in the count of drops.
			if _, taken := t.sources[source]; !taken {
				t.sources[source] = p
			}
		}
	}
	return t
}

// ingress judges a packet from the wire; sender is who stands for the address
// it came from in sources, or nil. The peer is the one to count it for, nil when
// it is nobody's.
func (t *table) ingress(sender *peer, from netip.AddrPort, pkt []byte) (*peer, reason) {
	if sender == nil {
		return nil, unknownPeer
	}
	src, dst, why := parsePacket(pkt)
	if why != passed {
		return sender, why
	}
	p, ok := t.subnets.Lookup(src)
	if !ok || !slices.Contains(p.sources, from) {
		return sender, foreignSource
	}
	if !t.isOwn(dst) {
		return p, foreignDestination
	}
	return p, passed
}

// egress judges a frame from the device and finds whom to send it to. A super
// packet's header is that of one long packet.
func (t *table) egress(frame []byte) (*peer, reason) {
	if len(frame) < offload.HeaderLen {
		return nil, truncated
	}
	pkt := frame[offload.HeaderLen:]
	src, dst, why := parsePacket(pkt)
	if why != passed {
		return nil, why
	}
	if isGroup(dst) {
		return nil, multicast
	}
	p, ok := t.subnets.Lookup(dst)
	if !ok {
		return nil, noPeer
	}
	// The peer would refuse it; here the reason is found on the host that can
	// mend it.
	if !t.isOwn(src) {
		return p, foreignSource
	}
	return p, passed
}

func (t *table) isOwn(a netip.Addr) bool {
	for _, subnet := range t.own {
		if subnet.Contains(a) {
			return true
		}
	}
	return false
}
