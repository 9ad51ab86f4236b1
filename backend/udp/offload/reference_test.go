package offload

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
)

// The reference code is written independently from the RFCs and linux/virtio_net.h. It is slow and
// simple, and uses nothing of the code under test except the types Header and Frame.

// packetSpec describes an IP packet to build. The zero value of a field stands for the usual value:
// IPv4, TCP with ACK, 64 hops.
type packetSpec struct {
	v6, udp    bool
	host       byte // of the source; the destination is one
	port       uint16
	tos, ttl   byte
	id         uint16
	df         bool
	flow       uint32 // IPv6's label
	ipOptions  []byte // IPv4's
	extensions []byte // IPv6's, each beginning with the next header's number, which is filled in
	first      byte   // number of the first extension
	seq, ack   uint32
	flags      byte
	window     uint16
	options    []byte // TCP's
	payload    []byte
}

func (s packetSpec) build() []byte {
	var ip []byte
	proto := byte(6)
	if s.udp {
		proto = 17
	}
	ttl := s.ttl
	if ttl == 0 {
		ttl = 64
	}
	if s.v6 {
		ip = make([]byte, 40)
		binary.BigEndian.PutUint32(ip, 6<<28|uint32(s.tos)<<20|s.flow)
		ip[6], ip[7] = proto, ttl
		copy(ip[8:], []byte{0xfd, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, s.host})
		copy(ip[24:], []byte{0xfd, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1})
		if len(s.extensions) > 0 {
			ip[6] = s.first
			ip = append(ip, s.extensions...)
		}
	} else {
		ip = make([]byte, 20, 60)
		ip = append(ip, s.ipOptions...)
		ip[0], ip[1] = byte(0x40|len(ip)/4), s.tos
		binary.BigEndian.PutUint16(ip[4:], s.id)
		if s.df {
			ip[6] = 0x40
		}
		ip[8], ip[9] = ttl, proto
		copy(ip[12:], []byte{10, 5, 1, s.host, 10, 5, 2, 1})
	}
	transport := make([]byte, 8)
	if !s.udp {
		transport = make([]byte, 20, 60)
		transport = append(transport, s.options...)
		binary.BigEndian.PutUint32(transport[4:], s.seq)
		binary.BigEndian.PutUint32(transport[8:], s.ack)
		transport[12], transport[13] = byte(len(transport)/4<<4), s.flags
		if s.flags == 0 {
			transport[13] = 0x10
		}
		binary.BigEndian.PutUint16(transport[14:], s.window)
	}
	binary.BigEndian.PutUint16(transport, 40000+s.port)
	binary.BigEndian.PutUint16(transport[2:], 5000)
	pkt := slices.Concat(ip, transport, s.payload)
	refFinish(pkt)
	return pkt
}

// with returns a changed copy of the spec.
func (s packetSpec) with(edit func(*packetSpec)) packetSpec {
	edit(&s)
	return s
}

// refTransport finds the transport header.
func refTransport(pkt []byte) (at int, proto byte) {
	if pkt[0]>>4 == 4 {
		return int(pkt[0]&15) * 4, pkt[9]
	}
	at, proto = 40, pkt[6]
	for proto == 0 || proto == 43 || proto == 60 {
		proto, at = pkt[at], at+8+8*int(pkt[at+1])
	}
	return at, proto
}

// refSum computes RFC 1071, section 4.1, two bytes at a time.
func refSum(parts ...[]byte) uint16 {
	var sum uint32
	for _, b := range parts {
		for i := 0; i < len(b); i += 2 {
			word := uint32(b[i]) << 8
			if i+1 < len(b) {
				word |= uint32(b[i+1])
			}
			sum += word
			if sum > 0xffff {
				sum -= 0xffff
			}
		}
	}
	return uint16(sum)
}

// refPseudo returns the pseudo-header of a packet.
func refPseudo(pkt []byte) []byte {
	at, proto := refTransport(pkt)
	length := len(pkt) - at
	if pkt[0]>>4 == 4 {
		return slices.Concat(pkt[12:20], []byte{0, proto, byte(length >> 8), byte(length)})
	}
	return slices.Concat(pkt[8:40], []byte{0, 0, byte(length >> 8), byte(length), 0, 0, 0, proto})
}

// refField returns the offset of the transport checksum.
func refField(pkt []byte) int {
	at, proto := refTransport(pkt)
	if proto == 6 {
		return at + 16
	}
	return at + 6
}

// refLengths writes the length fields and the IPv4 checksum.
func refLengths(pkt []byte) {
	at, proto := refTransport(pkt)
	if pkt[0]>>4 == 4 {
		binary.BigEndian.PutUint16(pkt[2:], uint16(len(pkt)))
		pkt[10], pkt[11] = 0, 0
		binary.BigEndian.PutUint16(pkt[10:], ^refSum(pkt[:at]))
	} else {
		binary.BigEndian.PutUint16(pkt[4:], uint16(len(pkt)-40))
	}
	if proto == 17 {
		binary.BigEndian.PutUint16(pkt[at+4:], uint16(len(pkt)-at))
	}
}

