package offload

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

// refWrong returns what is wrong with a frame, or "". It implements the rules of Split a second
// time, in the order of the frame.
func refWrong(frame []byte) string {
	if len(frame) <= HeaderLen {
		return "short"
	}
	var h Header
	h.Decode(frame)
	pkt := frame[HeaderLen:]
	if h.Type == 0 && h.Flags&1 == 0 {
		return ""
	}
	var at int
	var proto byte
	switch {
	case pkt[0]>>4 == 4 && len(pkt) >= 20:
		at, proto = int(pkt[0]&15)*4, pkt[9]
		if at < 20 || at > len(pkt) || int(binary.BigEndian.Uint16(pkt[2:])) != len(pkt) {
			return "length"
		}
		if pkt[6]&0x3f != 0 || pkt[7] != 0 {
			return "fragment"
		}
	case pkt[0]>>4 == 6 && len(pkt) >= 40:
		if int(binary.BigEndian.Uint16(pkt[4:]))+40 != len(pkt) {
			return "length"
		}
		for at, proto = 40, pkt[6]; slices.Contains([]byte{0, 43, 60}, proto); {
			if at+8 > len(pkt) {
				return "extension"
			}
			proto, at = pkt[at], at+8+8*int(pkt[at+1])
			if at > len(pkt) {
				return "extension"
			}
		}
		if proto == 44 {
			return "fragment"
		}
	default:
		return "not IP"
	}
	start, offset := int(h.CsumStart), int(h.CsumOffset)
	if h.Type == 0 {
		if start < at || start+offset+2 > len(pkt) || offset%2 != 0 ||
			start == at && (proto == 6 && offset != 16 || proto == 17 && offset != 6) {
			return "checksum"
		}
		return ""
	}
	kinds := map[uint8][2]byte{1: {4, 6}, 4: {6, 6}, 0x81: {4, 6}, 0x84: {6, 6}, 5: {pkt[0] >> 4, 17}}
	if kinds[h.Type] != [2]byte{pkt[0] >> 4, proto} {
		return "type"
	}
	headers := at + 8
	if proto == 6 {
		if len(pkt) < at+20 || pkt[at+12]>>4 < 5 {
			return "TCP header"
		}
		headers = refHeaders(pkt)
	}
	switch {
	case len(pkt) <= headers:
		return "no payload"
	case proto == 17 && int(binary.BigEndian.Uint16(pkt[at+4:])) != len(pkt)-at:
		return "UDP length"
	case h.GSOSize == 0:
		return "no size"
	case (len(pkt)-headers-1)/int(h.GSOSize)*headers > 1<<20:
		return "too many"
	case h.Flags&1 != 0 && (start != at || offset != refField(pkt)-at):
		return "checksum"
	case h.Flags&1 == 0 && refRouted(pkt):
		return "no pseudo-header"
	}
	return ""
}

func refRouted(pkt []byte) bool {
	at, proto := 40, pkt[6]
	for pkt[0]>>4 == 6 && (proto == 0 || proto == 43 || proto == 60) {
		if proto == 43 {
			return true
		}
		proto, at = pkt[at], at+8+8*int(pkt[at+1])
	}
	return false
}

// refWhole returns the packets that a valid frame stands for.
func refWhole(frame []byte) [][]byte {
	var h Header
	h.Decode(frame)
	pkt := bytes.Clone(frame[HeaderLen:])
	if h.Type != 0 {
		return refSplit(pkt, int(h.GSOSize))
	}
	if h.Flags&1 != 0 {
		sum := ^refSum(pkt[h.CsumStart:])
		if sum == 0 {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(pkt[h.CsumStart+h.CsumOffset:], sum)
	}
	return [][]byte{pkt}
}

// FuzzSplit checks that for any frame from the kernel, nothing panics, an invalid frame is rejected
// and not changed, and a valid one becomes the packets of the reference.
func FuzzSplit(f *testing.F) {
	f.Add([]byte{})
	for _, spec := range supers() {
		spec.payload = spec.payload[:min(300, len(spec.payload))]
		pkt := spec.build()
		f.Add(super(pkt, 0))
		f.Add(super(pkt, 100))
		f.Add(frameOf(Header{}, pkt))
		if spec.first == 0 && spec.extensions != nil {
			pkt = spec.with(func(s *packetSpec) { s.first = 43 }).build()
			f.Add(super(pkt, 100))
		}
	}
	var s Splitter
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) <= HeaderLen+65535 {
			checkSplit(t, &s, frame)
		}
	})
}

// checkSplit compares Split with the reference for any frame.
func checkSplit(t *testing.T, s *Splitter, frame []byte) {
	t.Helper()
	before := bytes.Clone(frame)
	wrong := refWrong(frame)
	s.Reset()
	segs, err := s.Split(frame)
	if (err != nil) != (wrong != "") {
		t.Fatalf("%d segments, %v, want %q\n%x", len(segs), err, wrong, before[:min(150, len(before))])
	}
	if err != nil {
		if segs != nil || !bytes.Equal(frame, before) {
			t.Fatal("refused and yet changed")
		}
		return
	}
	got, want := whole(segs), refWhole(before)
	if before[1] != 0 && refRouted(before[HeaderLen:]) {
		// The reference does not know the pseudo-header.
		for _, pkt := range slices.Concat(got, want) {
			copy(pkt[refField(pkt):], []byte{0, 0})
		}
	}
	checkPackets(t, got, want)
}

