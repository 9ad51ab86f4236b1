package udp

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/udp/offload"
	"github.com/lenonet/leno/internal/testkit/udptest"
	"github.com/lenonet/leno/internal/testkit/waiting"
)

var (
	_ Device = (*udptest.Device)(nil)
	_ Bind   = (*udptest.Bind)(nil)
)

var eventually = waiting.Until

var (
	atA = netip.MustParseAddrPort("192.0.2.1:8285")
	atB = netip.MustParseAddrPort("192.0.2.2:8285")
)

// fakeHost is an engine between a device and a bind in memory.
type fakeHost struct {
	*engine
	dev *udptest.Device
	log *waiting.Lines
}

func newFakeHost(t testing.TB, wire *udptest.Wire, at netip.AddrPort, batch int, own []netip.Prefix, peers ...peerPlan) *fakeHost {
	t.Helper()
	bind, err := wire.Listen(at, batch)
	if err != nil {
		t.Fatal(err)
	}
	log := &waiting.Lines{}
	h := &fakeHost{engine: newEngine(hclog.New(&hclog.LoggerOptions{Output: log})), dev: newFakeDevice(batch), log: log}
	h.setTable(own, peers)
	if err := errors.Join(h.setDevices(h.dev), h.setBinds(bind)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func newFakeDevice(batch int) *udptest.Device {
	return udptest.NewDevice(batch, offload.Kinds{TCP: true, UDP: true})
}

func planA() peerPlan {
	return peerPlan{node: "host-a", subnets: prefixes("10.5.1.0/24", "fd00:5:0:1::/64"), sources: []netip.AddrPort{atA}}
}

func planB() peerPlan {
	return peerPlan{node: "host-b", subnets: prefixes("10.5.2.0/24", "fd00:5:0:2::/64"), sources: []netip.AddrPort{atB}}
}

func newFakePair(t testing.TB, batch int) (wire *udptest.Wire, a, b *fakeHost) {
	wire = udptest.NewWire(1472)
	a = newFakeHost(t, wire, atA, batch, planA().subnets, planB())
	b = newFakeHost(t, wire, atB, batch, planB().subnets, planA())
	return wire, a, b
}

func (h *fakeHost) receive(t testing.TB) []byte {
	t.Helper()
	buf := make([]byte, maxPacket)
	n, ok := h.dev.Take(buf)
	if !ok {
		t.Fatal("device closed")
	}
	return buf[:n]
}

func TestEngineCarriesPackets(t *testing.T) {
	for _, batch := range []int{1, 16} {
		_, a, b := newFakePair(t, batch)
		var bytesSent uint64
		for i := range 100 {
			for _, way := range []struct {
				from, to *fakeHost
				pkt      []byte
			}{
				{a, b, packet("10.5.1.2", "10.5.2.3", i)},
				{b, a, packet("10.5.2.3", "10.5.1.2", i)},
				{a, b, packet("fd00:5:0:1::2", "fd00:5:0:2::3", i)},
				{b, a, packet("fd00:5:0:2::3", "fd00:5:0:1::2", i)},
				{a, b, packet("10.5.1.0", "10.5.2.0", i)}, // the devices' own addresses
			} {
				if !way.from.dev.Inject(way.pkt) {
					t.Fatal("no room")
				}
				if got := way.to.receive(t); !bytes.Equal(got, way.pkt) {
					t.Fatalf("batch %d, packet %d: got %x, want %x", batch, i, got, way.pkt)
				}
				if way.from == a {
					bytesSent += uint64(len(way.pkt))
				}
			}
		}
		want := backend.Counters{TxPackets: 300, TxBytes: bytesSent, RxPackets: 200, RxBytes: bytesSent - (99*100/2 + 100*ipv4HeaderLen)}
		eventually(t, "all is counted", func() bool {
			got := a.counters()["host-b"]
			return got.TxPackets == want.TxPackets && got.TxBytes == want.TxBytes && got.RxPackets == want.RxPackets &&
				got.RxBytes == want.RxBytes && len(got.Drops) == 0
		})
		if drops := a.counters()[""].Drops; len(drops) != 0 {
			t.Errorf("drops %v", drops)
		}
		if a.log.String() != "" {
			t.Errorf("logged %s", a.log)
		}
	}
}

func TestEngineKeepsOrderInBatches(t *testing.T) {
	_, a, b := newFakePair(t, 16)
	for i := range 500 {
		a.dev.Inject(packet("10.5.1.2", "10.5.2.3", i))
		a.dev.Inject(packet("10.5.1.2", "10.5.77.1", i)) // to no peer, in between
	}
	for i := range 500 {
		if got := len(b.receive(t)) - ipv4HeaderLen; got != i {
			t.Fatalf("packet %d came at place %d", got, i)
		}
	}
}

// sendTo sends one datagram from one of the test's own binds.
func sendTo(t *testing.T, from Bind, to netip.AddrPort, pkt []byte) {
	t.Helper()
	if n, err := from.Send(message(to, pkt)); n != 1 || err != nil {
		t.Fatalf("sent %d, %v", n, err)
	}
}

// message returns packets as one datagram each.
func message(to netip.AddrPort, pkts ...[]byte) []offload.Outbound {
	out := make([]offload.Outbound, len(pkts))
	for i, pkt := range pkts {
		out[i] = offload.Outbound{To: to, Segments: []offload.Segment{{Head: pkt}}, Size: len(pkt), Bytes: len(pkt)}
	}
	return out
}

func TestEngineDropsFromWire(t *testing.T) {
	good := func() []byte { return packet("10.5.2.3", "10.5.1.2", 8) }
	stranger := netip.MustParseAddrPort("192.0.2.66:8285")
	wrongPort := netip.MustParseAddrPort("192.0.2.2:9999")
	atC := netip.MustParseAddrPort("192.0.2.3:8285")
	tests := []struct {
		name string
		from netip.AddrPort
		pkt  []byte
		node string
		drop string
	}{
		{"a stranger", stranger, good(), "", "rx_unknown_peer"},
		{"a peer's address, another port", wrongPort, good(), "", "rx_unknown_peer"},
		{"inner source of a third host", atC, good(), "host-c", "rx_foreign_source"},
		{"inner source of our own", atC, packet("10.5.1.9", "10.5.1.2", 8), "host-c", "rx_foreign_source"},
		{"inner source out of the network", atC, packet("203.0.113.1", "10.5.1.2", 8), "host-c", "rx_foreign_source"},
		{"IPv6 source of a third host", atC, packet("fd00:5:0:2::3", "fd00:5:0:1::2", 8), "host-c", "rx_foreign_source"},
		{"inner destination of a third host", atC, packet("10.5.3.3", "10.5.2.2", 8), "host-c", "rx_foreign_destination"},
		{"inner destination out of the network", atC, packet("10.5.3.3", "203.0.113.1", 8), "host-c", "rx_foreign_destination"},
		{"multicast", atC, packet("10.5.3.3", "224.0.0.1", 8), "host-c", "rx_foreign_destination"},
		{"empty", atC, nil, "host-c", "rx_truncated"},
		{"cut", atC, packet("10.5.3.3", "10.5.1.2", 8)[:10], "host-c", "rx_truncated"},
		{"lying length", atC, packet("10.5.3.3", "10.5.1.2", 8)[:27], "host-c", "rx_bad_length"},
		{"no IP", atC, edit(packet("10.5.3.3", "10.5.1.2", 8), 0, 0x15), "host-c", "rx_bad_version"},
		{"refused by the kernel", atC, packet("10.5.3.3", "10.5.1.2", 13), "host-c", "rx_not_written"},
	}
	wire := udptest.NewWire(1472)
	a := newFakeHost(t, wire, atA, 4, planA().subnets)
	senders := map[netip.AddrPort]*udptest.Bind{}
	for _, at := range []netip.AddrPort{stranger, wrongPort, atC, atB} {
		bind, err := wire.Listen(at, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer bind.Close()
		senders[at] = bind
	}
	// The refusal must be set before the device is read.
	dev := newFakeDevice(4)
	dev.Refuse(func(pkt []byte) error {
		if len(pkt) == ipv4HeaderLen+13 {
			return syscall.EIO
		}
		return nil
	})
	a.dev = dev
	if err := a.setDevices(dev); err != nil {
		t.Fatal(err)
	}
	planC := peerPlan{node: "host-c", subnets: prefixes("10.5.3.0/24", "fd00:5:0:3::/64"), sources: []netip.AddrPort{atC}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// The peers leave and return, so that each case counts from zero, except for packets
			// that belong to no peer.
			a.setTable(planA().subnets, nil)
			a.setTable(planA().subnets, []peerPlan{planB(), planC})
			before := a.counters()[""].Drops[tt.drop]
			for range 3 {
				sendTo(t, senders[tt.from], atA, tt.pkt)
				// Valid traffic still passes.
				sendTo(t, senders[atB], atA, good())
				if got := a.receive(t); !bytes.Equal(got, good()) {
					t.Fatalf("got %x", got)
				}
			}
			if tt.node == "" {
				eventually(t, "drops without a peer are counted", func() bool { return a.counters()[""].Drops[tt.drop] == before+3 })
				return
			}
			eventually(t, "drops are counted", func() bool { return a.counters()[tt.node].Drops[tt.drop] == 3 })
			if got := a.counters()[tt.node]; len(got.Drops) != 1 || got.RxPackets != 0 {
				t.Errorf("counters %+v", got)
			}
		})
	}
	if a.dev.Waiting() != 0 {
		t.Errorf("%d more packets reached the kernel", a.dev.Waiting())
	}
}

func TestEngineDropsFromDevice(t *testing.T) {
	tests := []struct {
		name string
		pkt  []byte
		node string
		drop string
	}{
		{"a subnet of no peer", packet("10.5.1.2", "10.5.77.1", 8), "", "tx_no_peer"},
		{"our own subnet", packet("10.5.1.2", "10.5.1.3", 8), "", "tx_no_peer"},
		{"multicast", packet("10.5.1.2", "224.0.0.251", 8), "", "tx_multicast"},
		{"broadcast", packet("10.5.1.2", "255.255.255.255", 8), "", "tx_multicast"},
		{"IPv6 multicast", packet("fe80::1", "ff02::16", 8), "", "tx_multicast"},
		{"another network's source", packet("203.0.113.9", "10.5.2.3", 8), "host-b", "tx_foreign_source"},
		{"a peer's source", packet("10.5.2.9", "10.5.2.3", 8), "host-b", "tx_foreign_source"},
		{"link-local source", packet("fe80::1", "fd00:5:0:2::3", 8), "host-b", "tx_foreign_source"},
		{"empty", nil, "", "tx_truncated"},
		{"no IP", edit(packet("10.5.1.2", "10.5.2.3", 8), 0, 0), "", "tx_bad_version"},
		{"lying length", append(packet("10.5.1.2", "10.5.2.3", 8), 1), "", "tx_bad_length"},
		{"too big for the wire", packet("10.5.1.2", "10.5.2.3", 1472), "host-b", "tx_too_big"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, a, b := newFakePair(t, 4)
			for range 3 {
				a.dev.Inject(tt.pkt)
			}
			good := packet("10.5.1.2", "10.5.2.3", 8)
			a.dev.Inject(good)
			if got := b.receive(t); !bytes.Equal(got, good) {
				t.Fatalf("got %x", got)
			}
			eventually(t, "drops are counted", func() bool { return a.counters()[tt.node].Drops[tt.drop] == 3 })
			all := a.counters()
			if len(all[""].Drops)+len(all["host-b"].Drops) != 1 {
				t.Errorf("counters %+v", all)
			}
		})
	}
}

