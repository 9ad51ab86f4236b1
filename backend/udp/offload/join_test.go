package offload

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lenonet/leno/internal/testkit/seed"
)

// stream returns consecutive packets of a flow with the given payload sizes.
func stream(spec packetSpec, sizes ...int) [][]byte {
	var out [][]byte
	for _, n := range sizes {
		spec.payload = fill(n)
		out = append(out, spec.build())
		spec.seq += uint32(n)
		spec.id++
	}
	return out
}

// checkFrames compares frames with the packets added: it checks which frame each went into, and
// that all come back unchanged.
func checkFrames(t *testing.T, frames []Frame, pkts [][]byte, into []int) {
	t.Helper()
	wanted := make([][][]byte, len(frames))
	for i, pkt := range pkts {
		if into[i] < 0 || into[i] >= len(frames) {
			t.Fatalf("packet %d went into frame %d of %d", i, into[i], len(frames))
		}
		wanted[into[i]] = append(wanted[into[i]], pkt)
	}
	for i, f := range frames {
		got, err := refUnjoin(f)
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if len(got) != len(wanted[i]) || f.Packets != len(got) {
			t.Fatalf("frame %d has %d packets, gives %d, want %d", i, f.Packets, len(got), len(wanted[i]))
		}
		total := 0
		for k := range got {
			total += len(got[k])
			if !sameButID(got[k], wanted[i][k]) {
				t.Fatalf("packet %d of frame %d is\n%x, want\n%x", k, i, got[k], wanted[i][k])
			}
		}
		if f.Bytes != total {
			t.Fatalf("frame %d has %d bytes, says %d", i, total, f.Bytes)
		}
	}
}

// joinAll adds copies of the packets, checks the frames, and returns which frame each packet went
// into.
func joinAll(t *testing.T, j *Joiner, pkts [][]byte) []int {
	t.Helper()
	j.Reset()
	var into []int
	for _, pkt := range pkts {
		into = append(into, j.Add(bytes.Clone(pkt)))
	}
	checkFrames(t, j.Frames(), pkts, into)
	checkFrames(t, j.Frames(), pkts, into) // a second time
	return into
}

