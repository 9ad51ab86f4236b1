// Package pathtest finds out whether packets over a device arrive: it sends test packets to peers and recognizes the
// answers.
package pathtest

import "net/netip"

// A Packet is sent to an address of a peer, and to one behind the peer, which answers that the packet may make no more
// hops: its firewall may drop what is for the host itself.
type Packet struct {
	ID       uint64
	From, To netip.Addr
	Behind   netip.Addr
	Via      netip.Addr // the neighbour on the device to which it is sent
}
