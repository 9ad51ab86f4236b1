package udp

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/backend/udp/udptest"
)

// fuzzHost is an engine without readers: each packet is pushed through by the
// test's own hand.
func fuzzHost() (*engine, *udptest.Device, *capture) {
	e := newEngine(hclog.NewNullLogger())
	e.setTable(planA().subnets, []peerPlan{planB(), {
		node: "host-c", subnets: prefixes("10.5.3.0/24"), sources: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.3:8285")},
	}})
	dev := udptest.NewDevice(1)
	wire := &capture{}
	var asDevice Device = dev
	var asBind Bind = wire
	e.device.current.Store(&asDevice)
	e.bind.current.Store(&asBind)
	return e, dev, wire
}

// capture is a bind that keeps the last datagram.
type capture struct {
	udptest.Bind
	pkt []byte
	to  netip.AddrPort
}

func (c *capture) BatchSize() int { return 1 }

func (c *capture) Send(pkts [][]byte, to netip.AddrPort) (int, error) {
	c.pkt, c.to = bytes.Clone(pkts[0]), to
	return 1, nil
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

// within says whether the address field of a packet lies in a subnet, read
// from the bytes and not by the code under test.
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

// Whatever comes from wherever: nothing panics, and only what a peer may send
// is written, unchanged, and each packet is counted once.
func FuzzFromWire(f *testing.F) {
	seeds(f, func(pkt []byte) {
		f.Add(pkt, uint8(2), uint16(8285))
		f.Add(pkt, uint8(3), uint16(8285))
		f.Add(pkt, uint8(66), uint16(8285))
		f.Add(pkt, uint8(2), uint16(1))
	})
	f.Fuzz(func(t *testing.T, pkt []byte, host uint8, port uint16) {
		if len(pkt) > maxPacket {
			return
		}
		e, dev, _ := fuzzHost()
		b := newBatch(1)
		b.sizes[0] = copy(b.bufs[0], pkt)
		b.from[0] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, host}), port)
		e.toDevice(b, 1)

		counted, dropped := total(e)
		if counted+dropped != 1 || int(counted) != dev.Waiting() {
			t.Fatalf("%d counted, %d dropped, %d written", counted, dropped, dev.Waiting())
		}
		if dev.Waiting() == 0 {
			return
		}
		out := make([]byte, maxPacket)
		n, _ := dev.Take(out)
		if out = out[:n]; !bytes.Equal(out, pkt) {
			t.Fatalf("wrote %x for %x", out, pkt)
		}
		allowed := map[uint8][]netip.Prefix{2: planB().subnets, 3: prefixes("10.5.3.0/24")}[host]
		if port != 8285 || !within(out, 12, 8, allowed) || !within(out, 16, 24, planA().subnets) {
			t.Fatalf("wrote %x from host %d port %d", out, host, port)
		}
	})
}

// Whatever the kernel hands over: nothing panics, and only what its peer will
// accept is sent, unchanged, to the owner of the destination.
func FuzzFromTun(f *testing.F) {
	seeds(f, func(pkt []byte) { f.Add(pkt) })
	f.Fuzz(func(t *testing.T, pkt []byte) {
		if len(pkt) > maxPacket {
			return
		}
		e, _, wire := fuzzHost()
		b := newBatch(1)
		b.sizes[0] = copy(b.bufs[0], pkt)
		e.toWire(b, 1)

		sent, dropped := total(e)
		if sent+dropped != 1 || (sent == 1) != wire.to.IsValid() {
			t.Fatalf("%d sent, %d dropped, last to %s", sent, dropped, wire.to)
		}
		if sent == 0 {
			return
		}
		owner := map[string][]netip.Prefix{"192.0.2.2:8285": planB().subnets, "192.0.2.3:8285": prefixes("10.5.3.0/24")}[wire.to.String()]
		if !bytes.Equal(wire.pkt, pkt) || !within(pkt, 12, 8, planA().subnets) || !within(pkt, 16, 24, owner) {
			t.Fatalf("sent %x to %s for %x", wire.pkt, wire.to, pkt)
		}
	})
}

// total counts what passed and what was dropped, of all peers and both ways.
func total(e *engine) (passed, dropped uint64) {
	for _, c := range e.counters() {
		passed += c.RxPackets + c.TxPackets
		for _, n := range c.Drops {
			dropped += n
		}
	}
	return passed, dropped
}
