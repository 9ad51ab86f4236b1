package offload

import (
	"bytes"
	"fmt"
	"testing"
)

// work is something repeated in the steady state. It first restores the memory that it changes.
type work struct {
	name    string
	bytes   int // per run
	packets int
	run     func()
}

func works(t testing.TB) []work {
	tcp := packetSpec{host: 2, df: true, options: timestamps}
	udp := packetSpec{host: 2, df: true, udp: true}
	var out []work
	for _, c := range []struct {
		name string
		spec packetSpec
		n    int
		size int
	}{
		{"tcp4 45x1420", tcp, 45, 1420},
		{"tcp6 45x1400", tcp.with(func(s *packetSpec) { s.v6 = true }), 45, 1400},
		{"udp4 64x64", udp, 64, 64},
		{"udp4 44x1444", udp, 44, 1444},
	} {
		c.spec.payload = fill(c.n * c.size)
		pkt := c.spec.build()
		pkts := refSplit(pkt, c.size)
		out = append(out, splitting(t, c.name, super(pkt, c.size), c.n), joining(t, c.name, pkts, 1))
	}
	var mixed [][]byte
	for i := range 64 {
		mixed = append(mixed, packetSpec{host: 2, port: uint16(i), payload: fill(64)}.build())
	}
	return append(out, joining(t, "64 flows x64", mixed, len(mixed)))
}

func splitting(t testing.TB, name string, frame []byte, n int) work {
	var s Splitter
	header := bytes.Clone(frame[:HeaderLen+80])
	return work{"Split " + name, len(frame), n, func() {
		copy(frame, header)
		s.Reset()
		if segs, err := s.Split(frame); err != nil || len(segs) != n {
			t.Fatalf("%d segments, %v", len(segs), err)
		}
	}}
}

func joining(t testing.TB, name string, pkts [][]byte, frames int) work {
	j := NewJoiner(true, true)
	header := bytes.Clone(pkts[0][:72])
	total := 0
	for _, pkt := range pkts {
		total += len(pkt)
	}
	return work{"Join " + name, total, len(pkts), func() {
		copy(pkts[0], header)
		j.Reset()
		for _, pkt := range pkts {
			j.Add(pkt)
		}
		if n := len(j.Frames()); n != frames {
			t.Fatalf("%d frames", n)
		}
	}}
}

func TestAllocations(t *testing.T) {
	for _, w := range works(t) {
		w.run()
		if n := testing.AllocsPerRun(20, w.run); n != 0 {
			t.Errorf("%s: %v allocations", w.name, n)
		}
	}
}

func BenchmarkOffload(b *testing.B) {
	for _, w := range works(b) {
		b.Run(w.name, func(b *testing.B) {
			b.SetBytes(int64(w.bytes))
			b.ReportAllocs()
			for b.Loop() {
				w.run()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*w.packets), "ns/packet")
		})
	}
}

func BenchmarkChecksum(b *testing.B) {
	for _, n := range []int{20, 64, 1420, 1460, 65000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			buf := fill(n)
			b.SetBytes(int64(n))
			for b.Loop() {
				Checksum(buf, 0)
			}
		})
	}
}
