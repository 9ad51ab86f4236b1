package offload

import "net/netip"

const (
	// MaxSegments is the maximum number of datagrams in one message to a socket: the kernel's
	// UDP_MAX_SEGMENTS before Linux 6.9.
	MaxSegments = 64

	// MaxPayload is the maximum number of bytes in one message: what an IPv4 packet of 65,535 bytes
	// leaves for UDP. It is used for IPv6 too.
	MaxPayload = 65535 - 20 - 8
)

// Inbound holds one or more datagrams of one sender, in order of arrival: the kernel joins those of
// equal size (UDP_GRO, udp(7)).
type Inbound struct {
	Buf  []byte // 65,535 bytes, provided by the receiver
	Size int    // bytes received into Buf; 0 is possible
	// length of each datagram except the last, which may be shorter; at least Size if there is only one
	Segment int
	From    netip.AddrPort // never an IPv4 address in its IPv6-mapped form
	Lost    int            // datagrams lost before these because the buffer was full (SO_RXQ_OVFL, socket(7))
}

// Outbound holds one or more datagrams to one address: the kernel or the network card splits them
// (UDP_SEGMENT, udp(7)). On the wire each segment is one datagram.
type Outbound struct {
	To       netip.AddrPort
	Segments []Segment // at most MaxSegments, at most MaxPayload bytes together
	Size     int       // bytes of each segment except the last, which may be shorter
	Bytes    int       // of all segments
	Sent     int       // out: segments sent before an error
	Alone    bool      // out: the segments had to be sent one by one
}
