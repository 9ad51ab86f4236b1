package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"golang.org/x/net/ipv4"

	"github.com/lenonet/leno/e2e/lab"
)

const (
	// simulatedHosts contains the addresses of all simulated peers, which have no host.
	simulatedHosts = "198.18.0.0/15"

	vxlanPort = 8472
	helloPort = 5367 // of the agents' messages to each other
)

// answerTests answers on the switch the tests of paths to simulated peers that use vxlan, as the peers' kernels and
// agents would, until the function that it returns is called.
func answerTests(ctx context.Context, on *lab.Namespace) (stop func() error, err error) {
	if _, err := on.Exec(ctx, "ip", "route", "add", "local", simulatedHosts, "dev", "lo"); err != nil {
		return nil, err
	}
	var conn *net.UDPConn
	err = on.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: vxlanPort})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("answer for simulated peers: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- answerAll(ipv4.NewPacketConn(conn)) }()
	return func() error { return errors.Join(conn.Close(), <-ended) }, nil
}

// answerAll answers every packet, from the address to which it was sent, until the socket is closed.
func answerAll(conn *ipv4.PacketConn) error {
	if err := conn.SetControlMessage(ipv4.FlagDst, true); err != nil {
		return err
	}
	packet := make([]byte, 1<<16)
	for {
		n, control, from, err := conn.ReadFrom(packet)
		if err == nil && answer(packet[:n]) {
			to := &net.UDPAddr{IP: from.(*net.UDPAddr).IP, Port: vxlanPort}
			_, err = conn.WriteTo(packet[:n], &ipv4.ControlMessage{Src: control.Dst}, to)
		}
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return fmt.Errorf("answer for simulated peers: %w", err)
		}
	}
}

// answer turns a VXLAN packet with an echo request or an agent's question in it into the answer, and reports whether
// it is one of these. The checksum of the IP header stays right when the addresses are exchanged.
func answer(packet []byte) bool {
	const vxlanLen, ethernetLen, ipLen, udpLen = 8, 14, 20, 8
	if len(packet) < vxlanLen+ethernetLen+ipLen+udpLen {
		return false
	}
	ethernet := packet[vxlanLen:]
	ip := ethernet[ethernetLen:]
	payload := ip[ipLen:]
	if binary.BigEndian.Uint16(ethernet[12:]) != 0x0800 || ip[0] != 4<<4|ipLen/4 {
		return false
	}
	switch {
	case ip[9] == 1 && payload[0] == byte(ipv4.ICMPTypeEcho):
		payload[0] = byte(ipv4.ICMPTypeEchoReply)
		sum := uint32(binary.BigEndian.Uint16(payload[2:])) + uint32(ipv4.ICMPTypeEcho)<<8 // RFC 1624
		binary.BigEndian.PutUint16(payload[2:], uint16(sum+sum>>16))
	case ip[9] == 17 && binary.BigEndian.Uint16(payload[2:]) == helloPort && answerMessage(payload[udpLen:]):
		exchange(payload[0:2], payload[2:4])
		clear(payload[6:8]) // no checksum
	default:
		return false
	}
	exchange(ethernet[0:6], ethernet[6:12])
	exchange(ip[12:16], ip[16:20])
	return true
}

// answerMessage turns an agent's question (the format is that of agent/hello) into the answer of an agent that has
// received all questions so far, and asks as well. A summary in it becomes that of the peer.
func answerMessage(m []byte) bool {
	const asks, isCurrent = 1, 2
	if len(m) < 32 || m[0] != 1 || m[1]&asks == 0 {
		return false
	}
	m[1] = asks | isCurrent
	seq, nonce := m[4:8], m[8:16]
	copy(m[16:24], nonce)                         // the answer is to this process
	copy(m[24:28], seq)                           // the last question that has arrived
	binary.BigEndian.PutUint32(m[28:], 1<<32-1)   // and those before it
	binary.BigEndian.PutUint64(nonce, 0x6c656e6f) // of the peer's process; any but 0
	return true
}

// exchange swaps the contents of two slices of the same length.
func exchange(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}
