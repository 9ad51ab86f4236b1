package offload

import "encoding/binary"

const (
	ipv4Len, ipv6Len = 20, 40 // without options and extension headers

	tcpLen, udpLen = 20, 8 // without options

	// Offsets of the checksums in their headers.
	tcpChecksum, udpChecksum = 16, 6

	tcpFIN, tcpPSH, tcpACK, tcpCWR = 0x01, 0x08, 0x10, 0x80
)

// Protocol numbers, including IPv6 extension headers.
const (
	protoHopByHop    = 0
	protoTCP         = 6
	protoUDP         = 17
	protoRouting     = 43
	protoFragment    = 44
	protoDestination = 60
)

// layout describes where the headers of an IP packet are.
type layout struct {
	version   byte
	proto     byte // of the header at transport
	transport int  // bytes of IP header, options and extension headers
	routed    bool // there is a routing header
}

// read locates the headers of a packet with an offload request. The packet must be as long as its
// length field says. A super packet of more than 65,535 bytes has 0 there, but does not occur on a
// device with the usual gso_max_size.
func read(pkt []byte) (layout, error) {
	if len(pkt) == 0 {
		return layout{}, ErrShort
	}
	// The headers have only the version in common.
	switch pkt[0] >> 4 {
	case 4:
		return read4(pkt)
	case 6:
		return read6(pkt)
	default:
		return layout{}, ErrType
	}
}

func read4(pkt []byte) (layout, error) {
	if len(pkt) < ipv4Len {
		return layout{}, ErrShort
	}
	header := int(pkt[0]&0x0f) * 4
	if header < ipv4Len || header > len(pkt) || int(binary.BigEndian.Uint16(pkt[2:])) != len(pkt) {
		return layout{}, ErrLength
	}
	// More fragments, or an offset.
	if binary.BigEndian.Uint16(pkt[6:])&0x3fff != 0 {
		return layout{}, ErrFragment
	}
	return layout{version: 4, proto: pkt[9], transport: header}, nil
}

func read6(pkt []byte) (layout, error) {
	if len(pkt) < ipv6Len {
		return layout{}, ErrShort
	}
	if int(binary.BigEndian.Uint16(pkt[4:])) != len(pkt)-ipv6Len {
		return layout{}, ErrLength
	}
	l := layout{version: 6, proto: pkt[6], transport: ipv6Len}
	for {
		switch l.proto {
		case protoFragment:
			return layout{}, ErrFragment
		case protoHopByHop, protoRouting, protoDestination:
			if l.transport+8 > len(pkt) {
				return layout{}, ErrShort
			}
			l.routed = l.routed || l.proto == protoRouting
			l.proto = pkt[l.transport]
			l.transport += 8 + int(pkt[l.transport+1])*8
			if l.transport > len(pkt) {
				return layout{}, ErrLength
			}
		default:
			return l, nil
		}
	}
}
