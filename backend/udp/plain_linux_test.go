package udp

import (
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
)

// plainPeer is host 2 as the simplest possible program: a socket with one datagram per call.
type plainPeer struct {
	conn *net.UDPConn
	from netip.AddrPort // host 1
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
	}
}

func (p *plainPeer) send(pkt []byte) error {
	_, err := p.conn.WriteToUDPAddrPort(pkt, p.from)
	return err
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

// nothingCame reports whether a read ended because nothing arrived.
func nothingCame(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