// TestEngineTwoPeersOnOneAddress checks that two leases with one address, as left by a reinstalled
// host, both work.
func TestEngineTwoPeersOnOneAddress(t *testing.T) {
	_, a, b := newFakePair(t, 1)
	old := peerPlan{node: "host-old", subnets: prefixes("10.5.3.0/24"), sources: []netip.AddrPort{atB}}
	a.setTable(planA().subnets, []peerPlan{planB(), old})
	b.setTable(append(planB().subnets, old.subnets...), []peerPlan{planA()})
	for _, src := range []string{"10.5.2.3", "10.5.3.3"} {
		pkt := packet(src, "10.5.1.2", 8)
		b.dev.Inject(pkt)
		if got := a.receive(t); !bytes.Equal(got, pkt) {
			t.Fatalf("got %x", got)
		}
	}
	for _, node := range []string{"host-b", "host-old"} {
		eventually(t, node+" is counted", func() bool { return a.counters()[node].RxPackets == 1 })
	}
}

func TestEngineEndsCanBeReplaced(t *testing.T) {
	wire, a, b := newFakePair(t, 4)
	pkt := packet("10.5.1.2", "10.5.2.3", 8)
	cross := func() {
		t.Helper()
		if !a.dev.Inject(pkt) {
			t.Fatal("no room")
		}
		b.receive(t)
	}
	cross()

	// Without a socket packets are dropped and counted.
	if err := a.setBinds(); err != nil {
		t.Fatal(err)
	}
	if a.binds.alive() || !a.devices.alive() {
		t.Fatal("wrong end is gone")
	}
	a.dev.Inject(pkt)
	eventually(t, "dropped without socket", func() bool { return a.counters()["host-b"].Drops["tx_detached"] == 1 })

	bind, err := wire.Listen(atA, 4)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.setBinds(bind); err != nil {
		t.Fatal(err)
	}
	cross()

	// The same without a device.
	if err := b.setDevices(); err != nil {
		t.Fatal(err)
	}
	a.dev.Inject(pkt)
	eventually(t, "dropped without device", func() bool { return b.counters()["host-a"].Drops["rx_detached"] == 1 })
	b.dev = newFakeDevice(4)
	if err := b.setDevices(b.dev); err != nil {
		t.Fatal(err)
	}
	cross()

	// The counters survive all of it.
	eventually(t, "four left", func() bool { return a.counters()["host-b"].TxPackets == 4 })
	eventually(t, "three came", func() bool { return b.counters()["host-a"].RxPackets == 3 })
}

