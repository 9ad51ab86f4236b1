package udp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// crowd returns a state with its first peer and many others, of which some come, go or move each
// turn. Every second turn the peers are in reverse order.
func crowd(state backend.State, turn int) backend.State {
	state.Peers = slices.Clone(state.Peers[:1])
	for n := 10; n < 30; n++ {
		if (n+turn)%3 == 0 {
			continue
		}
		peer := labPeer(4, n)
		if (n+turn)%2 == 0 {
			peer.PublicIPs = addrs(underlayAddr(4, n+100))
			peer.Attributes = json.RawMessage(`{"port":9000}`)
		}
		state.Peers = append(state.Peers, peer)
	}
	if turn%2 == 0 {
		slices.Reverse(state.Peers)
	}
	return state
}

// TestPeersChangeUnderTraffic applies other tables again and again and checks that traffic to a
// peer that stays is not affected.
func TestPeersChangeUnderTraffic(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, 4)
	turn, received := 0, uint64(0)
	change := func() {
		turn++
		if _, err := a.tryApply(crowd(a.state, turn)); err != nil {
			t.Fatal(err)
		}
		counters := a.backend.Counters()
		if counters["host-2"].RxPackets < received {
			t.Fatalf("the peer that stays had %d packets, now %+v", received, counters["host-2"])
		}
		received = counters["host-2"].RxPackets
		for _, why := range []string{"rx_unknown_peer", "rx_foreign_source", "rx_foreign_destination", "tx_no_peer", "tx_foreign_source"} {
			if n := counters[""].Drops[why] + counters["host-2"].Drops[why]; n != 0 {
				t.Fatalf("after change %d: %d times %s", turn, n, why)
			}
		}
	}
	for family, addr := range inner(2) {
		// TCP in both directions, as long as the changes last.
		var bulk errgroup.Group
		for _, way := range [][2]*host{{a, b}, {b, a}} {
			client, server := connect(t, way[0].container, way[1].container, inner(way[1].n)[family])
			bulk.Go(func() error { return pour(client, server, randomBytes(4<<20)) })
		}
		for range 50 {
			change()
		}
		if err := bulk.Wait(); err != nil {
			t.Error(err)
		}

		// One datagram at a time, there and back: none is lost.
		from := listenUDP(t, a.container, net.JoinHostPort(inner(1)[family], "0"))
		to := listenUDP(t, b.container, net.JoinHostPort(addr, "0"))
		ping(t, a.container, addr)
		done := make(chan struct{})
		var group errgroup.Group
		group.Go(func() error { return pingPong(from, to, done) })
		for range 50 {
			change()
		}
		close(done)
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// pingPong sends numbered datagrams back and forth until done is closed.
func pingPong(from, to *net.UDPConn, done chan struct{}) error {
	buf := make([]byte, maxPacket)
	for seq := uint32(0); ; seq++ {
		select {
		case <-done:
			return nil
		default:
		}
		ends := [2]*net.UDPConn{from, to}
		for i, conn := range ends {
			other := ends[1-i]
			if _, err := conn.WriteToUDPAddrPort(numbered(1, seq, 100), netip.MustParseAddrPort(other.LocalAddr().String())); err != nil {
				return err
			}
			n, _, err := other.ReadFromUDPAddrPort(buf)
			if err != nil {
				return fmt.Errorf("datagram %d: %w", seq, err)
			}
			if _, got, err := numberOf(buf[:n]); err != nil || got != seq {
				return fmt.Errorf("datagram %d instead of %d: %w", got, seq, err)
			}
		}
	}
}

// TestPeerMoves follows a host to another address and another port with one Apply each. From then
// on its old address counts as a stranger's.
func TestPeerMoves(t *testing.T) {
	t.Parallel()
	for _, outer := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d outside", outer), func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, outer)
			bits := map[int]string{4: "/24", 6: "/64"}[outer]
			b.ns.Sh("ip addr add " + underlayAddr(outer, 22) + bits + " dev eth0")
			b.ns.Settle()
			client, server := connect(t, a.container, b.container, inner(2)[0])
			talk := func() {
				t.Helper()
				for _, way := range [][2]*net.TCPConn{{client, server}, {server, client}} {
					_, writeErr := way[0].Write([]byte("still there?"))
					_, readErr := way[1].Read(make([]byte, 100))
					if err := errors.Join(writeErr, readErr); err != nil {
						t.Fatal(err)
					}
				}
			}
			talk()
			old := netip.AddrPortFrom(netip.MustParseAddr(underlayAddr(outer, 2)), 8285)
			for _, place := range []netip.AddrPort{
				netip.AddrPortFrom(netip.MustParseAddr(underlayAddr(outer, 22)), 8285),
				netip.AddrPortFrom(netip.MustParseAddr(underlayAddr(outer, 22)), 9000),
				old,
			} {
				move(t, b, place)
				a.state.Peers[0].PublicIPs = []netip.Addr{place.Addr()}
				a.state.Peers[0].Attributes = json.RawMessage(fmt.Sprintf(`{"port":%d}`, place.Port()))
				if report := a.apply(); report.Writes != 1 || len(report.Repaired) != 0 {
					t.Errorf("report %+v", report)
				}
				for _, addr := range inner(2) {
					if out, err := a.container.Try("ping -n -c 1 -W 60 " + addr); err != nil {
						t.Fatalf("the first packet after the move to %s: %v\n%s", place, err, out)
					}
				}
				talk()
				refused(t, a, b, old)
				old = place
			}
		})
	}
}

// move closes a host's backend and starts another at a different address.
func move(t *testing.T, h *host, to netip.AddrPort) {
	t.Helper()
	if err := h.backend.Close(); err != nil {
		t.Fatal(err)
	}
	nstest.AwaitForks()
	made, err := Type().New(backend.Config{
		Network: "test", Link: testLink, Pools: pools,
		Options: json.RawMessage(fmt.Sprintf(`{"port":%d}`, to.Port())), Logger: hclog.NewNullLogger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	h.backend = made.(*Backend)
	t.Cleanup(func() {
		if err := made.Close(); err != nil {
			t.Error(err)
		}
	})
	h.state.Underlay.Addrs = []netip.Addr{to.Addr()}
	h.apply()
}

// refused checks that a valid packet of host 2, sent to host 1 from an address that host 2 has
// left, is dropped.
func refused(t *testing.T, a, b *host, old netip.AddrPort) {
	t.Helper()
	strangers := func() uint64 { return a.backend.Counters()[""].Drops["rx_unknown_peer"] }
	before := strangers()
	stranger := listenUDP(t, b.ns, old.String())
	defer nstest.AwaitForks()
	defer stranger.Close()
	pkt := ipPacket{
		src: netip.MustParseAddr(inner(2)[0]), dst: netip.MustParseAddr(inner(1)[0]), proto: protoUDP, ttl: 64,
		payload: udpDatagram(9, 7, []byte("not any more")),
	}
	inside := listenUDP(t, a.container, net.JoinHostPort(inner(1)[0], "7"))
	defer inside.Close()
	if _, err := stranger.WriteToUDPAddrPort(pkt.bytes(), netip.AddrPortFrom(netip.MustParseAddr(underlayAddr(a.outer, 1)), 8285)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the old place is refused", func() bool { return strangers() == before+1 })
	if err := inside.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if n, _, err := inside.ReadFromUDPAddrPort(make([]byte, 100)); !nothingCame(err) {
		t.Errorf("%d bytes came in, %v", n, err)
	}
}