func TestJoin(t *testing.T) {
	tcp := packetSpec{host: 2, id: 0xfffe, df: true, seq: 0xfffffff0, ack: 7, window: 500, options: timestamps}
	udp := packetSpec{host: 2, udp: true, id: 0xfffe, df: true}
	// vary returns three packets of 1000 bytes, of which the second (1) or the third (2) differs.
	vary := func(spec packetSpec, which int, edit func(*packetSpec)) [][]byte {
		pkts := stream(spec, 1000, 1000, 1000)
		spec.seq += uint32(which) * 1000
		spec.id += uint16(which)
		spec.payload = fill(1000)
		edit(&spec)
		pkts[which] = spec.build()
		return pkts
	}
	// damage changes bytes of a packet and nothing else.
	damage := func(pkts [][]byte, which, at int, to ...byte) [][]byte {
		copy(pkts[which][at:], to)
		return pkts
	}
	// remake changes bytes of a packet and corrects the checksums.
	remake := func(pkts [][]byte, which, at int, to ...byte) [][]byte {
		copy(pkts[which][at:], to)
		refFinish(pkts[which])
		return pkts
	}
	mix := func(lists ...[][]byte) [][]byte { return slices.Concat(lists...) }
	other := tcp.with(func(s *packetSpec) { s.port = 1 })
	noDF := func(s packetSpec) packetSpec { s.df = false; return s }
	v6 := func(s packetSpec) packetSpec { s.v6 = true; return s }
	flags := func(f byte) func(*packetSpec) { return func(s *packetSpec) { s.flags = f } }
	long := func(n, size int) []int { return slices.Repeat([]int{size}, n) }
	seq := func(n int) []int { return slices.Repeat([]int{0}, n) }
	fragment := func(spec packetSpec) [][]byte { return remake(stream(spec, 1000), 0, 6, 0x20) }
	// short makes datagrams one byte shorter than their packets.
	short := func(pkts [][]byte) [][]byte {
		for _, pkt := range pkts {
			was := binary.BigEndian.Uint16(pkt[24:])
			binary.BigEndian.PutUint16(pkt[24:], was-1)
			sum := refSum([]byte{^pkt[26], ^pkt[27]}, []byte{0xff, 0xfe}) // one less in the header
			binary.BigEndian.PutUint16(pkt[26:], ^sum)
		}
		return pkts
	}
	// ones makes a packet's IPv4 checksum 0xffff, which is as valid as 0.
	ones := func(pkts [][]byte, which int) [][]byte {
		pkt := pkts[which]
		copy(pkt[4:6], []byte{0, 0})
		refFinish(pkt)
		copy(pkt[4:6], pkt[10:12]) // with DF, the ID may be any value
		copy(pkt[10:12], []byte{0xff, 0xff})
		return pkts
	}

	for _, c := range []struct {
		name string
		pkts [][]byte
		want []int
	}{
		{"nothing", nil, nil},
		{"one", stream(tcp, 1000), []int{0}},
		{"equal", stream(tcp, 1000, 1000, 1000), []int{0, 0, 0}},
		{"equal without options", stream(tcp.with(func(s *packetSpec) { s.options = nil }), 1000, 1000), []int{0, 0}},
		{"tcp6", stream(v6(tcp), 1000, 1000, 1000), []int{0, 0, 0}},
		{"odd", stream(tcp, 999, 999, 999), []int{0, 0, 0}},
		{"128 segments", stream(tcp, long(130, 10)...), append(seq(128), 1, 1)},
		{"a byte each", stream(tcp, 1, 1, 1), []int{0, 0, 0}},
		{"shorter last closes", stream(tcp, 1000, 1000, 10, 10, 10), []int{0, 0, 0, 1, 1}},
		{"longer", stream(tcp, 1000, 1001, 1001), []int{0, 1, 1}},
		{"up to 65,535 bytes", stream(tcp, long(46, 1420)...), seq(46)},
		{"more than 65,535 bytes", stream(tcp, long(48, 1420)...), append(seq(46), 1, 1)},
		{"65,535 bytes", stream(tcp, append(long(46, 1420), 163)...), seq(47)},
		{"65,536 bytes", stream(tcp, append(long(46, 1420), 164)...), append(seq(46), 1)},
		{"no ID without DF", vary(noDF(tcp), 1, func(s *packetSpec) { s.id = 5 }), []int{0, 1, 2}},
		{"IDs without DF", stream(noDF(tcp), 1000, 1000, 1000), []int{0, 0, 0}},
		{"any ID with DF", vary(tcp, 1, func(s *packetSpec) { s.id = 5 }), []int{0, 0, 0}},
		{"DF changes", vary(tcp, 1, func(s *packetSpec) { s.df = false }), []int{0, 1, 2}},
		{"DF appears", vary(noDF(tcp), 1, func(s *packetSpec) { s.df = true }), []int{0, 1, 2}},
		{"service", vary(tcp, 1, func(s *packetSpec) { s.tos = 0x20 }), []int{0, 1, 2}},
		{"congestion experienced", vary(v6(tcp), 1, func(s *packetSpec) { s.tos = 3 }), []int{0, 1, 2}},
		{"flow label", vary(v6(tcp), 1, func(s *packetSpec) { s.flow = 3 }), []int{0, 1, 2}},
		{"TTL", vary(tcp, 1, func(s *packetSpec) { s.ttl = 63 }), []int{0, 1, 2}},
		{"hop limit", vary(v6(tcp), 1, func(s *packetSpec) { s.ttl = 63 }), []int{0, 1, 2}},
		{"acknowledgement", vary(tcp, 1, func(s *packetSpec) { s.ack++ }), []int{0, 1, 2}},
		{"window", vary(tcp, 1, func(s *packetSpec) { s.window++ }), []int{0, 1, 2}},
		{"options differ", vary(tcp, 1, func(s *packetSpec) { s.options = slices.Concat(timestamps[:11], []byte{9}) }), []int{0, 1, 2}},
		{"fewer options", vary(tcp, 1, func(s *packetSpec) { s.options = nil }), []int{0, 1, 2}},
		{"more options", vary(tcp, 1, func(s *packetSpec) { s.options = append(slices.Clone(timestamps), 1, 1, 1, 1) }), []int{0, 1, 2}},
		{"a hole", vary(tcp, 1, func(s *packetSpec) { s.seq++ }), []int{0, 1, 2}},
		{"again", vary(tcp, 1, func(s *packetSpec) { s.seq -= 1000 }), []int{0, 1, 2}},
		{"PSH ends it", vary(tcp, 1, flags(0x18)), []int{0, 0, 1}},
		{"PSH on the last", vary(v6(tcp), 2, flags(0x18)), []int{0, 0, 0}},
		{"PSH at once", vary(tcp, 0, flags(0x18)), []int{0, 1, 1}},
		{"FIN", vary(tcp, 1, flags(0x11)), []int{0, 1, 2}},
		{"SYN", vary(tcp, 1, flags(0x12)), []int{0, 1, 2}},
		{"RST", vary(tcp, 1, flags(0x14)), []int{0, 1, 2}},
		{"URG", vary(tcp, 1, flags(0x30)), []int{0, 1, 2}},
		{"ECE", vary(tcp, 1, flags(0x50)), []int{0, 1, 2}},
		{"CWR", vary(tcp, 1, flags(0x90)), []int{0, 1, 2}},
		{"no ACK", vary(tcp, 1, flags(0x08)), []int{0, 1, 2}},
		{"bare acknowledgements", stream(tcp, 0, 0, 0), []int{0, 1, 2}},
		{"bare acknowledgement between", mix(stream(tcp, 1000, 1000), stream(tcp.with(func(s *packetSpec) { s.seq += 2000; s.id += 2 }), 0, 1000, 1000)), []int{0, 0, 1, 2, 2}},
		{"two flows", mix(stream(tcp, 1000), stream(other, 900, 900), stream(tcp.with(func(s *packetSpec) { s.seq += 1000 }), 1000)), []int{0, 1, 1, 0}},
		{"another host", mix(stream(tcp, 1000), stream(tcp.with(func(s *packetSpec) { s.host = 3; s.seq += 1000 }), 1000)), []int{0, 1}},
		{"another host, tcp6", mix(stream(v6(tcp), 1000), stream(v6(tcp).with(func(s *packetSpec) { s.host = 3; s.seq += 1000 }), 1000)), []int{0, 1}},
		{"both families", mix(stream(tcp, 1000), stream(v6(tcp).with(func(s *packetSpec) { s.seq += 1000 }), 1000)), []int{0, 1}},
		{"both protocols", mix(stream(tcp, 1000), stream(udp.with(func(s *packetSpec) { s.seq += 1000 }), 1000)), []int{0, 1}},
		{"fragment between", mix(stream(tcp, 1000), fragment(tcp), stream(tcp.with(func(s *packetSpec) { s.seq += 1000 }), 1000)), []int{0, 1, 2}},
		{"fragment of another host between", mix(stream(tcp, 1000), fragment(tcp.with(func(s *packetSpec) { s.host = 3 })), stream(tcp.with(func(s *packetSpec) { s.seq += 1000 }), 1000)), []int{0, 1, 0}},
		{"IP options", stream(tcp.with(func(s *packetSpec) { s.ipOptions = []byte{1, 1, 1, 1} }), 1000, 1000), []int{0, 1}},
		{"IP options between", mix(stream(tcp, 1000), stream(tcp.with(func(s *packetSpec) { s.ipOptions = []byte{1, 1, 1, 1} }), 1000), stream(tcp.with(func(s *packetSpec) { s.seq += 1000 }), 1000)), []int{0, 1, 2}},
		{"extension header between", mix(stream(v6(tcp), 1000), stream(v6(tcp).with(func(s *packetSpec) { s.extensions = hopByHop }), 1000), stream(v6(tcp).with(func(s *packetSpec) { s.seq += 1000 }), 1000)), []int{0, 1, 2}},
		{"extension headers", stream(v6(tcp).with(func(s *packetSpec) { s.extensions = hopByHop }), 1000, 1000), []int{0, 1}},

		{"first has a bad checksum", damage(stream(tcp, 1000, 1000, 1000), 0, 500, 1, 2, 3), []int{0, 1, 1}},
		{"second has a bad checksum", damage(stream(tcp, 1000, 1000, 1000, 1000), 1, 500, 1, 2, 3), []int{0, 1, 2, 2}},
		{"third has a bad checksum", damage(stream(v6(tcp), 1000, 1000, 1000, 1000), 2, 500, 1, 2, 3), []int{0, 0, 1, 2}},
		{"bad IPv4 checksum", damage(stream(tcp, 1000, 1000, 1000, 1000), 1, 10, 0, 0), []int{0, 1, 2, 2}},
		{"bad UDP checksum", damage(stream(udp, 1000, 1000, 1000, 1000), 1, 26, 0, 1), []int{0, 1, 2, 2}},
		{"all bad", damage(damage(stream(udp, 1000, 1000), 0, 26, 0, 1), 1, 26, 0, 1), []int{0, 1}},

		{"udp", stream(udp, 1000, 1000, 1000), []int{0, 0, 0}},
		{"udp6", stream(v6(udp), 1000, 1000, 1000), []int{0, 0, 0}},
		{"udp, shorter last closes", stream(udp, 1000, 1000, 10, 10, 10), []int{0, 0, 0, 1, 1}},
		{"udp, longer", stream(udp, 10, 1000, 1000), []int{0, 1, 1}},
		{"64 datagrams", stream(udp, long(66, 10)...), append(seq(64), 1, 1)},
		{"no datagram's payload", stream(udp, 0, 0, 10, 0, 10), []int{0, 1, 2, 3, 4}},
		{"no ID without DF, udp", vary(noDF(udp), 1, func(s *packetSpec) { s.id = 5 }), []int{0, 1, 2}},
		{"no checksum", damage(stream(udp, 1000, 1000, 1000), 1, 26, 0, 0), []int{0, 1, 2}},
		{"no checksums", damage(damage(stream(udp, 1000, 1000), 0, 26, 0, 0), 1, 26, 0, 0), []int{0, 1}},
		{"datagrams shorter than their packets", short(stream(udp, 1000, 1000)), []int{0, 1}},
		{"datagram shorter than its packet", damage(stream(udp, 1000, 1000, 1000), 1, 24, 0, 100), []int{0, 1, 2}},
		{"TCP header past the end", damage(stream(tcp, 1000, 4, 1000), 1, 32, 0xf0), []int{0, 1, 2}},
		{"reserved flag of IP", remake(stream(tcp, 1000, 1000, 1000), 1, 6, 0xc0), []int{0, 1, 2}},
		{"reserved flags of IP", remake(remake(stream(tcp, 1000, 1000), 0, 6, 0xc0), 1, 6, 0xc0), []int{0, 1}},
		{"last fragment between", mix(stream(tcp, 1000), remake(stream(tcp, 1000), 0, 7, 1), stream(tcp.with(func(s *packetSpec) { s.seq += 1000 }), 1000)), []int{0, 1, 2}},
		{"last fragments", remake(remake(stream(tcp, 1000, 1000), 0, 7, 1), 1, 7, 1), []int{0, 1}},
		{"reserved bits of TCP", remake(remake(stream(tcp, 1000, 1000), 0, 32, 0x81), 1, 32, 0x81), []int{0, 1}},
		{"urgent pointer", remake(stream(tcp, 1000, 1000, 1000), 1, 38, 1), []int{0, 1, 2}},
		{"IPv4 checksum of ones", ones(stream(tcp, 1000, 1000, 1000), 1), []int{0, 1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := NewJoiner(true, true)
			if got := joinAll(t, j, c.pkts); !slices.Equal(got, c.want) {
				t.Errorf("packets went into %v, want %v", got, c.want)
			}
		})
	}
}

