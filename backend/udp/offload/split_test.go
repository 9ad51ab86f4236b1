package offload

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/lenonet/leno/internal/testkit/seed"
)

var (
	timestamps = []byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}

	hopByHop    = []byte{6, 0, 1, 4, 0, 0, 0, 0}
	destination = []byte{6, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
)

// supers returns packets that stand for several, by name.
func supers() map[string]packetSpec {
	tcp4 := packetSpec{host: 2, id: 0xfffe, df: true, seq: 0xffffff00, ack: 7, window: 500, options: timestamps, payload: fill(5000)}
	tcp6 := tcp4.with(func(s *packetSpec) { s.v6, s.flow, s.tos = true, 0xabcde, 0x2 })
	return map[string]packetSpec{
		"tcp4":             tcp4,
		"tcp4 without DF":  tcp4.with(func(s *packetSpec) { s.df = false }),
		"tcp4 PSH FIN":     tcp4.with(func(s *packetSpec) { s.flags = 0x19 }),
		"tcp4 CWR ECE":     tcp4.with(func(s *packetSpec) { s.flags = 0xd8 }),
		"tcp4 IP options":  tcp4.with(func(s *packetSpec) { s.ipOptions = []byte{148, 4, 0, 0} }),
		"tcp4 all options": tcp4.with(func(s *packetSpec) { s.ipOptions, s.options = fill(40), fill(40) }),
		"tcp4 no options":  tcp4.with(func(s *packetSpec) { s.options = nil }),
		"tcp4 odd payload": tcp4.with(func(s *packetSpec) { s.payload = fill(4999) }),
		"tcp4 one byte":    tcp4.with(func(s *packetSpec) { s.payload = fill(1) }),
		"tcp4 64 KiB":      tcp4.with(func(s *packetSpec) { s.payload = fill(65535 - 52) }),
		"tcp6":             tcp6,
		"tcp6 PSH FIN":     tcp6.with(func(s *packetSpec) { s.flags = 0x19 }),
		"tcp6 hop by hop":  tcp6.with(func(s *packetSpec) { s.first, s.extensions = 0, hopByHop }),
		"tcp6 two extension": tcp6.with(func(s *packetSpec) {
			s.first, s.extensions = 0, slices.Concat([]byte{60, 0, 1, 4, 0, 0, 0, 0}, destination)
		}),
		"udp4": tcp4.with(func(s *packetSpec) { s.udp = true }),
		"udp6": tcp6.with(func(s *packetSpec) { s.udp = true }),
	}
}

// whole concatenates the parts of each segment.
func whole(segs []Segment) [][]byte {
	var out [][]byte
	for _, s := range segs {
		out = append(out, slices.Concat(s.Head, s.Body))
	}
	return out
}

func checkPackets(t *testing.T, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d packets, want %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("packet %d of %d is\n%x, want\n%x", i, len(want), got[i], want[i])
		}
	}
}

func TestSplit(t *testing.T) {
	for name, spec := range supers() {
		for _, size := range []int{1, 2, 999, 1000, 1001, 1420, 2500, 4999, 5000, 5001, 65535} {
			if size < 999 && len(spec.payload) > 5000 {
				continue
			}
			t.Run(fmt.Sprintf("%s by %d", name, size), func(t *testing.T) {
				var s Splitter
				pkt := spec.build()
				frame := super(pkt, size)
				segs, err := s.Split(frame)
				if err != nil {
					t.Fatal(err)
				}
				checkPackets(t, whole(segs), refSplit(pkt, size))
				// The first packet stays in the frame, and so do all payloads.
				if &segs[0].Head[0] != &frame[HeaderLen] || segs[0].Body != nil {
					t.Error("the first packet was moved")
				}
				for i, seg := range segs[1:] {
					if at := HeaderLen + refHeaders(pkt) + (i+1)*size; &seg.Body[0] != &frame[at] {
						t.Errorf("payload %d was moved", i+1)
					}
				}
			})
		}
	}
}

// TestSplitVerified checks that without NeedsCsum the result is the same, whatever the checksum
// field contains.
func TestSplitVerified(t *testing.T) {
	for name, spec := range supers() {
		t.Run(name, func(t *testing.T) {
			var s Splitter
			pkt := spec.build()
			h := refHeader(pkt, 1000)
			h.Flags, h.CsumStart, h.CsumOffset = DataValid, 0, 0
			segs, err := s.Split(frameOf(h, pkt))
			if err != nil {
				t.Fatal(err)
			}
			checkPackets(t, whole(segs), refSplit(pkt, 1000))
		})
	}
}

