package udp

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/gaissmai/bart"

	"github.com/lenonet/leno/backend/udp/offload"
)

// table is all that the forwarder knows about the peers. It is never changed once the engine has
// it: a new state is a new table.
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
	alone atomic.Bool // datagrams to it cannot share a message; determined again for each table
}

// newTable indexes the peers of a plan. A peer that was in the previous table, by name, keeps its
// counters.
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
			// Two leases may name one address: that of a reinstalled host and the one it left
			// behind. The inner source tells them apart. Here only the first stands for both when
			// drops are counted.
			if _, taken := t.sources[source]; !taken {
				t.sources[source] = p
			}
		}
	}
	return t
}

// ingress checks a packet from the wire. sender is the peer found in sources for the address it
// came from, or nil. ingress returns the peer to count the packet for, nil when it belongs to no
// peer.
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

// egress checks a frame from the device and returns the peer to send it to. A super packet's header
// is that of one long packet.
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
	// The peer would drop it. Dropping it here reports the reason on the host where it can be
	// fixed.
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
