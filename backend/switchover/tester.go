package switchover

import (
	"hash/fnv"
	"slices"

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
	link := b.linkOf(target, s)
	tests := map[string][]pathtest.Packet{}
	var packets []pathtest.Packet
	for _, p := range peers {
		if attributes, proven := target.proven[p.Node]; proven && b.assigned[p.Node] != target && !target.isReached(p) {
			tests[p.Node] = b.packetsTo(target, s, p.Peer, link+" "+attributes)
			packets = append(packets, slices.DeleteFunc(slices.Clone(tests[p.Node]), func(packet pathtest.Packet) bool {
				return target.answered[p.Node][packet.ID]
			})...)
		}
	}
	if len(packets) == 0 {
		b.tester.Close()
	}
	var answered map[uint64]bool
	var err error
	if b.testErr = nil; len(packets) > 0 {
		if answered, err = b.tester.Test(link, packets); answered == nil {
			b.testErr = err
		}
	}
	for node, sent := range tests {
		known := target.answered[node]
		if known == nil {
			known = map[uint64]bool{}
			target.answered[node] = known
		}
		isOpen := false
		for _, p := range sent {
			known[p.ID] = known[p.ID] || answered[p.ID]
			isOpen = isOpen || !known[p.ID]
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

// linkOf returns the device by which packets of an instance leave.
func (b *Backend) linkOf(c *instance, s backend.State) string {
	if !b.types[c.Type].Device {
		return s.Underlay.Interface
	}
	link, _ := c.Link(b.config.Network)
	return link
}

// packetsTo returns a test packet for each address family that this host and the peer have in common. With a tunnel, the
// packets of all families have one id: they arrive in the same way. how identifies the way.
func (b *Backend) packetsTo(target *instance, s backend.State, p backend.Peer, how string) (out []pathtest.Packet) {
	for _, subnet := range p.Subnets {
		is6 := subnet.Addr().Is6()
		packet := pathtest.Packet{To: subnet.Masked().Addr(), Behind: backend.AddrBehind(subnet)}
		if b.types[target.Type].Device {
			packet.ID = testID(p.Node, how, "")
			packet.Via = packet.To
			for _, own := range s.Subnets {
				if own.Addr().Is6() == is6 {
					packet.From = own.Masked().Addr()
				}
			}
		} else {
			packet.ID = testID(p.Node, how, subnet.String())
			// Without a tunnel, a strict reverse-path filter would drop packets from an address of the network.
			packet.From, _, _ = s.Underlay.SourceOf(subnet.Addr())
			packet.Via, _ = p.PublicIP(subnet.Addr())
		}
		if packet.From.IsValid() && packet.Via.IsValid() {
			out = append(out, packet)
		}
	}
	return out
}

// testID returns a number that identifies the texts.
func testID(texts ...string) uint64 {
	h := fnv.New64a()
	for _, text := range texts {
		_, _ = h.Write(append([]byte(text), 0)) // never fails
	}
	return h.Sum64()
}
