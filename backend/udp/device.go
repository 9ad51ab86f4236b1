package udp

import "github.com/lenonet/leno/backend/udp/offload"

// maxFrame is the longest frame that a device delivers: a vnet header and an IP packet that is not
// a jumbogram.
const maxFrame = offload.HeaderLen + maxPacket

// Device is one queue of the kernel side of the forwarder. The forwarder reads what the kernel
// routed to the link, and writes packets for the kernel to route. Frames go both ways: a vnet header
// and an IP packet, which may be a super packet that stands for many (see package offload).
//
// No call blocks. One goroutine reads; several may write at the same time. Close must not run
// concurrently with any other call, and no other call may follow it.
type Device interface {
	// FD returns a descriptor that poll(2) reports as readable when Read has frames or an error to
	// return.
	FD() int

	// Read reads the frames that are available: 0 if there are none. It stores them in buf one
	// after the other and sets frames[:n] to them. buf has at least maxFrame bytes; Read stops
	// early when fewer are left. An error is final: nothing more can be read from this device.
	Read(buf []byte, frames [][]byte) (n int, err error)

	// Write passes frames to the kernel, in order, and does not keep them. n of them were accepted.
	// If n < len(frames), err is the error for frames[n] alone, and the frames after it were not
	// tried.
	Write(frames []offload.Frame) (n int, err error)

	// Takes returns the kinds of super packets that Write accepts. The result never changes.
	Takes() offload.Kinds

	// Close releases what was opened. It leaves the link itself in place. It may be called more
	// than once.
	Close() error
}

// Bind is the wire side of the forwarder: one UDP socket. Several of them may share an address and
// port; all datagrams of one sender then arrive at the same socket.
//
// No call blocks. One goroutine receives; several may send at the same time. Close must not run
// concurrently with any other call, and no other call may follow it.
type Bind interface {
	// FD returns a descriptor that poll(2) reports as readable when Receive has messages or an
	// error to return.
	FD() int

	// Receive reads the messages that are available into in[:n]: 0 if there are none. An error is
	// final: nothing more can be received.
	Receive(in []offload.Inbound) (n int, err error)

	// Send sends messages, in order, and does not keep them. n were sent completely. If n <
	// len(out), err is the error for the first segment of out[n] that was not sent, which follows
	// out[n].Sent others that were; nothing after it was tried. The error is syscall.EMSGSIZE when
	// that segment is too long, syscall.EAGAIN when the send buffer is full, and otherwise concerns
	// the path to the address.
	Send(out []offload.Outbound) (n int, err error)

	// Close frees the port. It may be called more than once.
	Close() error
}