// TestEngineNoticesBrokenDevice checks that a device that disappeared ends its reader, is logged
// once and does not cause a busy loop.
func TestEngineNoticesBrokenDevice(t *testing.T) {
	_, a, b := newFakePair(t, 1)
	a.dev.Break(errors.New("device deleted"))
	eventually(t, "the reader ended and says so", func() bool { return !a.devices.alive() && strings.Contains(a.log.String(), "end=device") })
	if !a.binds.alive() {
		t.Error("the socket is gone too")
	}
	if n := strings.Count(a.log.String(), "\n"); n != 1 {
		t.Errorf("log %q", a.log)
	}
	a.dev = newFakeDevice(1)
	if err := a.setDevices(a.dev); err != nil {
		t.Fatal(err)
	}
	pkt := packet("10.5.1.2", "10.5.2.3", 8)
	a.dev.Inject(pkt)
	if got := b.receive(t); !bytes.Equal(got, pkt) {
		t.Fatalf("got %x", got)
	}
}

func TestEngineCloseIsRepeatable(t *testing.T) {
	_, a, _ := newFakePair(t, 1)
	for range 3 {
		if err := a.close(); err != nil {
			t.Fatal(err)
		}
	}
	if a.devices.alive() || a.binds.alive() {
		t.Error("alive after close")
	}
	if a.log.String() != "" {
		t.Errorf("close logged %s", a.log)
	}
}

