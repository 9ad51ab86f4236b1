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

// testPeers tests the peers that the target can send to and whose packets do not go over it. Those that answer are reached.
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
				link := b.linkOf(target, s, subnet)
				packet := b.packetTo(target, s, p.Peer, subnet, link+" "+attributes)
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
	answered, err := b.test(packets)
	for node, sent := range tests {
		known := target.answered[node]
		if known == nil {
			known = map[uint64]bool{}
			target.answered[node] = known
		}
		isOpen := false
		for _, id := range sent {
			known[id] = known[id] || answered[id]
			isOpen = isOpen || !known[id]
		}
		switch {
		case !isOpen:
			target.reached[node] = target.proven[node]
		case b.testErr != nil: // the fault of the switch
		default:
			target.reasons[node] = "it has not answered a test packet over " + target.Type + " so far"
			if err != nil {
				target.reasons[node] += ": " + err.Error()
			}
		}
	}
}

// test sends test packets, by device, and returns the ids of those that were answered. If this host can send none over
// a device, the error is also the testErr.
func (b *Backend) test(packets map[string][]pathtest.Packet) (map[uint64]bool, error) {
	b.testErr = nil
	if len(packets) == 0 {
		b.tester.Close()
	}
	all := map[uint64]bool{}
	var errs []error
	for link, sent := range packets {
		answered, err := b.tester.Test(link, sent)
		if answered == nil {
			b.testErr = err
		}
		maps.Copy(all, answered)
		errs = append(errs, err)
	}
	return all, errors.Join(errs...)
}

// linkOf returns the device by which packets of an instance to a subnet leave.
func (b *Backend) linkOf(c *instance, s backend.State, subnet netip.Prefix) string {
	if !b.hasTunnel(c, subnet) {
		return s.Underlay.Interface
	}
	link, _ := c.Link(b.config.Network)
	return link
}

// hasTunnel reports whether packets of an instance to a subnet leave by its device.
func (b *Backend) hasTunnel(c *instance, subnet netip.Prefix) bool {
	return b.types[c.Type].Device && !c.direct[subnet]
}

// packetTo returns a test packet to a peer's subnet. Its From or Via is invalid if this host and the peer do not have
// the family in common. In a tunnel, the packets of all families have one id: they arrive in the same way. how
// identifies the way.
func (b *Backend) packetTo(target *instance, s backend.State, p backend.Peer, subnet netip.Prefix,
	how string) pathtest.Packet {
	packet := pathtest.Packet{To: subnet.Masked().Addr(), Behind: backend.AddrBehind(subnet)}
	if !b.hasTunnel(target, subnet) {
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