// TestJoinManyFlows has nine flows for eight places: the oldest frame is closed.
func TestJoinManyFlows(t *testing.T) {
	j := NewJoiner(true, true)
	var pkts [][]byte
	var want []int
	add := func(n, round, frame int) {
		pkts = append(pkts, stream(packetSpec{host: 2, port: uint16(n), df: true, seq: uint32(round * 100)}, 100)...)
		want = append(want, frame)
	}
	for n := range 9 {
		add(n, 0, n)
	}
	for n := 1; n < 9; n++ {
		add(n, 1, n)
	}
	add(0, 1, 9)  // in place of flow 1
	add(8, 2, 8)  // still there
	add(1, 2, 10) // in place of flow 2
	add(3, 2, 3)
	if got := joinAll(t, j, pkts); !slices.Equal(got, want) {
		t.Errorf("packets went into %v, want %v", got, want)
	}
}

func TestJoinKinds(t *testing.T) {
	pkts := slices.Concat(stream(packetSpec{host: 2, df: true}, 100, 100), stream(packetSpec{host: 2, udp: true, df: true}, 100, 100))
	one := NewJoiner(true, true)
	for _, c := range []struct {
		tcp, udp bool
		want     []int
	}{
		{true, true, []int{0, 0, 1, 1}},
		{true, false, []int{0, 0, 1, 2}},
		{false, true, []int{0, 1, 2, 2}},
		{false, false, []int{0, 1, 2, 3}},
	} {
		if got := joinAll(t, NewJoiner(c.tcp, c.udp), pkts); !slices.Equal(got, c.want) {
			t.Errorf("tcp %t, udp %t: packets went into %v, want %v", c.tcp, c.udp, got, c.want)
		}
		one.Reset()
		one.Join(Kinds{TCP: c.tcp, UDP: c.udp})
		if got := joinAll(t, one, pkts); !slices.Equal(got, c.want) {
			t.Errorf("tcp %t, udp %t from here on: packets went into %v, want %v", c.tcp, c.udp, got, c.want)
		}
	}
}

