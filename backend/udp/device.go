package udp

import "github.com/lenonet/leno/backend/udp/offload"

// maxFrame is the longest thing a device brings: a vnet header and an IP packet
// without jumbograms.
const maxFrame = offload.HeaderLen + maxPacket

// Device is one queue of the kernel's side of the forwarder: what the kernel
// routed to the link is read from it, what it is to route is written to it.
// Frames go both ways: a vnet header and an IP packet, which may be a super
// packet that stands for many (see package offload).
//
// No call blocks. One goroutine reads; several may write meanwhile. Nothing
// else is called once Close was, and Close not while anything else is.
type Device interface {
	// FD is a descriptor that poll(2) finds readable when Read has something to
	// bring or to say.
	FD() int

	// Read brings what is there: 0 frames when there is none. They are put into
	// buf one behind the other, frames[:n] are where they lie. buf has at least
	// maxFrame bytes; Read ends early when fewer are left. An error is final:
	// nothing can be read from this device any more.
	Read(buf []byte, frames [][]byte) (n int, err error)

	// Write hands frames to the kernel, in order, and does not keep them. n of
	// them were taken; when n < len(frames), err says what is wrong with
	// frames[n] and none after it was tried. An error is about that one frame.
	Write(frames []offload.Frame) (n int, err error)

	// Takes says which super packets Write may be given. It never changes.
	Takes() offload.Kinds

	// Close gives back what was opened. It leaves the link itself in place. It
	// may be repeated.
	Close() error
}

// Bind is the wire's side of the forwarder: one UDP socket. Several of them may
// share an address and port; a sender's datagrams then all come to one.
//
// No call blocks. One goroutine receives; several may send meanwhile. Nothing
// else is called once Close was, and Close not while anything else is.
type Bind interface {
	// FD is a descriptor that poll(2) finds readable when Receive has something
	// to bring or to say.
	FD() int

	// Receive brings what is there into in[:n]: 0 messages when there is none.
	// An error is final: nothing can be received any more.
	Receive(in []offload.Inbound) (n int, err error)

	// Send sends messages, in order, and does not keep them. n were sent whole;
	// when n < len(out), err says what is wrong with the first segment of out[n]
	// that did not leave, the one behind out[n].Sent others, and nothing after
	// it was tried. It is syscall.EMSGSIZE when that segment is too long,
	// syscall.EAGAIN when the send buffer is full, and else about the way to the
	// address.
	Send(out []offload.Outbound) (n int, err error)

	// Close frees the port. It may be repeated.
	Close() error
}
