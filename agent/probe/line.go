package probe

import (
	"context"
	"net/netip"
	"time"
)

// echo is one echo request.
type echo struct {
	from netip.Addr // the zero address leaves it to the kernel
	to   netip.Addr
	size int // of the IP packet, bytes
	hops int // it may make; 0 for as many as usual
	link int // the device on which to is taken for a neighbour, past the routes; 0 for what the routes say. IPv4 only.
}

// kind is what became of an echo request.
type kind int

const (
	silence kind = iota // nothing came in time
	replied             // echo reply
	errored             // somebody told an error
	unsent              // this host did not send it
	cut                 // ctx ended first
)

// answer is what became of an echo request and who said so.
type answer struct {
	kind   kind
	from   netip.Addr
	reason string // of an error, or why it was not sent
	mtu    int    // of an error that tells one
	took   time.Duration
}

const (
	// pace is the shortest time from one packet to the next, of all peers together:
	// 4,000 a second, 48 Mbit/s of full ones.
	pace = 250 * time.Microsecond

	// mostUnderWay bounds the packets that are waited for: those of a second at that
	// pace, which is how long an answer is waited for unless something else is asked
	// for.
	mostUnderWay = 4096
)

// line sends echo requests. It may be used concurrently.
type line interface {
	// send sends one, and blocks until it is its turn, so that nothing needs to be
	// held for packets that cannot leave yet. What it returns blocks until the packet
	// is answered, the time since it left is over, or ctx ends. It is to be called
	// once, and soon: until then the packet is under way, of which there are
	// mostUnderWay.
	send(ctx context.Context, e echo, timeout time.Duration) (result func() answer)

	// refusals are the errors that came since the line was opened about UDP packets
	// of this host to an address and port: those of a tunnel.
	refusals(to netip.Addr, port int) []answer
}