// TestEngineChangesUnderTraffic changes tables, sockets and devices while packets flow, for the
// race detector.
func TestEngineChangesUnderTraffic(t *testing.T) {
	wire, a, b := newFakePair(t, 8)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		pkt := packet("10.5.1.2", "10.5.2.3", 100)
		for {
			select {
			case <-stop:
				return
			default:
				a.dev.Inject(pkt)
			}
		}
	})
	for i := range 50 {
		peers := []peerPlan{planB()}
		if i%2 == 0 {
			peers = append(peers, peerPlan{node: "host-x", subnets: prefixes("10.5.9.0/24"), sources: []netip.AddrPort{atA}})
		}
		a.setTable(planA().subnets, peers)
		bind, err := wire.Listen(netip.AddrPortFrom(atB.Addr(), uint16(9000+i)), 8)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(b.setBinds(bind), b.setDevices(newFakeDevice(8))); err != nil {
			t.Fatal(err)
		}
		if got := a.counters(); !slices.Contains([]int{2, 3}, len(got)) {
			t.Fatalf("counters %v", got)
		}
	}
	close(stop)
	wg.Wait()
}

// TestEngineDoesNotAllocate checks that packets pass through two engines, there and back, without
// any allocation.
func TestEngineDoesNotAllocate(t *testing.T) {
	for _, batch := range []int{1, 16} {
		_, a, b := newFakePair(t, batch)
		there, back := packet("10.5.1.2", "10.5.2.3", 1400), packet("fd00:5:0:2::3", "fd00:5:0:1::2", 1400)
		stray := packet("10.5.1.2", "10.5.77.1", 1400)
		buf := make([]byte, maxPacket)
		const burst = 16 // on a busy machine each wait for the other host takes a while
		round := func() {
			for range burst {
				a.dev.Inject(stray)
				a.dev.Inject(there)
				b.dev.Inject(back)
			}
			for range burst {
				b.dev.Take(buf)
				a.dev.Take(buf)
			}
		}
		for range 3 * 1024 / burst { // every slot of every queue allocates its memory
			round()
		}
		if n := testing.AllocsPerRun(100, round); n != 0 {
			t.Errorf("batch %d: %.0f allocations a round", batch, n)
		}
	}
}

