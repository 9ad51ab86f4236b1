package offload

import (
	"encoding/binary"
	"errors"
)

// Reasons why Split rejects a frame.
var (
	ErrShort    = errors.New("frame ends within its headers")
	ErrType     = errors.New("offload type is unknown or not that of the packet")
	ErrLength   = errors.New("length fields disagree with the packet")
	ErrFragment = errors.New("offload asked for a fragment")
	ErrChecksum = errors.New("checksum is not where the header says")
	ErrPayload  = errors.New("no payload or no segment size")
	ErrSegments = errors.New("too many segments")
)

// maxScratch limits the headers created for one frame, in bytes. Linux sends no TCP segment of less
// than 8 bytes (tcp_min_snd_mss minus all options), which gives 8,192 segments of at most 120 bytes
// of headers. A frame that needs more was crafted to be expensive.
const maxScratch = 1 << 20

// Segment is one packet for the wire in one or two parts. Body is empty if Head is the whole
// packet.
type Segment struct{ Head, Body []byte }

// Splitter splits frames into the packets they stand for. It owns the list of segments and the
// headers created for them, and reuses both for the next batch.
type Splitter struct {
	segs    []Segment
	scratch []byte // its length is what is in use; never grown in place, because segments point into it
}

// Reset drops all frames and invalidates their segments.
func (s *Splitter) Reset() {
	s.segs = s.segs[:0]
	s.scratch = s.scratch[:0]
}

// Split splits a frame, a vnet header followed by an IP packet, into the packets it stands for.
// Each is complete: lengths, IPv4 IDs, sequence numbers, flags and checksums are as the kernel's
// own segmentation makes them. The frame is changed in place; it contains the whole first packet
// and the payloads of the others. They are valid until Reset or until the frame is changed.
//
// For a frame without segmentation, Split returns its packet, with its partial checksum completed
// if it has one, and otherwise does not inspect it. A frame whose header or packet is inconsistent
// is rejected as a whole and not changed.
func (s *Splitter) Split(frame []byte) ([]Segment, error) {
	if len(frame) <= HeaderLen {
		return nil, ErrShort
	}
	var h Header
	h.Decode(frame)
	pkt := frame[HeaderLen:]
	first := len(s.segs)
	if h.Type == TypeNone {
		if h.Flags&NeedsCsum != 0 {
			if err := complete(pkt, h); err != nil {
				return nil, err
			}
		}
		s.segs = append(s.segs, Segment{Head: pkt})
		return s.segs[first:len(s.segs):len(s.segs)], nil
	}
	l, err := read(pkt)
	if err != nil {
		return nil, err
	}
	c, err := plan(pkt, h, l)
	if err != nil {
		return nil, err
	}
	s.cut(pkt, c)
	return s.segs[first:len(s.segs):len(s.segs)], nil
}

// complete finishes a partial checksum. It may belong to a header further in than the outermost
// transport header: a container's tunnel leaves the inner checksum to the device.
func complete(pkt []byte, h Header) error {
	l, err := read(pkt)
	if err != nil {
		return err
	}
	start, at := int(h.CsumStart), int(h.CsumStart)+int(h.CsumOffset)
	switch {
	case start < l.transport, at+2 > len(pkt), h.CsumOffset%2 != 0:
		return ErrChecksum
	case start > l.transport:
	case l.proto == protoTCP && h.CsumOffset != tcpChecksum,
		l.proto == protoUDP && h.CsumOffset != udpChecksum:
		return ErrChecksum
	}
	// The field contains the sum of the pseudo-header and so is included. As in skb_checksum_help,
	// 0 becomes 0xffff, which is correct for every protocol and needed for UDP.
	putUDPChecksum(pkt[at:], Sum(pkt[start:], 0))
	return nil
}

// cutting describes how to split a super packet: into pieces of size bytes, of which the last may
// be shorter, behind headers that end at header.
type cutting struct {
	layout
	header int    // bytes of IP and transport headers
	size   int    // payload bytes of each segment except the last
	pseudo uint64 // sum of the pseudo-header without the length
}

// plan checks the header of a super packet against the packet and returns how to split it.
//
// A frame without NeedsCsum is split as well. The kernel delivers such frames when it has verified
// the checksums on receipt, and its own segmentation computes them again.
func plan(pkt []byte, h Header, l layout) (cutting, error) {
	c := cutting{layout: l, size: int(h.GSOSize)}
	var offset int // of the checksum
	var err error
	switch {
	case h.Type&^TypeECN == TypeTCP4 && l.version == 4 && l.proto == protoTCP,
		h.Type&^TypeECN == TypeTCP6 && l.version == 6 && l.proto == protoTCP:
		c.header, err = tcpPayload(pkt, l.transport)
		offset = tcpChecksum
	case h.Type == TypeUDP && l.proto == protoUDP:
		c.header, err = udpPayload(pkt, l.transport)
		offset = udpChecksum
	default:
		return c, ErrType
	}
	if err != nil {
		return c, err
	}
	partial := h.Flags&NeedsCsum != 0
	if partial && (int(h.CsumStart) != l.transport || int(h.CsumOffset) != offset) {
		return c, ErrChecksum
	}
	payload := len(pkt) - c.header
	if c.size == 0 || payload == 0 {
		return c, ErrPayload
	}
	if (payload-1)/c.size*c.header > maxScratch {
		return c, ErrSegments
	}
	switch {
	case !l.routed:
		c.pseudo = addresses(pkt) + word(int(l.proto))
	case partial:
		// The pseudo-header contains the last destination of a routing header, not that of the IPv6
		// header (RFC 8200, section 8.1). The kernel's partial checksum includes it. Without the
		// length it is the sum needed here.
		sum := binary.NativeEndian.Uint16(pkt[l.transport+offset:])
		c.pseudo = uint64(sum) + uint64(^uint16(word(len(pkt)-l.transport)))
	default:
		return c, ErrChecksum
	}
	return c, nil
}