// TestJoinOtherZero joins packets with a checksum of 0xffff, which is valid for TCP, but which
// segmentation does not produce.
func TestJoinOtherZero(t *testing.T) {
	spec := packetSpec{host: 2, df: true, payload: make([]byte, 100)}
	pkt := spec.build()
	copy(spec.payload, pkt[36:38])
	zero := spec.build()
	if !bytes.Equal(zero[36:38], []byte{0, 0}) {
		t.Fatalf("checksum %x", zero[36:38])
	}
	ones := bytes.Clone(zero)
	ones[36], ones[37] = 0xff, 0xff
	next := stream(spec.with(func(s *packetSpec) { s.seq = 100 }), 100)[0]
	for _, c := range []struct {
		pkt  []byte
		want []int
	}{{zero, []int{0, 0}}, {ones, []int{0, 1}}} {
		if got := joinAll(t, NewJoiner(true, true), [][]byte{c.pkt, next}); !slices.Equal(got, c.want) {
			t.Errorf("checksum %x: packets went into %v, want %v", c.pkt[36:38], got, c.want)
		}
	}
}

// TestJoinAfterFrames checks that packets added after Frames are not joined with earlier ones,
// whose headers are already complete.
func TestJoinAfterFrames(t *testing.T) {
	j := NewJoiner(true, true)
	pkts := stream(packetSpec{host: 2, df: true}, 100, 100, 100, 100)
	var into []int
	for _, pkt := range pkts {
		into = append(into, j.Add(bytes.Clone(pkt)))
		if len(into) == 2 {
			checkFrames(t, j.Frames(), pkts[:2], into)
		}
	}
	checkFrames(t, j.Frames(), pkts, into)
	if want := []int{0, 0, 1, 1}; !slices.Equal(into, want) {
		t.Errorf("packets went into %v, want %v", into, want)
	}
}