func TestSplitECN(t *testing.T) {
	for _, name := range []string{"tcp4 CWR ECE", "tcp6"} {
		var s Splitter
		pkt := supers()[name].build()
		frame := super(pkt, 1000)
		frame[1] |= TypeECN
		segs, err := s.Split(frame)
		if err != nil {
			t.Fatal(err)
		}
		checkPackets(t, whole(segs), refSplit(pkt, 1000))
	}
}

// TestSplitRoutingHeader checks that the pseudo-header has the routing header's last address as
// destination.
func TestSplitRoutingHeader(t *testing.T) {
	last := []byte{0xfd, 0, 0, 5, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 9}
	spec := supers()["tcp6"].with(func(s *packetSpec) {
		s.first, s.extensions = 43, slices.Concat([]byte{6, 2, 4, 1, 0, 0, 0, 0}, last)
	})
	pkt := spec.build()
	// arrived returns a packet as its last host sees it.
	arrived := func(p []byte) []byte {
		p = bytes.Clone(p)
		copy(p[24:40], last)
		return p
	}
	partial := arrived(pkt)
	refPartial(partial)
	copy(partial[24:40], pkt[24:40])

	var s Splitter
	segs, err := s.Split(frameOf(refHeader(partial, 1000), partial))
	if err != nil {
		t.Fatal(err)
	}
	var got [][]byte
	for _, p := range whole(segs) {
		got = append(got, arrived(p))
	}
	checkPackets(t, got, refSplit(arrived(pkt), 1000))

	h := refHeader(partial, 1000)
	h.Flags = 0
	if _, err := s.Split(frameOf(h, partial)); !errors.Is(err, ErrChecksum) {
		t.Errorf("without the partial checksum: %v", err)
	}
}

func TestSplitWithoutSegmentation(t *testing.T) {
	for name, spec := range supers() {
		t.Run(name, func(t *testing.T) {
			var s Splitter
			pkt := spec.build()
			as, err := s.Split(frameOf(Header{}, pkt))
			if err != nil {
				t.Fatal(err)
			}
			verified, err := s.Split(frameOf(Header{Flags: DataValid}, pkt))
			if err != nil {
				t.Fatal(err)
			}
			partial, err := s.Split(super(pkt, 0))
			if err != nil {
				t.Fatal(err)
			}
			checkPackets(t, whole(slices.Concat(as, verified, partial)), [][]byte{pkt, pkt, pkt})
		})
	}
	t.Run("not IP", func(t *testing.T) {
		var s Splitter
		segs, err := s.Split(frameOf(Header{}, []byte{0xff}))
		if err != nil {
			t.Fatal(err)
		}
		checkPackets(t, whole(segs), [][]byte{{0xff}})
	})
}

// TestSplitZeroUDPChecksum checks that a UDP checksum that is computed as 0 is sent as 0xffff,
// because 0 means that there is none.
func TestSplitZeroUDPChecksum(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		spec := packetSpec{v6: v6, udp: true, host: 2, payload: make([]byte, 8)}
		pkt := spec.build()
		copy(spec.payload, pkt[refField(pkt):][:2]) // its checksum becomes ^0 - 0
		pkt = spec.build()
		if c := pkt[refField(pkt):][:2]; c[0]&c[1] != 0xff {
			t.Fatalf("checksum %x", c)
		}
		var s Splitter
		alone, err := s.Split(super(pkt, 0))
		if err != nil {
			t.Fatal(err)
		}
		double := spec.with(func(s *packetSpec) { s.payload = slices.Concat(s.payload, s.payload) }).build()
		two, err := s.Split(super(double, 8))
		if err != nil {
			t.Fatal(err)
		}
		checkPackets(t, whole(slices.Concat(alone, two[:1])), [][]byte{pkt, pkt})
	}
}

// TestSplitInnerChecksum checks that a tunnel's inner checksum is left to the device, and the outer
// one is not.
func TestSplitInnerChecksum(t *testing.T) {
	inner := packetSpec{host: 9, seq: 1, payload: fill(99)}.build()
	outer := packetSpec{udp: true, host: 2, payload: inner}.build()
	partial := bytes.Clone(outer)
	refPartial(partial[28:])
	h := Header{Flags: NeedsCsum, CsumStart: 28 + 20, CsumOffset: 16}
	var s Splitter
	segs, err := s.Split(frameOf(h, partial))
	if err != nil {
		t.Fatal(err)
	}
	checkPackets(t, whole(segs), [][]byte{outer})
}