// TestSplitEdited flips every bit of the headers, and tries every byte at its limits and every
// length.
func TestSplitEdited(t *testing.T) {
	var s Splitter
	for name, spec := range supers() {
		t.Run(name, func(t *testing.T) {
			spec.payload = spec.payload[:min(60, len(spec.payload))]
			for _, size := range []int{0, 20} {
				right := super(spec.build(), size)
				for at := range len(right) - len(spec.payload) + 1 {
					old := right[at]
					for _, to := range []byte{0, 1, 0x7f, 0x80, 0xff, old - 1, old + 1, old ^ 2, old ^ 4, old ^ 8, old ^ 16, old ^ 32, old ^ 64} {
						frame := bytes.Clone(right)
						frame[at] = to
						checkSplit(t, &s, frame)
					}
				}
				for n := range right {
					checkSplit(t, &s, bytes.Clone(right[:n]))
					if n <= HeaderLen+40 {
						continue
					}
					// Truncated, with matching length fields.
					frame := bytes.Clone(right[:n])
					binary.BigEndian.PutUint16(frame[HeaderLen+2:], uint16(n-HeaderLen))
					if spec.v6 {
						binary.BigEndian.PutUint16(frame[HeaderLen+4:], uint16(n-HeaderLen-40))
					}
					checkSplit(t, &s, frame)
				}
			}
		})
	}
}

// program makes packets from a fuzzer's bytes. Six bytes make one packet of one of 16 flows: the
// next of its stream, or one that is changed.
func program(code []byte) (pkts [][]byte) {
	var flows [16]packetSpec
	for i := range flows {
		flows[i] = packetSpec{
			host: byte(2 + i%3), port: uint16(i / 8), v6: i&1 != 0, udp: i&2 != 0, df: i&4 != 0,
			seq: 0xffffff00, id: 0xfffe, options: [][]byte{nil, timestamps}[i/4%2],
		}
	}
	for ; len(code) >= 6 && len(pkts) < 300; code = code[6:] {
		flow := &flows[code[0]&15]
		n := int(code[1])
		if n > 200 {
			n *= 20
		}
		flow.payload = fill(n)
		one := *flow
		switch op := code[2]; {
		case op >= 240:
			one.flags = code[3]
		case op >= 230:
			one.seq += uint32(int8(code[3]))
		case op >= 220:
			one.id += uint16(int8(code[3]))
		case op >= 210:
			one.ipOptions, one.extensions = make([]byte, 4), slices.Clone(hopByHop)
			if one.udp {
				one.extensions[0] = 17
			}
		}
		pkt := one.build()
		if code[2]&1 != 0 && code[2] < 210 {
			edit(pkt, int(binary.LittleEndian.Uint16(code[3:])), code[5], code[2]&2 != 0)
		}
		pkts = append(pkts, pkt)
		flow.seq += uint32(n)
		flow.id++
	}
	return pkts
}

// edit changes a byte of a packet, except for what callers of Add check, and may correct the
// checksums afterwards.
func edit(pkt []byte, at int, by byte, finish bool) {
	if pkt[0]>>4 == 4 && at%3 == 0 {
		at /= 3
		at %= 40 // prefer a header
	}
	before := bytes.Clone(pkt[:min(40, len(pkt))])
	pkt[at%len(pkt)] ^= by
	if pkt[0]>>4 == 4 {
		copy(pkt[2:4], before[2:4])
	} else {
		copy(pkt[4:6], before[4:6])
	}
	if n := int(pkt[0]&15) * 4; pkt[0]>>4 != before[0]>>4 || pkt[0]>>4 == 4 && (n < 20 || n > len(pkt)) {
		pkt[0] = before[0]
	}
	if _, _, known := refFlow(pkt); known && finish {
		refFinish(pkt)
	}
}

// FuzzJoin checks that for any packets from the wire, every packet comes out as it came in, in the
// frame that the reference puts it into, and the order within flows is kept.
func FuzzJoin(f *testing.F) {
	f.Add([]byte{})
	for op := range 256 {
		var code []byte
		for i := range 24 {
			b := [6]byte{byte(i % 3), 100, 0, 0x20, byte(op), 0x10}
			if i%8 == 5 {
				b[2], b[3] = byte(op), byte(op*7)
			}
			code = append(code, b[:]...)
		}
		if op%16 < 2 {
			f.Add(code)
		}
	}
	// Up to each limit of a frame, and more flows than places.
	f.Add(bytes.Repeat([]byte{0, 10, 0, 0, 0, 0}, 140))
	f.Add(bytes.Repeat([]byte{2, 10, 0, 0, 0, 0}, 70))
	f.Add(bytes.Repeat([]byte{1, 250, 0, 0, 0, 0}, 20))
	var many []byte
	for i := range 60 {
		many = append(many, byte(i*7%15), 10, 0, 0, 0, 0)
	}
	f.Add(many)
	j := NewJoiner(true, true)
	f.Fuzz(func(t *testing.T, code []byte) {
		pkts := program(code)
		into := joinAll(t, j, pkts)
		if want := refJoin(pkts); !slices.Equal(into, want) {
			t.Fatalf("packets went into %v, want %v", into, want)
		}
		for i, pkt := range pkts {
			hosts, flow, known := refFlow(pkt)
			for k := range i {
				earlierHosts, earlier, earlierKnown := refFlow(pkts[k])
				same := flow == earlier
				if !known || !earlierKnown {
					same = hosts == earlierHosts
				}
				if same && into[k] > into[i] {
					t.Fatalf("packet %d went into frame %d, packet %d of the same flow into %d", k, into[k], i, into[i])
				}
			}
		}
	})
}
