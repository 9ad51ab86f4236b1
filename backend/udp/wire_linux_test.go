package udp

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"time"
)

// TestWireFormatAndSpoofing checks that the wire carries the bare packets and nothing else, and
// only a peer's own packets are accepted. The other host is a plain UDP socket.
func TestWireFormatAndSpoofing(t *testing.T) {
	t.Parallel()
	a, b := newHost(t, 4, 1, labPeer(4, 2)), newHost(t, 4, 2)
	join(a, b)
	a.apply()
	b.ns.Sh("ip addr add 192.0.2.66/24 dev eth0")
	sockets := map[string]*net.UDPConn{}
	for _, at := range []string{"192.0.2.2:8285", "192.0.2.2:9999", "192.0.2.66:8285"} {
		inNS(t, b.ns, func() (err error) {
			sockets[at], err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(addrPort(at)))
			return err
		})
		defer sockets[at].Close()
	}
	peer := sockets["192.0.2.2:8285"]
	// The container's own socket: everything that reaches it was accepted.
	var inside *net.UDPConn
	inNS(t, a.container, func() (err error) {
		inside, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 5, 1, 2), Port: 7})
		return err
	})
	defer inside.Close()
	buf := make([]byte, maxPacket)
	deadline := time.Now().Add(trafficTime)
	if err := errors.Join(peer.SetDeadline(deadline), inside.SetDeadline(deadline)); err != nil {
		t.Fatal(err)
	}

	// Out: one hop less, otherwise what the container sent.
	if _, err := inside.WriteToUDPAddrPort([]byte("hello"), addrPort("10.5.2.3:9")); err != nil {
		t.Fatal(err)
	}
	n, from, err := peer.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatal(err)
	}
	pkt := buf[:n]
	if from != addrPort("192.0.2.1:8285") {
		t.Errorf("came from %s", from)
	}
	if n != 20+8+5 || pkt[0] != 0x45 || pkt[8] != 63 || pkt[9] != 17 || !bytes.Equal(pkt[12:20], []byte{10, 5, 1, 2, 10, 5, 2, 3}) ||
		!bytes.Equal(pkt[20:26], []byte{0, 7, 0, 9, 0, 13}) || string(pkt[28:]) != "hello" || checksum(pkt[:20]) != 0 {
		t.Errorf("on the wire: %x", pkt)
	}

	// In: the same packet in the other direction.
	good := udpPacket([4]byte{10, 5, 2, 3}, [4]byte{10, 5, 1, 2}, "good")
	receive := func(want string) {
		t.Helper()
		n, from, err := inside.ReadFromUDPAddrPort(buf)
		if err != nil || string(buf[:n]) != want || from != addrPort("10.5.2.3:9") {
			t.Fatalf("got %q from %s, %v", buf[:n], from, err)
		}
	}
	send := func(from string, pkt []byte) {
		t.Helper()
		if _, err := sockets[from].WriteToUDPAddrPort(pkt, addrPort("192.0.2.1:8285")); err != nil {
			t.Fatal(err)
		}
	}
	send("192.0.2.2:8285", good)
	receive("good")

	bad := udpPacket([4]byte{10, 5, 3, 3}, [4]byte{10, 5, 1, 2}, "bad")
	for _, tt := range []struct {
		name, from string
		pkt        []byte
		node, drop string
	}{
		{"a stranger's address", "192.0.2.66:8285", good, "", "rx_unknown_peer"},
		{"a peer's address and another port", "192.0.2.2:9999", good, "", "rx_unknown_peer"},
		{"an inner source of no peer", "192.0.2.2:8285", bad, "host-2", "rx_foreign_source"},
		{"our own inner source", "192.0.2.2:8285", udpPacket([4]byte{10, 5, 1, 1}, [4]byte{10, 5, 1, 2}, "bad"), "host-2", "rx_foreign_source"},
		{"to be passed on", "192.0.2.2:8285", udpPacket([4]byte{10, 5, 2, 3}, [4]byte{192, 0, 2, 2}, "bad"), "host-2", "rx_foreign_destination"},
		{"cut", "192.0.2.2:8285", good[:30], "host-2", "rx_bad_length"},
		{"empty", "192.0.2.2:8285", nil, "host-2", "rx_truncated"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := a.backend.Counters()[tt.node].Drops[tt.drop]
			for range 5 {
				send(tt.from, tt.pkt)
				send("192.0.2.2:8285", good)
				receive("good") // and nothing else
			}
			eventually(t, "drops are counted", func() bool { return a.backend.Counters()[tt.node].Drops[tt.drop] == before+5 })
		})
	}
}

// udpPacket returns a complete IPv4 packet from port 9 to port 7, without UDP checksum.
func udpPacket(src, dst [4]byte, payload string) []byte {
	pkt := []byte{0x45, 0, 0, byte(28 + len(payload)), 0, 1, 0, 0, 64, 17, 0, 0}
	pkt = append(append(pkt, src[:]...), dst[:]...)
	sum := checksum(pkt)
	pkt[10], pkt[11] = byte(sum>>8), byte(sum)
	pkt = append(pkt, 0, 9, 0, 7, 0, byte(8+len(payload)), 0, 0)
	return append(pkt, payload...)
}

// checksum returns the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
