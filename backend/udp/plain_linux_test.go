package udp

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// plainPeer is host 2 as the simplest possible program: a socket, one datagram per call, and
// reference code for the packets inside.
type plainPeer struct {
	conn *net.UDPConn
	from netip.AddrPort // host 1
	mtu  int            // of the overlay
}

// newPlainPeer returns host 1 and the plain host 2.
func newPlainPeer(t *testing.T, outer int) (*host, *plainPeer) {
	t.Helper()
	a, b := newHost(t, outer, 1, labPeer(outer, 2)), newHost(t, outer, 2)
	join(a, b)
	asOnAWire(a.ns, "eth0") // no super packets for the plain socket, or its peer
	a.apply()
	ping(t, b.ns, underlayAddr(outer, 1)) // packets that wait for a neighbour's address may be overtaken
	return a, &plainPeer{
		conn: listenUDP(t, b.ns, net.JoinHostPort(underlayAddr(outer, 2), "8285")),
		from: netip.AddrPortFrom(netip.MustParseAddr(underlayAddr(outer, 1)), 8285),
		mtu:  a.state.MTU,
	}
}

// receive returns the next packet of a protocol.
func (p *plainPeer) receive(proto byte) (ipPacket, error) {
	buf := make([]byte, maxPacket)
	for {
		n, from, err := p.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return ipPacket{}, err
		}
		if from != p.from || n > p.mtu {
			return ipPacket{}, fmt.Errorf("%d bytes from %s", n, from)
		}
		pkt, err := readPacket(buf[:n])
		if err != nil || pkt.proto == proto {
			return pkt, err
		}
	}
}

func (p *plainPeer) send(pkt []byte) error {
	_, err := p.conn.WriteToUDPAddrPort(pkt, p.from)
	return err
}

// answer returns a packet back to the sender of p.
func (p ipPacket) answer(payload []byte) []byte {
	return ipPacket{src: p.dst, dst: p.src, proto: p.proto, ttl: 64, payload: payload}.bytes()
}

// absent returns an address of host 2 that only the plain peer answers for.
func absent(family int) string { return []string{"10.5.2.9", "fd00:5:0:2::9"}[family] }

// TestCapturedExchange compares the wire with captured bytes: a container's datagram and the answer
// to it, in both families.
func TestCapturedExchange(t *testing.T) {
	t.Parallel()
	exchanges := []struct{ out, in string }{
		{
			"45000021ee6740003f1136500a0501020a05020900070009000da4dd68656c6c6f",
			"4500002100000000401163b80a0502090a05010200090007000d9ad3776f726c64",
		},
		{
			"60000000000d113ffd000005000000010000000000000002fd00000500000002000000000000000900070009000dc1d868656c6c6f",
			"60000000000d1140fd000005000000020000000000000009fd00000500000001000000000000000200090007000db7ce776f726c64",
		},
	}
	for _, outer := range []int{4, 6} {
		a, peer := newPlainPeer(t, outer)
		a.container.Sh("echo 0 > /proc/sys/net/ipv6/auto_flowlabels")
		for family, exchange := range exchanges {
			inside := listenUDP(t, a.container, net.JoinHostPort(inner(1)[family], "7"))
			if _, err := inside.WriteToUDPAddrPort([]byte("hello"), netip.AddrPortFrom(netip.MustParseAddr(absent(family)), 9)); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, maxPacket)
			n, from, err := peer.conn.ReadFromUDPAddrPort(buf)
			if err != nil || from != peer.from || essence(buf[:n], 0) != essence(unhex(t, exchange.out), 0) {
				t.Fatalf("from %s\n%x, captured\n%s, %v", from, buf[:n], exchange.out, err)
			}
			if err := peer.send(unhex(t, exchange.in)); err != nil {
				t.Fatal(err)
			}
			n, from, err = inside.ReadFromUDPAddrPort(buf)
			if err != nil || string(buf[:n]) != "world" || from.Addr().String() != absent(family) || from.Port() != 9 {
				t.Errorf("%q from %s, %v", buf[:n], from, err)
			}
		}
	}
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	// The captured packets are also valid according to the reference code.
	if _, err := readPacket(b); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestPlainPeerTalks lets a container's kernel talk to the plain peer: echoes, datagrams of all
