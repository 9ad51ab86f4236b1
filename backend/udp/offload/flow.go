package offload

import (
	"bytes"
	"encoding/binary"
)

// kind tells what a Joiner can do with a packet.
type kind uint8

const (
	unknown  kind = iota // of no identifiable flow: fragments, options, other protocols
	single               // of a flow, but never joined
	joinable             // of a flow, and may be joined
)

// segment holds what a Joiner reads of one packet.
type segment struct {
	key       uint64    // version, protocol and ports, never 0 for a packet of a flow
	addrs     [4]uint64 // source and destination in packet byte order; for IPv4 in the first element
	version   byte
	proto     byte
	push      bool // TCP's PSH
	transport int  // bytes of IP header
	header    int  // bytes of IP and transport header
	size      int  // bytes of payload
}

// read parses a packet. For an unknown one it sets only the version and, for a complete header, the
// addresses.
func (s *segment) read(pkt []byte) kind {
	if len(pkt) < ipv4Len {
		return unknown
	}
	// From here on both families are alike: no options, no extension headers.
	if s.version = pkt[0] >> 4; s.version == 4 {
		s.addrs[0] = binary.NativeEndian.Uint64(pkt[12:])
		// Of the flags only DF may be set, and the offset must be 0.
		if pkt[0] != 0x45 || pkt[6]&^0x40 != 0 || pkt[7] != 0 {
			return unknown
		}
		s.transport, s.proto = ipv4Len, pkt[9]
	} else {
		if len(pkt) < ipv6Len {
			return unknown
		}
		a := (*[32]byte)(pkt[8:40])
		s.addrs[0] = binary.NativeEndian.Uint64(a[0:])
		s.addrs[1] = binary.NativeEndian.Uint64(a[8:])
		s.addrs[2] = binary.NativeEndian.Uint64(a[16:])
		s.addrs[3] = binary.NativeEndian.Uint64(a[24:])
		s.transport, s.proto = ipv6Len, pkt[6]
	}
	transport := pkt[s.transport:]
	switch {
	case s.proto == protoTCP && len(transport) >= tcpLen:
		return s.readTCP(transport)
	case s.proto == protoUDP && len(transport) >= udpLen:
		return s.readUDP(transport)
	}
	return unknown
}

func (s *segment) readTCP(transport []byte) kind {
	length := int(transport[12]>>4) * 4
	if length < tcpLen || length > len(transport) {
		return unknown
	}
	s.setKey(transport)
	s.header = s.transport + length
	s.size = len(transport) - length
	s.push = transport[13]&tcpPSH != 0
	// ACK and perhaps PSH, no reserved bit, and a payload to join.
	if transport[13]&^tcpPSH != tcpACK || transport[12]&0x0f != 0 || s.size == 0 {
		return single
	}
	return joinable
}

func (s *segment) readUDP(transport []byte) kind {
	s.setKey(transport)
	s.header = s.transport + udpLen
	s.size = len(transport) - udpLen
	// A datagram shorter than its packet, one without a checksum (segmentation would add one), or
	// an empty one.
	if int(binary.BigEndian.Uint16(transport[4:])) != len(transport) ||
		transport[udpChecksum]|transport[udpChecksum+1] == 0 || s.size == 0 {
		return single
	}
	return joinable
}

func (s *segment) setKey(transport []byte) {
	s.key = uint64(s.version)<<40 | uint64(s.proto)<<32 | uint64(binary.NativeEndian.Uint32(transport))
}

// verify reports whether the IP and transport checksums of a packet laid out like s are correct.
// pseudo is the sum of the pseudo-header without the length. A TCP or IPv4 checksum of 0xffff is
// valid where segmentation would write 0, but counts as wrong because segmentation could not
// reproduce it.
func verify(pkt []byte, s *segment, pseudo uint64) bool {
	if s.version == 4 && (Checksum(pkt[:ipv4Len], 0) != 0 || pkt[10]&pkt[11] == 0xff) {
		return false
	}
	transport := pkt[s.transport:]
	if s.proto == protoTCP && transport[tcpChecksum]&transport[tcpChecksum+1] == 0xff {
		return false
	}
	return Checksum(transport, pseudo+word(len(transport))) == 0
}

