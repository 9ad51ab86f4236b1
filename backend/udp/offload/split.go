package offload

import (
	"encoding/binary"
	"errors"
)

// Why Split refuses a frame.
var (
	ErrShort    = errors.New("frame ends within its headers")
	ErrType     = errors.New("offload type is unknown or not that of the packet")
	ErrLength   = errors.New("length fields disagree with the packet")
	ErrFragment = errors.New("offload asked for a fragment")
	ErrChecksum = errors.New("checksum is not where the header says")
	ErrPayload  = errors.New("no payload or no segment size")
	ErrSegments = errors.New("too many segments")
)

// maxScratch bounds the headers made for one frame, in bytes. Linux sends no
// TCP segment of less than 8 bytes (tcp_min_snd_mss minus all options), which
// is 8,192 segments of at most 120 bytes of headers; a frame that asks for
// more was made to cost.
const maxScratch = 1 << 20

// Segment is one packet for the wire in up to two parts. Body is empty when
// Head is all of it.
type Segment struct{ Head, Body []byte }

// Splitter turns frames into the packets they stand for. It owns the list of
// segments and the headers made for them, both kept for the next batch.
type Splitter struct {
	segs    []Segment
	scratch []byte // its length is used; never grown in place, since segments point into it
}

// Reset forgets all frames. Their segments are void.
func (s *Splitter) Reset() {
	s.segs = s.segs[:0]
	s.scratch = s.scratch[:0]
}

// Split turns a frame, a vnet header and then an IP packet, into the packets
// it stands for, each complete: lengths, IPv4 IDs, sequence numbers, flags and
// checksums as the kernel's own segmentation makes them. The frame is edited
// in place; its first packet lies in it whole, and so do the payloads of the
// others. They are valid until Reset or until the frame is changed.
//
// A frame without segmentation gives its packet back, with its partial
// checksum completed if it has one, and otherwise unread. A frame whose header
// or packet lies is refused whole and left as it was.
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

// complete finishes a partial checksum. It may belong to a header further in
// than the outermost transport: a container's tunnel leaves the inner one to
// the device.
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
	// What stands in the field is the sum of the pseudo-header and so goes in.
	// As skb_checksum_help does: 0 becomes 0xffff, which is right for every
	// protocol and needed for UDP.
	putUDPChecksum(pkt[at:], Sum(pkt[start:], 0))
	return nil
}

// cutting is how a super packet is cut: into pieces of size bytes, the last
// one shorter or not, behind headers that end at header.
type cutting struct {
	layout
	header int    // bytes of IP and transport headers
	size   int    // payload bytes of each segment but the last
	pseudo uint64 // sum of the pseudo-header but for the length
}

// plan checks the header of a super packet against the packet and says how to
// cut it.
//
// A frame without NeedsCsum is cut as well: the kernel hands over such ones
// when it has verified checksums on receipt, and its own segmentation sums
// them anew.
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
		// The pseudo-header has the last destination of a routing header, not
		// that of the IPv6 header (RFC 8200, section 8.1); the kernel's partial
		// checksum knows it. Less the length it is the sum wanted.
		sum := binary.NativeEndian.Uint16(pkt[l.transport+offset:])
		c.pseudo = uint64(sum) + uint64(^uint16(word(len(pkt)-l.transport)))
	default:
		return c, ErrChecksum
	}
	return c, nil
}

// tcpPayload is where the payload of a TCP segment begins.
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

// udpPayload is where the payload of a UDP datagram begins.
func udpPayload(pkt []byte, transport int) (int, error) {
	if len(pkt) < transport+udpLen {
		return 0, ErrShort
	}
	if int(binary.BigEndian.Uint16(pkt[transport+4:])) != len(pkt)-transport {
		return 0, ErrLength
	}
	return transport + udpLen, nil
}

// cut makes the segments: the first where it lies, the others behind copies of
// its headers.
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

// number makes the headers of the first segment those of segment i, counted
// from 0. As in the kernel's segmentation, CWR is on the first alone, since it
// answers one mark (RFC 3168, section 6.1.2), FIN and PSH on the last, and the
// IPv4 ID goes up whether DF is set or not.
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

// finish writes lengths and checksums of a segment.
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

// room takes n bytes of the scratch memory.
func (s *Splitter) room(n int) []byte {
	used := len(s.scratch)
	if used+n > cap(s.scratch) {
		s.scratch = make([]byte, 0, max(64<<10, 2*cap(s.scratch), n))
		used = 0
	}
	s.scratch = s.scratch[:used+n]
	return s.scratch[used:]
}
