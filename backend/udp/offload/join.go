package offload

import "encoding/binary"

const (
	// maxPackets is how many packets a Joiner takes before it is Full. That is more than a device
	// or a socket delivers in one go.
	maxPackets = 1024
	// maxOpen is how many flows can have an open frame at a time.
	maxOpen = 8
	// maxSegments is how many TCP segments one frame may stand for: more than 64 KiB of any usual
	// size, and far below the 1,024 parts that writev accepts.
	maxSegments = 128
	// maxDatagrams is how many datagrams one frame may stand for in every kernel that supports
	// UDP_L4 (UDP_MAX_SEGMENTS was 64 before Linux 6.9).
	maxDatagrams = 64
	// maxTotal is the longest IP packet, in bytes.
	maxTotal = 65535
)

// Frame is what one write sends to the device: a vnet header, then the parts of one packet.
type Frame struct {
	Header  [HeaderLen]byte
	Parts   [][]byte // the whole first packet, then the payloads of the others
	Packets int      // how many were joined
	Bytes   int      // sum of the packets' IP lengths as they came from the wire
}

// Joiner joins packets, given in their order of arrival, into super packets. It joins consecutive
// TCP segments of a flow, or UDP datagrams of a flow, if the kernel's segmentation would split the
// result into the same packets again. All other packets are left as they are. The order within a
// flow is kept.
//
// A joined packet is marked as needing its checksum, and the kernel then trusts its contents. So
// every packet is verified before it is joined. Packets left as they are are verified by the
// kernel.
type Joiner struct {
	tcp, udp bool
	open     [maxOpen]flow
	last     int // index in open of the flow used last
	packets  []packet
	joins    []join
	frames   []Frame
	parts    [][]byte
}

// packet is an added packet, without its headers unless it is the first of its frame.
type packet struct {
	part []byte
	next int32 // the next packet of the frame; 0 is none, because packet 0 is never a next one
}

// join is a frame under construction.
type join struct {
	first, last    int32 // indexes in packets
	count          int32
	size           uint16 // payload bytes of the first packet
	transport      uint8  // bytes of IP header
	header         uint8  // bytes of IP and transport header
	proto          uint8
	push           bool // the last packet has PSH
	total, carried int  // bytes of the super packet, and of the packets joined in it
}

// NewJoiner returns a Joiner for the kinds of super packets that the device accepts: TUN_F_TSO4 and
// TUN_F_TSO6 for tcp, TUN_F_USO4 and TUN_F_USO6 for udp.
func NewJoiner(tcp, udp bool) *Joiner {
	return &Joiner{
		tcp: tcp, udp: udp,
		packets: make([]packet, 0, maxPackets),
		joins:   make([]join, 0, maxPackets),
		frames:  make([]Frame, 0, maxPackets),
		parts:   make([][]byte, 0, maxPackets),
	}
}

// Reset drops all packets and invalidates the frames.
func (j *Joiner) Reset() {
	j.packets = j.packets[:0]
	j.joins = j.joins[:0]
	j.closeAll()
}

// Full reports whether it is time to write the frames and to call Reset. Adding more packets costs
// an allocation.
func (j *Joiner) Full() bool { return len(j.packets) >= maxPackets }

// Add adds one IP packet and returns the index of the frame it went into. The caller has checked
// its version, the length of its IP header, and that its total length equals len(pkt). The Joiner
// keeps pkt until Reset; Frames may change its headers.
func (j *Joiner) Add(pkt []byte) int {
	var s segment
	switch s.read(pkt) {
	case unknown:
		j.closeHosts(&s)
		return j.alone(pkt)
	case single:
		if f := j.find(&s); f != nil {
			f.key = 0
		}
		return j.alone(pkt)
	}
	if s.proto == protoTCP && !j.tcp || s.proto == protoUDP && !j.udp {
		return j.alone(pkt)
	}
	f := j.find(&s)
	if f != nil {
		if frame, ok := j.extend(f, pkt, &s); ok {
			return frame
		}
		f.key = 0
	}
	frame := j.alone(pkt)
	if s.proto == protoTCP && s.push {
		return frame
	}
	jn := &j.joins[frame]
	jn.size, jn.proto = uint16(s.size), s.proto
	jn.transport, jn.header = uint8(s.transport), uint8(s.header)
	j.start(f, pkt, &s, frame)
	return frame
}