// flow is a frame that packets can be appended to.
type flow struct {
	key      uint64 // 0 if the flow is closed
	addrs    [4]uint64
	version  byte
	verified bool   // the first packet's checksums are correct
	pseudo   uint64 // sum of the pseudo-header without the length; set once verified
	frame    int32  // index of the frame; higher means younger
	id       uint16 // IPv4 ID and TCP sequence number of the next packet
	seq      uint32
	head     []byte // the first packet
}

// continues reports whether a packet is what segmentation would produce next, apart from lengths
// and checksums.
func (f *flow) continues(pkt []byte, s *segment) bool {
	head := f.head
	if s.version == 4 {
		// Version and service, flags, TTL and protocol.
		if binary.NativeEndian.Uint16(pkt) != binary.NativeEndian.Uint16(head) ||
			binary.NativeEndian.Uint32(pkt[6:]) != binary.NativeEndian.Uint32(head[6:]) {
			return false
		}
		// The ID of a packet with DF has no meaning (RFC 6864, section 4.1).
		if pkt[6]&0x40 == 0 && binary.BigEndian.Uint16(pkt[4:]) != f.id {
			return false
		}
	} else if binary.NativeEndian.Uint32(pkt) != binary.NativeEndian.Uint32(head) ||
		binary.NativeEndian.Uint16(pkt[6:]) != binary.NativeEndian.Uint16(head[6:]) {
		// Version, class and flow label, next header and hop limit.
		return false
	}
	if s.proto == protoUDP {
		return true
	}
	// The header's length is in the byte before the flags.
	a, b := pkt[s.transport:s.header], head[s.transport:]
	if binary.BigEndian.Uint32(a[4:]) != f.seq ||
		binary.NativeEndian.Uint32(a[8:]) != binary.NativeEndian.Uint32(b[8:]) || // acknowledgement
		a[12] != b[12] ||
		binary.NativeEndian.Uint16(a[14:]) != binary.NativeEndian.Uint16(b[14:]) || // window
		binary.NativeEndian.Uint16(a[18:]) != binary.NativeEndian.Uint16(b[18:]) { // urgent pointer
		return false
	}
	return bytes.Equal(a[tcpLen:], b[tcpLen:len(a)])
}

// find returns the open frame of a packet's flow, or nil.
func (j *Joiner) find(s *segment) *flow {
	if f := &j.open[j.last]; f.key == s.key && f.addrs == s.addrs {
		return f
	}
	for i := range j.open {
		if f := &j.open[i]; f.key == s.key && f.addrs == s.addrs {
			j.last = i
			return f
		}
	}
	return nil
}

// start opens a frame for appending. It replaces f, the flow's previous one, or if f is nil a free
// one or the oldest.
func (j *Joiner) start(f *flow, pkt []byte, s *segment, frame int) {
	if f == nil {
		j.last = 0
		for i := range j.open {
			if j.open[i].key == 0 {
				j.last = i
				break
			}
			if j.open[i].frame < j.open[j.last].frame {
				j.last = i
			}
		}
		f = &j.open[j.last]
	}
	*f = flow{key: s.key, addrs: s.addrs, version: s.version, frame: int32(frame), head: pkt}
	if s.version == 4 {
		f.id = binary.BigEndian.Uint16(pkt[4:]) + 1
	}
	if s.proto == protoTCP {
		f.seq = binary.BigEndian.Uint32(pkt[s.transport+4:]) + uint32(s.size)
	}
}

// closeHosts closes the frames with a packet's addresses, because the packet may belong to the flow
// of any of them.
func (j *Joiner) closeHosts(s *segment) {
	for i := range j.open {
		if f := &j.open[i]; f.version == s.version && f.addrs == s.addrs {
			f.key = 0
		}
	}
}

func (j *Joiner) closeAll() {
	for i := range j.open {
		j.open[i].key = 0
	}
}
