package switchover

import (
	"errors"
	"hash/fnv"
	"maps"
	"net/netip"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/pathtest"
)

// A tester finds out whether packets over a device arrive, as a pathtest.Tester does.
type tester interface {
	Test(link string, packets []pathtest.Packet) (answered map[uint64]bool, err error)
	Close()
}

// testPeers tests the peers that the target can send to and whose packets do not go over it. Those that answer are
// reached.
func (b *Backend) testPeers(target *instance, s backend.State, peers []reading) {
	if b.definition.Direction == Stopped {
		return
	}
	tests := map[string][]uint64{}            // the ids of packets, by node
	packets := map[string][]pathtest.Packet{} // by device
	for _, p := range peers {
		if attributes, proven := target.proven[p.Node]; proven && b.assigned[p.Node] != target && !target.isReached(p) {
			tests[p.Node] = nil
			for _, subnet := range p.Subnets {
				link := target.linkTo(subnet, s.Underlay)
				packet := target.packetTo(s, p.Peer, subnet, link+" "+attributes)
				if !packet.From.IsValid() || !packet.Via.IsValid() {
					continue // this host and the peer do not have the family in common
				}
				tests[p.Node] = append(tests[p.Node], packet.ID)
				if !target.answered[p.Node][packet.ID] {
					packets[link] = append(packets[link], packet)
				}
			}
		}
	}
	answered, err := b.probe.send(packets)
	for node, sent := range tests {
		known := target.answered[node]
		if known == nil {
			known = map[uint64]bool{}
			target.answered[node] = known
		}
		isReached := true
		for _, id := range sent {
			known[id] = known[id] || answered[id]
			isReached = isReached && known[id]
		}
		switch {
		case isReached:
			target.reached[node] = target.proven[node]
		case b.probe.err != nil: // progress reports it
		default:
			target.reasons[node] = "it has not answered a test packet over " + target.Type + " so far"
			if err != nil {
				target.reasons[node] += ": " + err.Error()
			}
		}
	}
}

// A probe sends test packets.
type probe struct {
	tester
	err error // why this host could send none over a device last time, nil if it could
}

// send sends test packets, by device, and returns the ids of those that were answered.
func (p *probe) send(packets map[string][]pathtest.Packet) (map[uint64]bool, error) {
	p.err = nil
	if len(packets) == 0 {
		p.Close()
	}
	all := map[uint64]bool{}
	var errs []error
	for link, sent := range packets {
		answered, err := p.Test(link, sent)
		if answered == nil {
			p.err = err
		}
		maps.Copy(all, answered)
		errs = append(errs, err)
	}
	return all, errors.Join(errs...)
}

// hasTunnel reports whether packets to a subnet leave by the instance's device.
func (c *instance) hasTunnel(subnet netip.Prefix) bool { return c.link != "" && !c.direct[subnet] }

// linkTo returns the device by which packets to a subnet leave.
func (c *instance) linkTo(subnet netip.Prefix, u backend.Underlay) string {
	if c.hasTunnel(subnet) {
		return c.link
	}
	return u.Interface
}

// packetTo returns a test packet to a peer's subnet. Its From or Via is invalid if this host and the peer do not have
// the family in common. In a tunnel, the packets of all families have one id: they arrive in the same way. how
// identifies the way.
func (c *instance) packetTo(s backend.State, p backend.Peer, subnet netip.Prefix, how string) pathtest.Packet {
	packet := pathtest.Packet{To: subnet.Masked().Addr(), Behind: backend.AddrBehind(subnet)}
	if !c.hasTunnel(subnet) {
		packet.ID = testID(p.Node, how, subnet.String())
		// Without a tunnel, a strict reverse-path filter would drop packets from an address of the network.
		packet.From, _, _ = s.Underlay.SourceOf(subnet.Addr())
		packet.Via, _ = p.PublicIP(subnet.Addr())
		return packet
	}
	packet.ID = testID(p.Node, how, "")
	packet.Via = packet.To
	for _, own := range s.Subnets {
		if own.Addr().Is6() == subnet.Addr().Is6() {
			packet.From = own.Masked().Addr()
		}
	}
	return packet
}

// testID returns a number that identifies the texts.
func testID(texts ...string) uint64 {
	h := fnv.New64a()
	for _, text := range texts {
		_, _ = h.Write(append([]byte(text), 0)) // never fails
	}
	return h.Sum64()
}