// sizes and in bursts, TCP in both directions.
func TestPlainPeerTalks(t *testing.T) {
	t.Parallel()
	for _, outer := range []int{4, 6} {
		a, peer := newPlainPeer(t, outer)
		for family, addr := range inner(1) {
			name := fmt.Sprintf("IPv%d outside, %s", outer, addr)
			if err := peer.conn.SetDeadline(time.Now().Add(trafficTime)); err != nil {
				t.Fatal(err)
			}
			t.Run(name+", echo", func(t *testing.T) { echo(t, a, peer, family) })
			t.Run(name+", bursts", func(t *testing.T) { plainBursts(t, a, peer, family) })
			t.Run(name+", TCP from the container", func(t *testing.T) {
				data := randomBytes(1 << 20)
				var got []byte
				var group errgroup.Group
				group.Go(func() (err error) {
					got, err = peer.sink()
					return err
				})
				conn := dialTCP(t, a.container, netip.AddrPortFrom(netip.MustParseAddr(absent(family)), sinkPort).String())
				_, err := conn.Write(data)
				if err := errors.Join(err, conn.CloseWrite(), group.Wait()); err != nil || !bytes.Equal(got, data) {
					t.Errorf("%d bytes arrived of %d, or others: %v", len(got), len(data), err)
				}
			})
			t.Run(name+", TCP to the container", func(t *testing.T) {
				data := randomBytes(1 << 20)
				listener := listenTCP(t, a.container, net.JoinHostPort(addr, "0"))
				to := netip.MustParseAddrPort(listener.Addr().String())
				var group errgroup.Group
				group.Go(func() error { return peer.source(netip.MustParseAddr(absent(family)), to, data) })
				conn, err := listener.AcceptTCP()
				if err != nil {
					t.Fatal(errors.Join(err, group.Wait()))
				}
				got, err := readAll(conn)
				if err := errors.Join(err, conn.Close(), group.Wait()); err != nil || !bytes.Equal(got, data) {
					t.Errorf("%d bytes arrived of %d, or others: %v", len(got), len(data), err)
				}
			})
		}
	}
}

func readAll(conn *net.TCPConn) ([]byte, error) {
	if err := conn.SetDeadline(time.Now().Add(trafficTime)); err != nil {
		return nil, err
	}
	return io.ReadAll(conn)
}

// echo answers ping and datagrams of various sizes.
func echo(t *testing.T, a *host, peer *plainPeer, family int) {
	var group errgroup.Group
	group.Go(func() error {
		pkt, err := peer.receive([]byte{protoICMP, protoICMP6}[family])
		if err != nil {
			return err
		}
		reply := append([]byte{0}, pkt.payload[1:]...)
		if family == 1 {
			reply[0] = 129
		}
		return peer.send(pkt.answer(reply))
	})
	out, err := a.container.Try("ping -n -c 1 -W 10 -s 100 " + absent(family))
	if err := errors.Join(err, group.Wait()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	mustContain(t, out, "ttl=63") // one hop: host 1

	inside := listenUDP(t, a.container, net.JoinHostPort(inner(1)[family], "0"))
	to := netip.AddrPortFrom(netip.MustParseAddr(absent(family)), 7)
	largest := peer.mtu - 28 - 20*family
	buf := make([]byte, maxPacket)
	for _, size := range []int{0, 1, 2, 3, 64, 1399, 1400, largest - 1, largest} {
		data := randomBytes(size)
		if _, err := inside.WriteToUDPAddrPort(data, to); err != nil {
			t.Fatal(err)
		}
		pkt, err := peer.receive(protoUDP)
		if err != nil || !bytes.Equal(pkt.payload[8:], data) {
			t.Fatalf("%d bytes, got %+v, %v", size, pkt, err)
		}
		reply := udpDatagram(7, uint16(inside.LocalAddr().(*net.UDPAddr).Port), data)
		if err := peer.send(pkt.answer(reply)); err != nil {
			t.Fatal(err)
		}
		n, from, err := inside.ReadFromUDPAddrPort(buf)
		if err != nil || !bytes.Equal(buf[:n], data) || from != to {
			t.Fatalf("%d bytes, got %d from %s, %v", size, n, from, err)
		}
	}
}

// plainBursts receives one datagram per packet of what a container's kernel sent as one.
func plainBursts(t *testing.T, a *host, peer *plainPeer, family int) {
	inside := listenUDP(t, a.container, net.JoinHostPort(inner(1)[family], "0"))
	to := netip.AddrPortFrom(netip.MustParseAddr(absent(family)), 7)
	var seq, next uint32
	for round := range 2 {
		for _, burst := range bursts(peer.mtu - 28 - 20*family) {
			var err error
			if seq, err = burst.send(inside, to, 1, seq, round == 0); err != nil {
				t.Fatal(err)
			}
			for _, size := range burst.sizes() {
				pkt, err := peer.receive(protoUDP)
				if err != nil {
					t.Fatalf("%+v: %v", burst, err)
				}
				_, got, err := numberOf(pkt.payload[8:])
				if err != nil || got != next || len(pkt.payload) != 8+size || pkt.unsummed {
					t.Fatalf("%+v: number %d of %d bytes, want %d of %d, %v", burst, got, len(pkt.payload)-8, next, size, err)
				}
				next++
			}
		}
	}
}

// nothingCame reports whether a read ended because nothing arrived.
func nothingCame(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
