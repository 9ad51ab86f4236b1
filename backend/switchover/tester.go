package switchover

import (
	"hash/fnv"
	"maps"
	"slices"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/pathtest"
)

// A tester finds out whether packets over a device arrive, as a pathtest.Tester does.
type tester interface {
	Test(link string, packets []pathtest.Packet) (answered map[uint64]bool, err error)
	Close()
}

// testPeers tests the target's peers to which packets do not go over it yet. It removes those from target.proven that have
// not answered.
func (b *Backend) testPeers(target *instance, s backend.State, peers []reading) {
	if b.definition.Direction == Stopped {
		return
	}
	link, _ := target.Link(b.config.Network)
	if !b.types[target.Type].Device {
		link = s.Underlay.Interface
	}
	tests := map[string][]pathtest.Packet{}
	var packets []pathtest.Packet
	for _, p := range peers {
		if attributes, proven := target.proven[p.Node]; proven && b.assigned[p.Node] != target {
			tests[p.Node] = slices.DeleteFunc(b.packetsTo(target, s, p.Peer, link+" "+attributes), target.isAnswered)
			packets = append(packets, tests[p.Node]...)
		}
	}
	if len(packets) == 0 {
		b.tester.Close()
		return
	}
	answered, err := b.tester.Test(link, packets)
	maps.Copy(target.answered, answered)
	for node, sent := range tests {
		if len(slices.DeleteFunc(sent, target.isAnswered)) == 0 {
			continue
		}
		delete(target.proven, node)
		target.reasons[node] = "it has not answered a test packet over " + target.Type + " so far"
		if err != nil {
			target.reasons[node] += ": " + err.Error()
		}
	}
}

func (c *instance) isAnswered(p pathtest.Packet) bool { return c.answered[p.ID] }

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
