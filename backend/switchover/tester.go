package switchover

import (
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/backend"
)

// A tester finds out whether packets over a device arrive: it sends test packets to peers and recognizes the answers.
type tester interface {
	// test sends test packets over a device, and waits a moment for answers. It returns the ids of those packets, and of
	// earlier ones, that were answered since the last call.
	test(link string, packets []testPacket) (answered map[uint64]bool, err error)
	close()
}

// A testPacket is sent to an address of a peer, and to one behind the peer, which answers that the packet may make no more
// hops: its firewall may drop what is for the host itself.
type testPacket struct {
	id       uint64
	from, to netip.Addr
	behind   netip.Addr
	via      netip.Addr // the neighbour on the device to which it is sent
}

// testPeers tests the target's peers to which packets do not go over it yet. It removes those from target.proven that have
// not answered. A target that encrypts needs no test: its handshakes prove that packets arrive.
func (b *Backend) testPeers(target *instance, s backend.State, peers []reading) {
	if b.types[target.Type].Encrypts || b.definition.Direction == Stopped {
		return
	}
	link, _ := target.Link(b.config.Network)
	if !b.types[target.Type].Device {
		link = s.Underlay.Interface
	}
	tests := map[string][]testPacket{}
	var packets []testPacket
	for _, p := range peers {
		if attributes, proven := target.proven[p.Node]; proven && b.assigned[p.Node] != target {
			tests[p.Node] = slices.DeleteFunc(b.packetsTo(target, s, p.Peer, link+" "+attributes), target.isAnswered)
			packets = append(packets, tests[p.Node]...)
		}
	}
	if len(packets) == 0 {
		b.tester.close()
		return
	}
	answered, err := b.tester.test(link, packets)
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

func (c *instance) isAnswered(p testPacket) bool { return c.answered[p.id] }

// packetsTo returns a test packet for each address family that this host and the peer have in common. With a tunnel, the
// packets of all families have one id: they arrive in the same way. how identifies the way.
func (b *Backend) packetsTo(target *instance, s backend.State, p backend.Peer, how string) (out []testPacket) {
	for _, subnet := range p.Subnets {
		is6 := subnet.Addr().Is6()
		packet := testPacket{to: subnet.Masked().Addr(), behind: backend.AddrBehind(subnet)}
		if b.types[target.Type].Device {
			packet.id = testID(p.Node, how, "")
			packet.via = packet.to
			for _, own := range s.Subnets {
				if own.Addr().Is6() == is6 {
					packet.from = own.Masked().Addr()
				}
			}
		} else {
			packet.id = testID(p.Node, how, subnet.String())
			// Without a tunnel, a strict reverse-path filter would drop packets from an address of the network.
			packet.from, _, _ = s.Underlay.SourceOf(subnet.Addr())
			packet.via, _ = p.PublicIP(subnet.Addr())
		}
		if packet.from.IsValid() && packet.via.IsValid() {
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
