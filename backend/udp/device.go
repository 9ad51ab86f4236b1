package udp

import "net/netip"

// Device is the kernel's side of the forwarder: packets the kernel routed to
// the link are read from it, packets for the kernel to route are written to
// it. Packets are bare IP packets, each way, without any other header.
//
// One goroutine may read while another writes. Both ways take several packets
// a call so that an implementation can batch; one that cannot says so with
// BatchSize.
type Device interface {
	// Read blocks until there is at least one packet, fills bufs[:n] and says
	// how long each packet is in sizes[:n]. It returns what is there and does
	// not wait for more: a lone packet is never delayed. Both slices have
	// BatchSize elements, each buffer 65,535 bytes.
	//
	// An error is final: nothing can be read from this device any more. After
	// Close, or when Close comes while it blocks, it is os.ErrClosed.
	Read(bufs [][]byte, sizes []int) (n int, err error)

	// Write hands packets to the kernel, in order, and does not keep the
	// slices. n of them were taken; when n < len(pkts), err says what is wrong
	// with pkts[n] and none after it was tried. An error is about that one
	// packet; after Close it is os.ErrClosed.
	Write(pkts [][]byte) (n int, err error)

	// BatchSize is the most packets a call may bring or take, at least 1. It
	// never changes.
	BatchSize() int

	// Close ends a blocked Read and gives back what was opened. It leaves the
	// link itself in place. It may be repeated.
	Close() error
}

// Bind is the wire's side of the forwarder: one UDP socket on one address and
// port.
//
// One goroutine may receive while another sends.
type Bind interface {
	// Receive blocks until there is at least one datagram, fills bufs[:n], and
	// says in sizes[:n] how long each payload is (0 is possible) and in
	// from[:n] who sent it; IPv4 senders are never in their IPv6-mapped form.
	// It returns what is there and does not wait for more. The slices have
	// BatchSize elements, each buffer 65,535 bytes.
	//
	// An error is final: nothing can be received any more. After Close, or
	// when Close comes while it blocks, it is net.ErrClosed.
	Receive(bufs [][]byte, sizes []int, from []netip.AddrPort) (n int, err error)

	// Send sends each packet as one datagram to one address, in order, and
	// does not keep the slices. It may block while the send buffer is full. n
	// were sent; when n < len(pkts), err says what is wrong with pkts[n] and
	// none after it was tried. An error is about that one packet
	// (syscall.EMSGSIZE when it is too long); after Close it is net.ErrClosed.
	Send(pkts [][]byte, to netip.AddrPort) (n int, err error)

	// BatchSize is the most datagrams a call may bring or take, at least 1. It
	// never changes.
	BatchSize() int

	// Close ends a blocked Receive and frees the port. It may be repeated.
	Close() error
}