// tcpPayload returns where the payload of a TCP segment begins.
func tcpPayload(pkt []byte, transport int) (int, error) {
	if len(pkt) < transport+tcpLen {
		return 0, ErrShort
	}
	length := int(pkt[transport+12]>>4) * 4
	if length < tcpLen || transport+length > len(pkt) {
		return 0, ErrLength
	}
	return transport + length, nil
}

// udpPayload returns where the payload of a UDP datagram begins.
func udpPayload(pkt []byte, transport int) (int, error) {
	if len(pkt) < transport+udpLen {
		return 0, ErrShort
	}
	if int(binary.BigEndian.Uint16(pkt[transport+4:])) != len(pkt)-transport {
		return 0, ErrLength
	}
	return transport + udpLen, nil
}

// cut creates the segments: the first in place, the others behind copies of its headers.
func (s *Splitter) cut(pkt []byte, c cutting) {
	header, payload := pkt[:c.header], pkt[c.header:]
	size := min(c.size, len(payload))
	n := (len(payload) - 1) / c.size // segments after the first
	copies := s.room(n * c.header)
	s.segs = append(s.segs, Segment{Head: pkt[:c.header+size]})
	for i, rest := 1, payload[size:]; i <= n; i++ {
		h := copies[:c.header:c.header]
		copies = copies[c.header:]
		copy(h, header)
		body := rest[:min(size, len(rest)):min(size, len(rest))]
		rest = rest[len(body):]
		c.number(h, i, i == n)
		c.finish(h, body)
		s.segs = append(s.segs, Segment{Head: h, Body: body})
	}
	if n > 0 && c.proto == protoTCP {
		header[c.transport+13] &^= tcpFIN | tcpPSH
	}
	c.finish(header, payload[:size])
}

// number changes the headers of the first segment into those of segment i, counted from 0. As in
// the kernel's segmentation, CWR is set only on the first, because it answers one mark (RFC 3168,
// section 6.1.2), FIN and PSH only on the last, and the IPv4 ID is incremented whether DF is set or
// not.
func (c *cutting) number(header []byte, i int, last bool) {
	if c.version == 4 {
		id := binary.BigEndian.Uint16(header[4:])
		binary.BigEndian.PutUint16(header[4:], id+uint16(i))
	}
	if c.proto != protoTCP {
		return
	}
	tcp := header[c.transport:]
	seq := binary.BigEndian.Uint32(tcp[4:])
	binary.BigEndian.PutUint32(tcp[4:], seq+uint32(i*c.size))
	tcp[13] &^= tcpCWR
	if !last {
		tcp[13] &^= tcpFIN | tcpPSH
	}
}

// finish writes the lengths and checksums of a segment.
func (c *cutting) finish(header, payload []byte) {
	total := len(header) + len(payload)
	if c.version == 4 {
		binary.BigEndian.PutUint16(header[2:], uint16(total))
		header[10], header[11] = 0, 0
		putChecksum(header[10:], Sum(header[:c.transport], 0))
	} else {
		binary.BigEndian.PutUint16(header[4:], uint16(total-ipv6Len))
	}
	transport := header[c.transport:]
	pseudo := c.pseudo + word(total-c.transport)
	if c.proto == protoTCP {
		transport[tcpChecksum], transport[tcpChecksum+1] = 0, 0
		putChecksum(transport[tcpChecksum:], Sum(payload, Sum(transport, pseudo)))
		return
	}
	binary.BigEndian.PutUint16(transport[4:], uint16(total-c.transport))
	transport[udpChecksum], transport[udpChecksum+1] = 0, 0
	putUDPChecksum(transport[udpChecksum:], Sum(payload, Sum(transport, pseudo)))
}

// room reserves n bytes of the scratch memory.
func (s *Splitter) room(n int) []byte {
	used := len(s.scratch)
	if used+n > cap(s.scratch) {
		s.scratch = make([]byte, 0, max(64<<10, 2*cap(s.scratch), n))
		used = 0
	}
	s.scratch = s.scratch[:used+n]
	return s.scratch[used:]
}