func TestJoinerFull(t *testing.T) {
	j := NewJoiner(true, true)
	pkts := stream(packetSpec{host: 2, df: true, udp: true}, slices.Repeat([]int{8}, 1100)...)
	for i, pkt := range pkts {
		if j.Full() != (i >= 1024) {
			t.Fatalf("after %d packets: full is %t", i, j.Full())
		}
		j.Add(pkt)
	}
	j.Reset()
	if j.Full() || len(j.Frames()) != 0 {
		t.Error("Reset left something")
	}
	joinAll(t, j, pkts)
}

// randomStreams makes packets of several flows, with everything that interrupts joining, and mixes
// them. flows holds the number of each packet's flow; within a flow the packets are in order.
func randomStreams(r *rand.Rand) (pkts [][]byte, flows []int) {
	lists := make([][][]byte, 1+r.IntN(12))
	for i := range lists {
		spec := packetSpec{
			host: byte(2 + r.IntN(3)), port: uint16(i), df: r.IntN(2) == 0, v6: r.IntN(2) == 0, udp: r.IntN(3) == 0,
			seq: r.Uint32(), id: uint16(r.Uint32()), options: [][]byte{nil, timestamps}[r.IntN(2)],
		}
		size := 1 + r.IntN(1400)
		for range r.IntN(60) {
			one := spec
			n := size
			switch r.IntN(20) {
			case 0:
				n = r.IntN(1400)
			case 1:
				one.flags = byte(r.Uint32())
			case 2:
				one.ack++
			case 3:
				one.id = uint16(r.Uint32())
			case 4:
				one.ipOptions, one.extensions = []byte{1, 1, 1, 1}, hopByHop
				if one.udp {
					one.extensions = slices.Concat([]byte{17}, hopByHop[1:])
				}
			}
			one.payload = fill(n)
			pkt := one.build()
			if r.IntN(20) == 0 {
				// Any byte behind the ports, so that the packet stays in its flow.
				transport, _ := refTransport(pkt)
				pkt[transport+4+r.IntN(len(pkt)-transport-4)] ^= byte(1 << r.IntN(8))
			}
			lists[i] = append(lists[i], pkt)
			spec.seq += uint32(n)
			spec.id++
		}
	}
	for left := true; left; {
		left = false
		i := r.IntN(len(lists))
		n := min(1+r.IntN(6), len(lists[i]))
		for _, pkt := range lists[i][:n] {
			pkts, flows = append(pkts, pkt), append(flows, i)
		}
		lists[i] = lists[i][n:]
		for _, list := range lists {
			left = left || len(list) > 0
		}
	}
	return pkts, flows
}