func TestSplitRefuses(t *testing.T) {
	set := func(at int, to ...byte) func([]byte) []byte {
		return func(frame []byte) []byte {
			copy(frame[HeaderLen+at:], to)
			return frame
		}
	}
	header := func(edit func(*Header)) func([]byte) []byte {
		return func(frame []byte) []byte {
			var h Header
			h.Decode(frame)
			edit(&h)
			h.Encode(frame)
			return frame
		}
	}
	cut := func(n int) func([]byte) []byte {
		return func(frame []byte) []byte { return frame[:len(frame)-n] }
	}
	keep := func(n int, total ...byte) func([]byte) []byte {
		return func(frame []byte) []byte {
			frame = frame[:HeaderLen+n]
			if len(total) > 0 {
				copy(frame[HeaderLen+int(total[0]):], total[1:])
			}
			return frame
		}
	}
	for _, c := range []struct {
		name, spec string
		size       int
		edit       func([]byte) []byte
		want       error
	}{
		{"nothing", "tcp4", 1000, func([]byte) []byte { return nil }, ErrShort},
		{"half a header", "tcp4", 1000, func(f []byte) []byte { return f[:5] }, ErrShort},
		{"header only", "tcp4", 1000, keep(0), ErrShort},
		{"type 2", "tcp4", 1000, header(func(h *Header) { h.Type = 2 }), ErrType},
		{"fragments of UDP", "udp4", 1000, header(func(h *Header) { h.Type = 3 }), ErrType},
		{"ECN alone", "tcp4", 1000, header(func(h *Header) { h.Type = TypeECN }), ErrType},
		{"ECN of UDP", "udp4", 1000, header(func(h *Header) { h.Type |= TypeECN }), ErrType},
		{"tcp4 as tcp6", "tcp4", 1000, header(func(h *Header) { h.Type = TypeTCP6 }), ErrType},
		{"tcp6 as tcp4", "tcp6", 1000, header(func(h *Header) { h.Type = TypeTCP4 }), ErrType},
		{"tcp4 as udp", "tcp4", 1000, header(func(h *Header) { h.Type = TypeUDP }), ErrType},
		{"udp4 as tcp4", "udp4", 1000, header(func(h *Header) { h.Type = TypeTCP4 }), ErrType},
		{"udp6 as tcp6", "udp6", 1000, header(func(h *Header) { h.Type = TypeTCP6 }), ErrType},
		{"version 5", "tcp4", 1000, set(0, 0x55), ErrType},
		{"ICMP", "tcp4", 1000, set(9, 1), ErrType},
		{"ICMPv6", "tcp6", 1000, set(6, 58), ErrType},
		{"no segment size", "tcp4", 1000, header(func(h *Header) { h.GSOSize = 0 }), ErrPayload},
		{"no payload", "tcp4", 1000, keep(52, 2, 0, 52), ErrPayload},
		{"no payload, tcp6", "tcp6", 1000, keep(72, 4, 0, 32), ErrPayload},
		{"no datagram", "udp4", 1000, func(f []byte) []byte { return set(24, 0, 8)(keep(28, 2, 0, 28)(f)) }, ErrPayload},
		{"one byte a segment", "tcp4 64 KiB", 1, header(func(*Header) {}), ErrSegments},
		{"IPv4 header cut", "tcp4", 1000, keep(19), ErrShort},
		{"IPv6 header cut", "tcp6", 1000, keep(39), ErrShort},
		{"TCP header cut", "tcp4", 1000, keep(39, 2, 0, 39), ErrShort},
		{"TCP header cut, tcp6", "tcp6", 1000, keep(59, 4, 0, 19), ErrShort},
		{"TCP options cut", "tcp4", 1000, keep(51, 2, 0, 51), ErrLength},
		{"UDP header cut", "udp4", 1000, keep(27, 2, 0, 27), ErrShort},
		{"IPv4 header of 16 bytes", "tcp4", 1000, set(0, 0x44), ErrLength},
		{"IPv4 header past the end", "tcp4", 1000, func(f []byte) []byte { return set(0, 0x4f)(keep(59, 2, 0, 59)(f)) }, ErrLength},
		{"longer than it says", "tcp4", 1000, func(f []byte) []byte { return append(f, 0) }, ErrLength},
		{"shorter than it says", "tcp4", 1000, cut(1), ErrLength},
		{"tcp6 longer than it says", "tcp6", 1000, func(f []byte) []byte { return append(f, 0) }, ErrLength},
		{"tcp6 shorter than it says", "tcp6", 1000, cut(1), ErrLength},
		{"jumbogram", "tcp6", 1000, set(4, 0, 0), ErrLength},
		{"UDP longer than its packet", "udp4", 1000, set(24, 0xff), ErrLength},
		{"UDP shorter than its packet", "udp6", 1000, set(44, 0, 9), ErrLength},
		{"TCP header of 16 bytes", "tcp4", 1000, set(32, 0x40), ErrLength},
		{"more fragments", "tcp4", 1000, set(6, 0x20), ErrFragment},
		{"last fragment", "udp4", 1000, set(6, 0, 1), ErrFragment},
		{"fragment header", "tcp6", 1000, set(6, 44), ErrFragment},
		{"extension cut", "tcp6 hop by hop", 1000, keep(47, 4, 0, 7), ErrShort},
		{"extension past the end", "tcp6 hop by hop", 1000, func(f []byte) []byte { return set(41, 255)(keep(100, 4, 0, 60)(f)) }, ErrLength},
		{"checksum start low", "tcp4", 1000, header(func(h *Header) { h.CsumStart-- }), ErrChecksum},
		{"checksum start high", "tcp4", 1000, header(func(h *Header) { h.CsumStart++ }), ErrChecksum},
		{"checksum start in an extension", "tcp6 hop by hop", 1000, header(func(h *Header) { h.CsumStart = 40 }), ErrChecksum},
		{"checksum start past the end", "tcp6", 1000, header(func(h *Header) { h.CsumStart = 65535 }), ErrChecksum},
		{"checksum of UDP in TCP", "tcp4", 1000, header(func(h *Header) { h.CsumOffset = 6 }), ErrChecksum},
		{"checksum of TCP in UDP", "udp4", 1000, header(func(h *Header) { h.CsumOffset = 16 }), ErrChecksum},
		{"checksum offset past the end", "udp6", 1000, header(func(h *Header) { h.CsumOffset = 65535 }), ErrChecksum},

		{"partial: start in the IP header", "tcp4", 0, header(func(h *Header) { h.CsumStart = 0 }), ErrChecksum},
		{"partial: start past the end", "tcp4", 0, header(func(h *Header) { h.CsumStart = 60000 }), ErrChecksum},
		{"partial: offset past the end", "tcp4", 0, header(func(h *Header) { h.CsumOffset = 60000 }), ErrChecksum},
		{"partial: field over the end", "tcp4", 0, header(func(h *Header) { h.CsumStart, h.CsumOffset = 5050, 1 }), ErrChecksum},
		{"partial: odd offset", "tcp4", 0, header(func(h *Header) { h.CsumStart, h.CsumOffset = 100, 3 }), ErrChecksum},
		{"partial: UDP's in TCP", "tcp6", 0, header(func(h *Header) { h.CsumOffset = 6 }), ErrChecksum},
		{"partial: TCP's in UDP", "udp6", 0, header(func(h *Header) { h.CsumOffset = 16 }), ErrChecksum},
		{"partial: fragment", "udp4", 0, set(6, 0x20), ErrFragment},
		{"partial: longer than it says", "udp4", 0, func(f []byte) []byte { return append(f, 0) }, ErrLength},
		{"partial: version 5", "udp4", 0, set(0, 0x50), ErrType},
		{"partial: header only", "udp4", 0, keep(0), ErrShort},
	} {
		t.Run(c.name, func(t *testing.T) {
			frame := c.edit(super(supers()[c.spec].build(), c.size))
			before := bytes.Clone(frame)
			var s Splitter
			segs, err := s.Split(frame)
			if !errors.Is(err, c.want) || segs != nil {
				t.Errorf("%d segments, %v, want %v", len(segs), err, c.want)
			}
			if !bytes.Equal(frame, before) {
				t.Error("the frame was changed")
			}
		})
	}
}

// TestSplitBatch checks that frames of one batch share memory and remain valid until Reset,
// including those from before the memory grew.
func TestSplitBatch(t *testing.T) {
	var s Splitter
	r := seed.Rand(t)
	var specs []packetSpec
	for _, name := range slices.Sorted(maps.Keys(supers())) {
		specs = append(specs, supers()[name])
	}
	for range 5 {
		s.Reset()
		var got, want [][]byte
		var segs [][]Segment
		for range 100 {
			pkt, size := specs[r.IntN(len(specs))].build(), 200+r.IntN(2000)
			out, err := s.Split(super(pkt, size))
			if err != nil {
				t.Fatal(err)
			}
			segs = append(segs, out)
			want = append(want, refSplit(pkt, size)...)
			// A rejected frame leaves no trace.
			if _, err := s.Split([]byte{1}); err == nil {
				t.Fatal("no error")
			}
		}
		for _, out := range segs {
			got = append(got, whole(out)...)
		}
		checkPackets(t, got, want)
	}
}