// alone gives a packet its own frame.
func (j *Joiner) alone(pkt []byte) int {
	at := int32(len(j.packets))
	j.packets = append(j.packets, packet{part: pkt})
	j.joins = append(j.joins, join{first: at, last: at, count: 1, total: len(pkt), carried: len(pkt)})
	return len(j.joins) - 1
}

// extend appends a packet to its flow's frame if possible.
func (j *Joiner) extend(f *flow, pkt []byte, s *segment) (frame int, ok bool) {
	jn := &j.joins[f.frame]
	if !f.continues(pkt, s) || s.size > int(jn.size) || jn.total+s.size > maxTotal {
		return 0, false
	}
	if jn.count >= maxSegments || s.proto == protoUDP && jn.count >= maxDatagrams {
		return 0, false
	}
	if !f.verified {
		f.pseudo = addresses(pkt) + word(int(s.proto))
		if !verify(f.head, s, f.pseudo) {
			return 0, false
		}
		f.verified = true
	}
	if !verify(pkt, s, f.pseudo) {
		// This packet cannot be joined, and later ones must come after it.
		f.key = 0
		return j.alone(pkt), true
	}
	at := int32(len(j.packets))
	j.packets = append(j.packets, packet{part: pkt[s.header:]})
	j.packets[jn.last].next = at
	jn.last = at
	jn.count++
	jn.total += s.size
	jn.carried += len(pkt)
	jn.push = s.push
	frame = int(f.frame)
	if s.push || s.size < int(jn.size) {
		f.key = 0
		return frame, true
	}
	f.seq += uint32(s.size)
	f.id++
	return frame, true
}

// Frames completes the joined packets and returns all frames in the order to write. They are valid
// until Reset. No packet is appended to them any more.
func (j *Joiner) Frames() []Frame {
	j.closeAll()
	j.frames, j.parts = j.frames[:0], j.parts[:0]
	for i := range j.joins {
		jn := &j.joins[i]
		f := Frame{Packets: int(jn.count), Bytes: jn.carried}
		begin := len(j.parts)
		for at := jn.first; ; at = j.packets[at].next {
			j.parts = append(j.parts, j.packets[at].part)
			if at == jn.last {
				break
			}
		}
		f.Parts = j.parts[begin:len(j.parts):len(j.parts)]
		if jn.count > 1 {
			jn.complete(f.Parts[0]).Encode(f.Header[:])
		}
		j.frames = append(j.frames, f)
	}
	return j.frames
}

// complete changes the first packet's headers into those of the super packet and returns its vnet
// header. It is idempotent.
func (jn *join) complete(pkt []byte) Header {
	h := Header{
		Flags: NeedsCsum, HdrLen: uint16(jn.header), GSOSize: jn.size, CsumStart: uint16(jn.transport),
	}
	// The length and checksum of the IP header differ by family, and so do the types of offload.
	if pkt[0]>>4 == 4 {
		h.Type = TypeTCP4
		binary.BigEndian.PutUint16(pkt[2:], uint16(jn.total))
		pkt[10], pkt[11] = 0, 0
		putChecksum(pkt[10:], Sum(pkt[:ipv4Len], 0))
	} else {
		h.Type = TypeTCP6
		binary.BigEndian.PutUint16(pkt[4:], uint16(jn.total-ipv6Len))
	}
	transport := pkt[jn.transport:jn.header]
	length := jn.total - int(jn.transport)
	// The sum of the pseudo-header, not its complement: the kernel or the network card adds the
	// rest to it.
	partial := fold(addresses(pkt) + word(int(jn.proto)) + word(length))
	if jn.proto == protoUDP {
		h.Type, h.CsumOffset = TypeUDP, udpChecksum
		binary.BigEndian.PutUint16(transport[4:], uint16(length))
		binary.NativeEndian.PutUint16(transport[udpChecksum:], partial)
		return h
	}
	h.CsumOffset = tcpChecksum
	if jn.push {
		transport[13] |= tcpPSH
	}
	binary.NativeEndian.PutUint16(transport[tcpChecksum:], partial)
	return h
}
