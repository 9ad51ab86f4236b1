package udp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// variation makes one packet of a run differ from its neighbours.
type variation struct {
	name    string
	packet  func(*ipPacket)
	segment func(*tcpSegment) // only in runs of TCP
	raw     func([]byte)      // on the finished packet; its IPv4 checksum is computed again
	family  int               // 4 or 6: only for that family
	dies    bool              // the IPv4 header is invalid, so the kernel drops the packet
}

// variations returns all differences between two packets that otherwise have the same flow and
// size.
func variations() []variation {
	return []variation{
		{name: "none"},
		{name: "TTL", packet: func(p *ipPacket) { p.ttl-- }},
		{name: "ECN", packet: func(p *ipPacket) { p.tos |= 3 }},
		{name: "DSCP", packet: func(p *ipPacket) { p.tos |= 0x88 }},
		{name: "source", packet: func(p *ipPacket) { p.src = p.src.Next() }},
		{name: "destination", packet: func(p *ipPacket) { p.dst = p.dst.Next() }},
		{name: "identification", packet: func(p *ipPacket) { p.id += 77 }, family: 4},
		{name: "the same identification", packet: func(p *ipPacket) { p.id-- }, family: 4},
		{name: "DF", packet: func(p *ipPacket) { p.df = !p.df }, family: 4},
		{name: "first fragment", raw: func(b []byte) { b[6] |= 0x20 }, family: 4},
		{name: "later fragment", raw: func(b []byte) { b[7] |= 1 }, family: 4},
		{name: "reserved bit", raw: func(b []byte) { b[6] |= 0x80 }, family: 4},
		{name: "wrong header checksum", dies: true, family: 4},
		{name: "options", packet: func(p *ipPacket) { p.options = []byte{1, 1, 1, 0} }, family: 4},
		{name: "flow label", raw: func(b []byte) { b[3] ^= 0x55 }, family: 6},
		{name: "destination options", packet: func(p *ipPacket) { p.extend(60) }, family: 6},
		{name: "hop-by-hop options", packet: func(p *ipPacket) { p.extend(0) }, family: 6},
		{name: "fragment", packet: func(p *ipPacket) { p.extend(44); p.fragment = true }, family: 6},
		{name: "wrong checksum", raw: func(b []byte) { b[len(b)-1] ^= 1 }},
		{name: "other source port", packet: func(p *ipPacket) { p.payload[1] ^= 1 }},
		{name: "other destination port", packet: func(p *ipPacket) { p.payload[3] ^= 1 }},
		{name: "longer", packet: func(p *ipPacket) { p.resize(333) }},
		{name: "shorter", packet: func(p *ipPacket) { p.resize(-333) }},
		{name: "one byte shorter", packet: func(p *ipPacket) { p.resize(-1) }},
		{name: "empty", packet: func(p *ipPacket) { p.resize(-500) }},

		{name: "gap", segment: func(s *tcpSegment) { s.seq += 1000 }},
		{name: "repeated", segment: func(s *tcpSegment) { s.seq -= uint32(len(s.data)) }},
		{name: "acknowledgement", segment: func(s *tcpSegment) { s.ack++ }},
		{name: "window", segment: func(s *tcpSegment) { s.window++ }},
		{name: "FIN", segment: func(s *tcpSegment) { s.flags |= tcpFIN }},
		{name: "SYN", segment: func(s *tcpSegment) { s.flags |= tcpSYN }},
		{name: "PSH", segment: func(s *tcpSegment) { s.flags |= tcpPSH }},
		{name: "URG", segment: func(s *tcpSegment) { s.flags |= tcpURG }},
		{name: "ECE", segment: func(s *tcpSegment) { s.flags |= tcpECE }},
		{name: "CWR", segment: func(s *tcpSegment) { s.flags |= tcpCWR }},
		{name: "no ACK", segment: func(s *tcpSegment) { s.flags = 0 }},
		{name: "accurate ECN", packet: func(p *ipPacket) { p.payload[12] |= 1 }, segment: func(*tcpSegment) {}},
		{name: "other timestamps", segment: func(s *tcpSegment) { s.options[4]++ }},
		{name: "no timestamps", segment: func(s *tcpSegment) { s.options = nil }},

		{name: "no checksum", packet: func(p *ipPacket) { p.unsummed = p.proto == protoUDP }, family: 4},
	}
}

// extend adds eight bytes of extension header before an IPv6 payload.
func (p *ipPacket) extend(kind byte) {
	p.next, p.options = kind, []byte(paddingOptions)
	if kind == 44 {
		p.options = []byte{0, 0, 0, 1, 1, 2, 3, 4}
	}
	p.options[0] = p.proto
}

// resize makes the data of a packet longer or shorter.
func (p *ipPacket) resize(by int) {
	p.payload = append([]byte(nil), p.payload...)
	if by < 0 {
		p.payload = p.payload[:len(p.payload)+by]
	} else {
		p.payload = append(p.payload, make([]byte, by)...)
	}
	if p.proto == protoUDP {
		binary.BigEndian.PutUint16(p.payload[4:], uint16(len(p.payload)))
	}
}

