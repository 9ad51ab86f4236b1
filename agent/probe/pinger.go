package probe

import (
	"context"
	"net/netip"
	"time"
)

// echo is one echo request.
type echo struct {
	from netip.Addr // the zero address leaves the choice to the kernel
	to   netip.Addr
	size int // of the IP packet, bytes
	hops int // hop limit; 0 for the usual one
	vrf  int // ifindex of the VRF whose routes the packet takes; 0 for none
	link int // the device on which to is treated as a neighbour, past the routes; 0 to use the routes. IPv4 only.
}

// outcome is the outcome of an echo request.
type outcome int

const (
	noAnswer    outcome = iota // no answer came in time
	gotReply                   // echo reply
	gotError                   // a host returned an error
	notSent                    // this host did not send it
	interrupted                // ctx ended first
)

// answer is the outcome of an echo request and which host reported it.
type answer struct {
	outcome   outcome
	from      netip.Addr
	reason    string // of an error, or why it was not sent
	mtu       int    // of an error that contains one
	roundTrip time.Duration
}

const (
	// pace is the shortest time from one packet to the next, of all peers together: 4,000 a second, 48 Mbit/s of full
	// ones.
	pace = 250 * time.Microsecond

	// maxPending bounds the packets that await an answer: those of one second at that pace, because one second is
	// the default timeout.
	maxPending = 4096
)

// pinger sends echo requests. It is safe for concurrent use.
type pinger interface {
	// send blocks until it may send the packet, and sends it, so that nothing is held for packets that cannot leave
	// yet. The returned function blocks until the packet is answered, the timeout since it left is over, or ctx ends.
	// The caller must call it once, and soon: until then the packet counts as one of maxPending.
	send(ctx context.Context, e echo, timeout time.Duration) (result func() answer)

	// tunnelErrors returns the errors, received since the line was opened, about UDP packets of this host to an address
	// and port: the packets of a tunnel.
	tunnelErrors(to netip.Addr, port int) []answer
}
