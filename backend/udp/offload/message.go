package offload

import "net/netip"

const (
	// MaxSegments is the most datagrams in one message to a socket: the kernel's
	// UDP_MAX_SEGMENTS of before Linux 6.9.
	MaxSegments = 64

	// MaxPayload is the most bytes in one message: what an IPv4 packet of 65,535
	// bytes has left for UDP. It holds for IPv6 too.
	MaxPayload = 65535 - 20 - 8
)

// Inbound is one or more datagrams of one sender, in the order they came: the
// kernel joins equal ones (UDP_GRO, udp(7)).
type Inbound struct {
	Buf     []byte         // 65,535 bytes, the receiver's to provide
	Size    int            // bytes received into Buf; 0 is possible
	Segment int            // length of each datagram but the last, which may be shorter; at least Size when there is but one
	From    netip.AddrPort // never an IPv4 address in its IPv6-mapped form
	Lost    int            // datagrams lost before these for want of room (SO_RXQ_OVFL, socket(7))
}

// Outbound is one or more datagrams to one address: the kernel or the network
// card takes them apart (UDP_SEGMENT, udp(7)). On the wire each segment is one
// datagram.
type Outbound struct {
	To       netip.AddrPort
	Segments []Segment // at most MaxSegments, at most MaxPayload bytes together
	Size     int       // bytes of each segment but the last, which may be shorter
	Bytes    int       // of all segments
	Sent     int       // out: segments that left before an error
	Alone    bool      // out: the segments had to be sent one by one
}