// refFinish writes all lengths and checksums.
func refFinish(pkt []byte) {
	refLengths(pkt)
	at, proto := refTransport(pkt)
	field := pkt[refField(pkt):]
	field[0], field[1] = 0, 0
	sum := ^refSum(refPseudo(pkt), pkt[at:])
	if proto == 17 && sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(field, sum)
}

// refPartial writes lengths and a partial checksum.
func refPartial(pkt []byte) {
	refLengths(pkt)
	binary.BigEndian.PutUint16(pkt[refField(pkt):], refSum(refPseudo(pkt)))
}

// refHeaders returns where the payload begins.
func refHeaders(pkt []byte) int {
	at, proto := refTransport(pkt)
	if proto == 17 {
		return at + 8
	}
	return at + int(pkt[at+12]>>4)*4
}

// refSplit splits a super packet without changing it.
func refSplit(pkt []byte, size int) [][]byte {
	at, proto := refTransport(pkt)
	begin := refHeaders(pkt)
	var out [][]byte
	for i := begin; i < len(pkt); i += size {
		end := min(i+size, len(pkt))
		p := slices.Concat(pkt[:begin], pkt[i:end])
		if p[0]>>4 == 4 {
			binary.BigEndian.PutUint16(p[4:], binary.BigEndian.Uint16(pkt[4:])+uint16(len(out)))
		}
		if proto == 6 {
			binary.BigEndian.PutUint32(p[at+4:], binary.BigEndian.Uint32(pkt[at+4:])+uint32(i-begin))
			if i > begin {
				p[at+13] &^= 0x80
			}
			if end < len(pkt) {
				p[at+13] &^= 0x09
			}
		}
		refFinish(p)
		out = append(out, p)
	}
	return out
}

// refHeader returns the vnet header of a super packet, or of one packet with a partial checksum if
// size is 0.
func refHeader(pkt []byte, size int) Header {
	at, proto := refTransport(pkt)
	h := Header{
		Flags: 1, HdrLen: uint16(refHeaders(pkt)), GSOSize: uint16(size),
		CsumStart: uint16(at), CsumOffset: uint16(refField(pkt) - at),
	}
	switch {
	case size == 0:
		h.HdrLen = 0
	case proto == 17:
		h.Type = 5
	case pkt[0]>>4 == 4:
		h.Type = 1
	default:
		h.Type = 4
	}
	return h
}

// frameOf prepends a header to a packet.
func frameOf(h Header, pkt []byte) []byte {
	frame := make([]byte, HeaderLen, HeaderLen+len(pkt))
	h.Encode(frame)
	return append(frame, pkt...)
}

// super returns the frame of a packet with a partial checksum and a segment size.
func super(pkt []byte, size int) []byte {
	pkt = bytes.Clone(pkt)
	refPartial(pkt)
	return frameOf(refHeader(pkt, size), pkt)
}

// refUnjoin returns the packets of a joined frame, or an error that describes what is wrong with
// it.
func refUnjoin(f Frame) ([][]byte, error) {
	pkt := slices.Concat(f.Parts...)
	var h Header
	h.Decode(f.Header[:])
	if f.Packets != len(f.Parts) {
		return nil, fmt.Errorf("%d packets in %d parts", f.Packets, len(f.Parts))
	}
	if f.Packets == 1 {
		if h != (Header{}) {
			return nil, fmt.Errorf("header %+v of a lone packet", h)
		}
		return [][]byte{pkt}, nil
	}
	if h.GSOSize == 0 || h != refHeader(pkt, int(h.GSOSize)) {
		return nil, fmt.Errorf("header %+v of %x", h, pkt)
	}
	same := bytes.Clone(pkt)
	refPartial(same)
	if !bytes.Equal(pkt, same) {
		return nil, fmt.Errorf("headers\n%x for\n%x", pkt[:80], same[:80])
	}
	return refSplit(pkt, int(h.GSOSize)), nil
}

// sameButID compares packets. The IPv4 ID, and so the header's checksum, may differ where DF makes
// the ID meaningless.
func sameButID(a, b []byte) bool {
	if len(a) == len(b) && len(a) >= 20 && a[0]>>4 == 4 && b[0]>>4 == 4 && a[6]&b[6]&0x40 != 0 {
		a, b = bytes.Clone(a), bytes.Clone(b)
		copy(a[4:6], b[4:6])
		copy(a[10:12], b[10:12])
	}
	return bytes.Equal(a, b)
}

// fill returns n bytes that are not all equal.
func fill(n int) []byte {
	b := make([]byte, n)
	x := uint32(n)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}
