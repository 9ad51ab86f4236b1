package udp

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/backend/udp/offload"
	"github.com/lenonet/leno/internal/testkit/udptest"
)

// fuzzHost returns an engine without readers: the test pushes each packet through itself.
func fuzzHost() (*engine, *udptest.Device, *capture) {
	e := newEngine(hclog.NewNullLogger())
	e.setTable(planA().subnets, []peerPlan{planB(), {
		node: "host-c", subnets: prefixes("10.5.3.0/24"), sources: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.3:8285")},
	}})
	dev := newFakeDevice(1)
	wire := &capture{}
	e.devices.all, e.binds.all = []Device{dev}, []Bind{wire}
	return e, dev, wire
}

// capture is a bind that keeps what is sent.
type capture struct {
	udptest.Bind
	pkts [][]byte
	to   []netip.AddrPort // of each message
}

func (c *capture) Send(out []offload.Outbound) (int, error) {
	for _, o := range out {
		for _, s := range o.Segments {
			c.pkts = append(c.pkts, slices.Concat(s.Head, s.Body))
		}
		c.to = append(c.to, o.To)
	}
	return len(out), nil
}

func seeds(f *testing.F, add func(pkt []byte)) {
	for _, pkt := range [][]byte{
		nil, {0x45}, {0x60},
		packet("10.5.2.3", "10.5.1.2", 8), packet("10.5.1.2", "10.5.2.3", 8), packet("10.5.1.2", "10.5.3.3", 0),
		packet("fd00:5:0:2::3", "fd00:5:0:1::2", 8), packet("fd00:5:0:1::2", "fd00:5:0:2::3", 8),
		packet("10.5.3.3", "10.5.1.2", 8), packet("10.5.1.2", "224.0.0.1", 8), packet("fe80::1", "ff02::1", 8),
		packet("::ffff:10.5.2.3", "::ffff:10.5.1.2", 8),
		append(packet("10.5.2.3", "10.5.1.2", 8), 0), packet("10.5.2.3", "10.5.1.2", 8)[:27],
		edit(packet("10.5.2.3", "10.5.1.2", 40), 0, 0x4f), edit(packet("10.5.2.3", "10.5.1.2", 8), 0, 0x44),
	} {
		add(pkt)
	}
}

// within reports whether the address field of a packet lies in a subnet. It reads the bytes itself
// instead of using the code under test.
func within(pkt []byte, field4, field6 int, subnets []netip.Prefix) bool {
	var field []byte
	switch pkt[0] >> 4 {
	case 4:
		field = pkt[field4 : field4+4]
	case 6:
		field = pkt[field6 : field6+16]
	}
	a, ok := netip.AddrFromSlice(field)
	for _, subnet := range subnets {
		if ok && subnet.Contains(a) {
			return true
		}
	}
	return false
}

// FuzzFromWire checks that for any packet from any sender, nothing panics. Only what a peer may
// send is written, unchanged except for what joining and segmentation may change, and each packet
// is counted once. The packets come as one message of equal ones.
func FuzzFromWire(f *testing.F) {
	seeds(f, func(pkt []byte) {
		f.Add(pkt, uint8(2), uint16(8285), uint16(len(pkt)))
		f.Add(pkt, uint8(3), uint16(8285), uint16(len(pkt)))
		f.Add(pkt, uint8(66), uint16(8285), uint16(len(pkt)))
		f.Add(pkt, uint8(2), uint16(1), uint16(len(pkt)))
		f.Add(append(bytes.Clone(pkt), pkt...), uint8(2), uint16(8285), uint16(len(pkt)))
	})
	out := make([]byte, maxPacket)
	for _, run := range joinableRuns() {
		f.Add(slices.Concat(run...), uint8(2), uint16(8285), uint16(len(run[0])))
	}
	e, dev, _ := fuzzHost()
	l := newLane(e)
	l.take(0)
	r := l.receiver
	f.Fuzz(func(t *testing.T, data []byte, host uint8, port, segment uint16) {
		if len(data) > maxPacket || len(data) > 0 && segment == 0 || len(data) > 64*int(segment) {
			return // no socket brings that
		}
		passedBefore, droppedBefore := total(e)
		r.in[0].Size, r.in[0].Segment = copy(r.in[0].Buf, data), int(segment)
		r.in[0].From = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, host}), port)
		l.toDevice(r.in[:1])

		sent := slices.Collect(slices.Chunk(data, max(int(segment), 1)))
		if len(data) == 0 {
			sent = [][]byte{nil}
		}
		passed, dropped := total(e)
		passed, dropped = passed-passedBefore, dropped-droppedBefore
		if int(passed+dropped) != len(sent) || int(passed) != dev.Waiting() {
			t.Fatalf("%d passed, %d dropped of %d, %d written", passed, dropped, len(sent), dev.Waiting())
		}
		allowed := map[uint8][]netip.Prefix{2: planB().subnets, 3: prefixes("10.5.3.0/24")}[host]
		for dev.Waiting() > 0 {
			n, _ := dev.Take(out)
			if port != 8285 || !within(out[:n], 12, 8, allowed) || !within(out[:n], 16, 24, planA().subnets) {
				t.Fatalf("wrote %x from host %d port %d", out[:n], host, port)
			}
			// Joining changes the order of packets of different flows.
			i := slices.IndexFunc(sent, func(pkt []byte) bool { return samePacket(pkt, out[:n]) })
			if i < 0 {
				t.Fatalf("wrote %x for %x", out[:n], data)
			}
			sent = slices.Delete(sent, i, i+1)
		}
	})
}

