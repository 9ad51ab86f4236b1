package udp

import (
	"fmt"
	"net"
	"testing"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestOffloadCombinations checks that each offload of the kernel can be used or left out
// independently: with every combination, one host carries everything to and from a host that has
// all. The device of the previous process is adopted, whatever that process had switched on.
func TestOffloadCombinations(t *testing.T) {
	t.Parallel()
	for _, steer := range []bool{false, true} {
		for _, gro := range []bool{false, true} {
			t.Run(fmt.Sprintf("gro %t, steer %t", gro, steer), func(t *testing.T) {
				t.Parallel()
				combineOffloads(t, gro, steer)
			})
		}
	}
}

// combineOffloads tests two of the offloads as given, with every combination of the others.
func combineOffloads(t *testing.T, gro, steer bool) {
	a, b := newHosts(t, 4)
	index := a.ns.Index(testLink)
	for bits := range 8 {
		want := offloads{tso: bits&1 != 0, uso: bits&2 != 0, segment: bits&4 != 0, gro: gro, steer: steer}
		t.Run(fmt.Sprintf("%+v", want), func(t *testing.T) {
			a.t, b.t = t, t
			a.renew()
			a.backend.want, a.backend.queues = want, 2
			a.apply()
			if got := a.ns.Index(testLink); got != index {
				t.Fatalf("device %d instead of %d", got, index)
			}
			for i := range inner(1) {
				ping(t, a.container, inner(2)[i])
				ping(t, a.container, inner(2)[i], "-s", "4000")
				stream(t, a.container, b.container, inner(2)[i])
				stream(t, b.container, a.container, inner(1)[i])
				datagrams(t, a.container, b.container, inner(2)[i])
				datagrams(t, b.container, a.container, inner(1)[i])
			}
			for _, h := range []*host{a, b} {
				for node, c := range h.backend.Counters() {
					if len(c.Drops) != 0 && node != "" {
						t.Errorf("host %d dropped %v of %s", h.n, c.Drops, node)
					}
				}
			}
		})
	}
	a.t, b.t = t, t
	a.renew()
	a.apply()
	if got := a.ns.Index(testLink); got != index {
		t.Errorf("with all offloads: device %d instead of %d", got, index)
	}
	for i := range inner(1) {
		stream(t, a.container, b.container, inner(2)[i])
	}
}

// stream sends enough over TCP for super packets to be created.
func stream(t *testing.T, from, to *nstest.NS, addr string) {
	t.Helper()
	client, server := connect(t, from, to, addr)
	if err := pour(client, server, randomBytes(1<<17)); err != nil {
		t.Fatal(err)
	}
}

// datagrams sends bursts of UDP datagrams, including some that reach the device as super packets,
// and checks that all of them arrive, in order and unchanged.
func datagrams(t *testing.T, from, to *nstest.NS, addr string) {
	t.Helper()
	receiver := listenUDP(t, to, net.JoinHostPort(addr, "0"))
	defer receiver.Close()
	sender := listenUDP(t, from, ":0")
	defer sender.Close()
	at := receiver.LocalAddr().(*net.UDPAddr).AddrPort()
	buf := make([]byte, maxPacket)
	seq := uint32(0)
	for _, segmented := range []bool{false, true} {
		for _, b := range bursts(1400) {
			first := seq
			var err error
			if seq, err = b.send(sender, at, 1, seq, segmented); err != nil {
				t.Fatal(err)
			}
			for i, size := range b.sizes() {
				n, err := receiver.Read(buf)
				if err != nil {
					t.Fatalf("burst %+v, datagram %d: %v", b, i, err)
				}
				if _, got, err := numberOf(buf[:n]); err != nil || n != size || got != first+uint32(i) {
					t.Fatalf("burst %+v, datagram %d of %d bytes is %d of %d bytes, %v", b, first+uint32(i), size, got, n, err)
				}
			}
		}
	}
}