func BenchmarkEngine(b *testing.B) {
	_, from, to := newFakePair(b, 1)
	pkt := packet("10.5.1.2", "10.5.2.3", 1400)
	buf := make([]byte, maxPacket)
	for range 2 * 1024 { // every slot of the queues allocates its memory
		from.dev.Inject(pkt)
		to.dev.Take(buf)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(pkt)))
	for b.Loop() {
		from.dev.Inject(pkt)
		to.dev.Take(buf)
	}
}

// BenchmarkTable measures checking one packet among 5,000 peers, in each direction.
func BenchmarkTable(b *testing.B) {
	peers := make([]peerPlan, 0, 5000)
	for i := range 5000 {
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), 8285)
		peers = append(peers, peerPlan{node: at.String(), subnets: []netip.Prefix{subnet}, sources: []netip.AddrPort{at}})
	}
	table := newTable(prefixes("10.200.0.0/24"), peers, nil)
	from := peers[2500].sources[0]
	out := packet("10.200.0.1", peers[2500].subnets[0].Addr().Next().String(), 1400)
	frame := append(make([]byte, offload.HeaderLen), out...)
	in := packet(peers[2500].subnets[0].Addr().Next().String(), "10.200.0.1", 1400)
	b.ReportAllocs()
	for b.Loop() {
		if _, why := table.egress(frame); why != passed {
			b.Fatal(why)
		}
		if _, why := table.ingress(table.sources[from], from, in); why != passed {
			b.Fatal(why)
		}
	}
}
