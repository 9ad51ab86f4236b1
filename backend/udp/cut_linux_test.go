package udp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
)

// cut is reference code for segmentation. It returns the complete packets that a captured one
// stands for.
func cut(c captured) [][]byte {
	read := readIPv4
	if c.pkt[0]>>4 == 6 {
		read = readIPv6
	}
	p, err := read(c.pkt)
	if err != nil || p.fragment || p.proto != protoTCP && p.proto != protoUDP {
		return nil
	}
	at, header := len(c.pkt)-len(p.payload), 8
	if p.proto == protoTCP {
		header = int(p.payload[12]>>4) * 4
	}
	var pieces [][]byte
	for i, rest := 0, p.payload[header:]; i == 0 || len(rest) > 0; i++ {
		data := rest
		if c.size > 0 && c.size < len(rest) {
			data = rest[:c.size]
		}
		rest = rest[len(data):]
		pkt := slices.Concat(c.pkt[:at+header], data)
		p.payload = pkt[at:]
		if p.src.Is4() {
			binary.BigEndian.PutUint16(pkt[2:], uint16(len(pkt)))
			binary.BigEndian.PutUint16(pkt[4:], p.id+uint16(i))
			pkt[10], pkt[11] = 0, 0
			binary.BigEndian.PutUint16(pkt[10:], sum16(pkt[:at]))
		} else {
			binary.BigEndian.PutUint16(pkt[4:], uint16(len(pkt)-40))
		}
		sum := p.payload[6:8]
		if p.proto == protoUDP {
			binary.BigEndian.PutUint16(p.payload[4:], uint16(len(p.payload)))
		} else {
			sum = p.payload[16:18]
			binary.BigEndian.PutUint32(p.payload[4:], binary.BigEndian.Uint32(p.payload[4:])+uint32(i*c.size))
			if i > 0 {
				p.payload[13] &^= tcpCWR
			}
			if len(rest) > 0 {
				p.payload[13] &^= tcpFIN | tcpPSH
			}
		}
		if c.partial || c.size > 0 {
			sum[0], sum[1] = 0, 0
			value := p.transportSum()
			if value == 0 && p.proto == protoUDP {
				value = 0xffff
			}
			binary.BigEndian.PutUint16(sum, value)
		}
		pieces = append(pieces, pkt)
	}
	return pieces
}

// TestSuperPacketsAreCut compares the super packets that leave one container with the packets that
// reach the other: these are what reference code makes of the super packets, two hops later.
func TestSuperPacketsAreCut(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, 4)
	asOnAWire(b.ns, "c0")
	for _, h := range []*host{a, b} {
		h.container.Sh(fmt.Sprintf("sysctl -qw net.ipv4.tcp_ecn=1; ip link set eth0 mtu %d", h.state.MTU))
	}
	for family, addr := range inner(2) {
		ping(t, a.container, addr)
		out, in := record(t, a.container, "eth0"), record(t, b.container, "eth0")
		for _, options := range [][]option{nil, unusualHeaders(addr)} {
			client, server := connect(t, a.container, b.container, addr, options...)
			if err := pour(client, server, randomBytes(1<<20)); err != nil {
				t.Error(err)
			}
		}
		to := listenUDP(t, b.container, net.JoinHostPort(addr, "0"))
		at := netip.MustParseAddrPort(to.LocalAddr().String())
		buf := make([]byte, maxPacket)
		for _, sending := range sendings()[family] {
			if sending.plain {
				continue
			}
			from := listenUDP(t, a.container, net.JoinHostPort(inner(1)[family], "0"), sending.options...)
			for _, many := range bursts(1380) {
				if _, err := many.send(from, at, 1, 0, true); err != nil {
					t.Fatal(err)
				}
				for range many.sizes() {
					if _, err := to.Read(buf); err != nil {
						t.Fatalf("%s: %+v: %v", sending.name, many, err)
					}
				}
			}
		}
		var want, got [][]byte
		supers := map[byte]int{}
		arrived := in.stop() // first: what arrived was sent before
		// The connections of the other family may still send.
		isOf := func(pkt []byte) bool { return pkt[0]>>4 == map[int]byte{0: 4, 1: 6}[family] }
		for _, c := range out.stop() {
			if !c.sent || !isOf(c.pkt) {
				continue
			}
			pieces := cut(c)
			if len(pieces) > 1 {
				p, err := readPacket(pieces[0])
				if err != nil {
					t.Fatal(err)
				}
				supers[p.proto]++
			}
			want = append(want, pieces...)
		}
		for _, c := range arrived {
			if !c.sent && isOf(c.pkt) {
				got = append(got, c.pkt)
			}
		}
		if supers[protoTCP] < 10 || supers[protoUDP] < 10 {
			t.Errorf("super packets by protocol: %v", supers)
		}
		checkArrived(t, addr, want, 2, got)
	}
}