// joinableRuns returns packets from host 2 to host 1 that a forwarder joins.
func joinableRuns() (runs [][][]byte) {
	for _, ip := range []ipPacket{
		{src: netip.MustParseAddr("10.5.2.3"), dst: netip.MustParseAddr("10.5.1.2"), ttl: 64, df: true},
		{src: netip.MustParseAddr("10.5.2.3"), dst: netip.MustParseAddr("10.5.1.2"), ttl: 64, tos: 2, id: 7},
		{src: netip.MustParseAddr("fd00:5:0:2::3"), dst: netip.MustParseAddr("fd00:5:0:1::2"), ttl: 64},
	} {
		var segments, datagrams [][]byte
		for i := range 3 {
			ip.proto = protoTCP
			ip.payload = tcpSegment{src: 1, dst: 2, seq: uint32(8 * i), flags: tcpACK, window: 9, data: make([]byte, 8)}.bytes()
			segments = append(segments, ip.bytes())
			ip.proto, ip.payload = protoUDP, udpDatagram(1, 2, make([]byte, 8))
			datagrams = append(datagrams, ip.bytes())
			ip.id++ // required for joining packets without DF
		}
		runs = append(runs, segments, datagrams)
	}
	return runs
}

// turned returns a packet with its addresses exchanged; the checksums stay correct.
func turned(pkt []byte) []byte {
	at, size := 12, 4
	if pkt[0]>>4 == 6 {
		at, size = 8, 16
	}
	src, dst := pkt[at:at+size], pkt[at+size:at+2*size]
	return slices.Concat(pkt[:at], dst, src, pkt[at+2*size:])
}

// samePacket reports whether two packets are equal, ignoring the ID of an IPv4 packet with DF,
// where it has no meaning (RFC 6864).
func samePacket(a, b []byte) bool {
	if len(a) >= ipv4HeaderLen && len(b) >= ipv4HeaderLen && a[0] == 0x45 && a[6] == 0x40 {
		a, b = bytes.Clone(a), bytes.Clone(b)
		for _, pkt := range [][]byte{a, b} {
			clear(pkt[4:6])
			clear(pkt[10:12])
		}
	}
	return bytes.Equal(a, b)
}

// FuzzFromTun checks that for any frame from the kernel, nothing panics. Only what its peer will
// accept is sent, to the owner of the destination, and unchanged if there is nothing to offload.
func FuzzFromTun(f *testing.F) {
	seeds(f, func(pkt []byte) {
		frame := append(make([]byte, offload.HeaderLen), pkt...)
		f.Add(frame)
		for _, kind := range []uint8{offload.TypeNone, offload.TypeTCP4, offload.TypeTCP6, offload.TypeUDP, offload.TypeECN | offload.TypeTCP4} {
			offload.Header{Flags: offload.NeedsCsum, Type: kind, HdrLen: 40, GSOSize: 4, CsumStart: 20, CsumOffset: 6}.Encode(frame)
			f.Add(bytes.Clone(frame))
		}
	})
	for _, run := range joinableRuns() {
		// What a device accepts joined, a device may also deliver in the other direction.
		join := offload.NewJoiner(true, true)
		for _, pkt := range run {
			join.Add(turned(pkt))
		}
		for _, frame := range join.Frames() {
			f.Add(slices.Concat(frame.Header[:], slices.Concat(frame.Parts...)))
		}
	}
	e, _, wire := fuzzHost()
	l := newLane(e)
	l.take(0)
	s := l.sender
	f.Fuzz(func(t *testing.T, original []byte) {
		if len(original) > maxFrame {
			return
		}
		sentBefore, droppedBefore := total(e)
		wire.pkts, wire.to = wire.pkts[:0], wire.to[:0]
		frame := s.buf[:copy(s.buf, original)]
		l.toWire([][]byte{frame})

		sent, dropped := total(e)
		sent, dropped = sent-sentBefore, dropped-droppedBefore
		if int(sent) != len(wire.pkts) || sent == 0 && dropped != 1 || sent > 0 && dropped != 0 {
			t.Fatalf("%d counted, %d dropped, %d sent", sent, dropped, len(wire.pkts))
		}
		for _, to := range wire.to {
			if to != wire.to[0] {
				t.Fatalf("one frame went to %s and %s", wire.to[0], to)
			}
		}
		for _, pkt := range wire.pkts {
			owner := map[string][]netip.Prefix{"192.0.2.2:8285": planB().subnets, "192.0.2.3:8285": prefixes("10.5.3.0/24")}[wire.to[0].String()]
			if !within(pkt, 12, 8, planA().subnets) || !within(pkt, 16, 24, owner) {
				t.Fatalf("sent %x to %s for %x", pkt, wire.to[0], original)
			}
			if _, _, why := parsePacket(pkt); why != passed {
				t.Fatalf("sent %x, %s, for %x", pkt, why, original)
			}
		}
		if sent == 1 && original[0] == 0 && original[1] == 0 && !bytes.Equal(wire.pkts[0], original[offload.HeaderLen:]) {
			t.Fatalf("sent %x for %x", wire.pkts[0], original)
		}
	})
}

// total counts the packets passed and dropped, for all peers and both directions.
func total(e *engine) (passed, dropped uint64) {
	for _, c := range e.counters() {
		passed += c.RxPackets + c.TxPackets
		for _, n := range c.Drops {
			dropped += n
		}
	}
	return passed, dropped
}