// run returns ten packets of one flow and one size, some of which have the variation.
func run(v variation, varied func(i int) bool, src, dst netip.Addr, proto byte, df bool, port uint16) [][]byte {
	var pkts [][]byte
	seq := uint32(1_000_000)
	for i := range 10 {
		p := ipPacket{src: src, dst: dst, proto: proto, ttl: 64, df: df, id: 5000 + uint16(i)}
		data := numbered(byte(i), seq, 500)
		if proto == protoUDP {
			p.payload = udpDatagram(port, 9, data)
		} else {
			s := tcpSegment{
				src: port, dst: 9, seq: seq, ack: 7, flags: tcpACK, window: 1000, data: data,
				options: []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2},
			}
			if varied(i) && v.segment != nil {
				v.segment(&s)
			}
			p.payload = s.bytes()
		}
		if varied(i) && v.packet != nil {
			v.packet(&p)
		}
		pkt := p.bytes()
		if varied(i) && v.raw != nil {
			v.raw(pkt)
			if src.Is4() {
				pkt[10], pkt[11] = 0, 0
				binary.BigEndian.PutUint16(pkt[10:], sum16(pkt[:20]))
			}
		}
		if varied(i) && v.dies {
			pkt[10] ^= 0xff
		}
		seq += 500
		pkts = append(pkts, pkt)
	}
	return pkts
}

func some(i int) bool { return i == 3 || i == 7 }
func every(int) bool  { return true }

// TestRunsArriveAsSent sends the container runs of packets that look as if they could be joined,
// each with some that must not be. All arrive as they were sent, in order, one hop later.
func TestRunsArriveAsSent(t *testing.T) {
	t.Parallel()
	a, peer := newPlainPeer(t, 4)
	asOnAWire(a.ns, "c0")
	for family, addr := range inner(1) {
		src, dst := netip.MustParseAddr(absent(family)), netip.MustParseAddr(addr)
		// The neighbours' addresses are set in advance; otherwise there would be room for only some
		// packets to wait for them.
		mac := a.container.Sh("cat /sys/class/net/eth0/address")
		for _, at := range []netip.Addr{dst, dst.Next()} {
			a.ns.Sh(fmt.Sprintf("ip neigh replace %s dev br0 lladdr %s", at, mac))
		}
		for _, gro := range []string{"off", "on"} { // the kernel joins what it can before the socket
			a.ns.Sh("ethtool -K eth0 gro " + gro)
			for _, proto := range []byte{protoUDP, protoTCP} {
				for _, df := range []bool{true, false} {
					if family == 1 && !df {
						continue // it has no such bit
					}
					name := fmt.Sprintf("protocol %d to %s, DF %v, GRO %s", proto, addr, df, gro)
					t.Run(name, func(t *testing.T) { sendRuns(t, a, peer, src, dst, proto, df) })
				}
			}
		}
	}
}

func sendRuns(t *testing.T, a *host, peer *plainPeer, src, dst netip.Addr, proto byte, df bool) {
	t.Helper()
	judged := func() (n uint64) {
		count := a.backend.Counters()["host-2"]
		for _, dropped := range count.Drops {
			n += dropped
		}
		return n + count.RxPackets
	}
	if err := peer.conn.SetDeadline(time.Now().Add(trafficTime)); err != nil {
		t.Fatal(err)
	}
	inside := record(t, a.ns, "c0")
	sent, got := map[runKey][]string{}, map[runKey][]string{}
	names := map[uint16]string{}
	port, before, total := uint16(10_000), judged(), uint64(0)
	for _, v := range variations() {
		if v.segment != nil && proto != protoTCP || v.family != 0 && (v.family == 4) != src.Is4() {
			continue
		}
		for _, varied := range []func(int) bool{some, every} {
			port += 2 // a variation uses the port above too
			names[port/2] = v.name
			pkts := run(v, varied, src, dst, proto, df, port)
			// Several times, because the scheduler determines which packets are read together.
			for range 3 {
				for i, pkt := range pkts {
					if err := peer.send(pkt); err != nil {
						t.Fatal(err)
					}
					total++
					if !v.dies || !varied(i) {
						key := runKeyOf(pkt, names)
						sent[key] = append(sent[key], essence(pkt, 0))
					}
				}
			}
			eventually(t, v.name+" has passed", func() bool { return judged() >= before+total })
		}
	}
	ofRun := func(c captured) bool {
		key := runKeyOf(c.pkt, names)
		return c.sent && (key.src == src || key.src == src.Next())
	}
	expected := 0
	for _, pkts := range sent {
		expected += len(pkts)
	}
	await(func() bool { return inside.count(ofRun) >= expected }) // the kernel has still to pass on the last ones
	for _, c := range inside.stop() {
		if ofRun(c) {
			key := runKeyOf(c.pkt, names)
			got[key] = append(got[key], essence(c.pkt, 1))
		}
	}
	for key, want := range sent {
		if len(got[key]) != len(want) {
			t.Errorf("%+v: %d packets arrived of %d", key, len(got[key]), len(want))
			continue
		}
		for i := range want {
			if got[key][i] != want[i] {
				t.Errorf("%+v: packet %d of %d arrived as\n%.80x, sent\n%.80x", key, i, len(want), got[key][i], want[i])
				break
			}
		}
	}
	for key := range got {
		if sent[key] == nil {
			t.Errorf("%+v: %d packets arrived and none was sent", key, len(got[key]))
		}
	}
}

// runKey identifies the flow of a packet, and the run it belongs to.
type runKey struct {
	name     string
	src, dst netip.Addr
	ports    string
	fragment bool
}

func runKeyOf(pkt []byte, names map[uint16]string) runKey {
	read := readIPv4
	if pkt[0]>>4 == 6 {
		read = readIPv6
	}
	p, _ := read(pkt) // some are invalid on purpose
	key := runKey{src: p.src, dst: p.dst, fragment: p.fragment}
	if len(p.payload) >= 4 {
		key.name = names[binary.BigEndian.Uint16(p.payload)/2]
		key.ports = fmt.Sprintf("%x", p.payload[:4])
	}
	return key
}