// TestJoinKeepsOrder checks that for any packets and any mix of flows, all packets come back
// unchanged, and those of each flow in order of arrival.
func TestJoinKeepsOrder(t *testing.T) {
	j := NewJoiner(true, true)
	joined := 0
	random := seed.Rand(t)
	for round := range 60 {
		pkts, flows := randomStreams(random)
		into := joinAll(t, j, pkts)
		latest := map[int]int{}
		for i, frame := range into {
			if frame < latest[flows[i]] {
				t.Fatalf("round %d: packet %d of flow %d went into frame %d after one in %d", round, i, flows[i], frame, latest[flows[i]])
			}
			latest[flows[i]] = frame
		}
		joined += len(pkts) - len(j.Frames())
	}
	if joined == 0 {
		t.Error("nothing was joined")
	}
}

// TestRoundTrips checks that joined packets are split into the same packets, and split packets are
// joined into the same super packet.
func TestRoundTrips(t *testing.T) {
	j := NewJoiner(true, true)
	var s Splitter
	random := seed.Rand(t)
	for round := range 40 {
		pkts, _ := randomStreams(random)
		into := joinAll(t, j, pkts)
		var got, want [][]byte
		s.Reset()
		for i, f := range j.Frames() {
			segs, err := s.Split(slices.Concat(f.Header[:], slices.Concat(f.Parts...)))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, whole(segs)...)
			for k, frame := range into {
				if frame == i {
					want = append(want, pkts[k])
				}
			}
		}
		for i := range want {
			if !sameButID(got[i], want[i]) {
				t.Fatalf("round %d: packet %d is\n%x, want\n%x", round, i, got[i], want[i])
			}
		}
	}
	for name, spec := range supers() {
		if len(spec.ipOptions)+len(spec.extensions) > 0 || spec.flags&^0x18 != 0 {
			continue
		}
		for _, size := range []int{100, 1000, 1420} {
			if len(spec.payload) > 128*size {
				continue // more than one frame
			}
			t.Run(fmt.Sprintf("%s by %d", name, size), func(t *testing.T) {
				pkt := spec.build()
				segs, err := s.Split(super(pkt, size))
				if err != nil {
					t.Fatal(err)
				}
				j.Reset()
				for _, p := range whole(segs) {
					j.Add(p)
				}
				frames := j.Frames()
				if len(frames) != 1 {
					t.Fatalf("%d frames", len(frames))
				}
				want := bytes.Clone(pkt)
				if len(segs) > 1 {
					refPartial(want)
				}
				if got := slices.Concat(frames[0].Parts...); !bytes.Equal(got, want) {
					t.Errorf("joined\n%x, want\n%x", got, want)
				}
			})
		}
	}
}

// TestJoinUnchecked checks that packets that do not meet the caller's promises are kept as they
// are.
func TestJoinUnchecked(t *testing.T) {
	short := make([]byte, 20)
	short[0] = 0x60
	cut := packetSpec{host: 2}.build()[:30]
	binary.BigEndian.PutUint16(cut[2:], 30)
	j := NewJoiner(true, true)
	for _, pkt := range [][]byte{{}, {0x45}, short, cut} {
		j.Reset()
		j.Add(pkt)
		if f := j.Frames(); len(f) != 1 || len(f[0].Parts) != 1 || !bytes.Equal(f[0].Parts[0], pkt) || f[0].Header != [HeaderLen]byte{} {
			t.Errorf("%x became %+v", pkt, f)
		}
	}
}
