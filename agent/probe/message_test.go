package probe

import (
	"net/netip"
	"testing"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

var (
	peer4, peer6 = netip.MustParseAddr("10.5.2.0"), netip.MustParseAddr("fd00:5:0:2::")
	ours         = cookie{1, 2, 3, 4, 5, 6, 7, 8}
)

// packet adds an IPv4 or IPv6 header to the body, with only the fields that are read.
func packet(to netip.Addr, protocol byte, body []byte) []byte {
	if to.Is4() {
		h := make([]byte, header4)
		h[0], h[9] = 4<<4|header4/4, protocol
		copy(h[16:], to.AsSlice())
		return append(h, body...)
	}
	h := make([]byte, header6)
	h[0], h[6] = 6<<4, protocol
	copy(h[24:], to.AsSlice())
	return append(h, body...)
}

func mustMarshal(t testing.TB, m icmp.Message) []byte {
	t.Helper()
	b, err := m.Marshal(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestMarshal(t *testing.T) {
	for _, tt := range []struct {
		to     netip.Addr
		size   int
		header int
	}{{peer4, 64, header4}, {peer4, 1500, header4}, {peer6, 64, header6}, {peer6, 1500, header6}} {
		b, err := marshal(tt.to, 7, 9, tt.size, ours)
		if err != nil || len(b)+tt.header != tt.size {
			t.Errorf("%s: %d bytes for a packet of %d, %v", tt.to, len(b)+tt.header, tt.size, err)
		}
	}
}

func TestParse(t *testing.T) {
	request4, err := marshal(peer4, 7, 9, 64, ours)
	if err != nil {
		t.Fatal(err)
	}
	request6, err := marshal(peer6, 7, 9, 64, ours)
	if err != nil {
		t.Fatal(err)
	}
	echo := &icmp.Echo{ID: 7, Seq: 9, Data: ours[:]}
	quote4, quote6 := packet(peer4, 1, request4[:8]), packet(peer6, 58, request6)
	tunnel4 := packet(peer4, 17, []byte{0x12, 0x34, 0x21, 0x18, 0, 40, 0, 0}) // to port 8472
	here := netip.MustParseAddr("192.0.2.1")
	four := func(kind icmp.Type, code int, body icmp.MessageBody) []byte {
		return packet(here, 1, mustMarshal(t, icmp.Message{Type: kind, Code: code, Body: body}))
	}
	six := func(kind icmp.Type, code int, body icmp.MessageBody) []byte {
		return mustMarshal(t, icmp.Message{Type: kind, Code: code, Body: body})
	}
	narrow := four(ipv4.ICMPTypeDestinationUnreachable, 4, &icmp.DstUnreach{Data: quote4})
	narrow[header4+6], narrow[header4+7] = 0x05, 0x78
	asked := func(m message) message {
		m.echo, m.id, m.seq = true, 7, 9
		return m
	}
	for _, tt := range []struct {
		name  string
		bytes []byte
		v6    bool
		want  message // the zero value if nothing is of use
	}{
		{"reply", four(ipv4.ICMPTypeEchoReply, 0, echo), false, asked(message{reply: true, cookie: ours})},
		{"reply, IPv6", six(ipv6.ICMPTypeEchoReply, 0, echo), true, asked(message{reply: true, cookie: ours})},
		{"fragmentation needed", narrow, false, asked(message{reason: fragmentationNeeded, mtu: 1400, to: peer4})},
		{"too big, IPv6", six(ipv6.ICMPTypePacketTooBig, 0, &icmp.PacketTooBig{MTU: 1400, Data: quote6}), true, asked(message{reason: fragmentationNeeded, mtu: 1400, to: peer6})},
		{"host unreachable", four(ipv4.ICMPTypeDestinationUnreachable, 1, &icmp.DstUnreach{Data: quote4}), false, asked(message{reason: "host unreachable", to: peer4})},
		{"no such code", four(ipv4.ICMPTypeDestinationUnreachable, 77, &icmp.DstUnreach{Data: quote4}), false, asked(message{reason: "destination unreachable, code 77", to: peer4})},
		{"no route, IPv6", six(ipv6.ICMPTypeDestinationUnreachable, 0, &icmp.DstUnreach{Data: quote6}), true, asked(message{reason: "no route", to: peer6})},
		{"time exceeded", four(ipv4.ICMPTypeTimeExceeded, 0, &icmp.TimeExceeded{Data: quote4}), false, asked(message{reason: timeExceeded, to: peer4})},
		{"time exceeded, IPv6", six(ipv6.ICMPTypeTimeExceeded, 0, &icmp.TimeExceeded{Data: quote6}), true, asked(message{reason: timeExceeded, to: peer6})},
		{"about the tunnel", four(ipv4.ICMPTypeDestinationUnreachable, 3, &icmp.DstUnreach{Data: tunnel4}), false, message{reason: portUnreachable, to: peer4, port: 8472}},

		{"a request", four(ipv4.ICMPTypeEcho, 0, echo), false, message{}},
		{"about something else", four(ipv4.ICMPTypeDestinationUnreachable, 3, &icmp.DstUnreach{Data: packet(peer4, 6, make([]byte, 20))}), false, message{}},
		{"about a reply of ours", four(ipv4.ICMPTypeDestinationUnreachable, 1, &icmp.DstUnreach{Data: packet(peer4, 1, make([]byte, 8))}), false, message{}},
		{"a reply without a cookie", four(ipv4.ICMPTypeEchoReply, 0, &icmp.Echo{ID: 7, Seq: 9, Data: ours[:7]}), false, message{}},
		{"a quote cut short", four(ipv4.ICMPTypeDestinationUnreachable, 1, &icmp.DstUnreach{Data: quote4[:24]}), false, message{}},
		{"nothing", nil, false, message{}},
		{"nothing, IPv6", nil, true, message{}},
		{"no IPv4", []byte{0x60, 1, 2}, false, message{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parse := parse4
			if tt.v6 {
				parse = parse6
			}
			got, ok := parse(tt.bytes)
			if ok != (tt.want != message{}) || ok && got != tt.want {
				t.Errorf("%+v, %v, want %+v", got, ok, tt.want)
			}
		})
	}
}

// FuzzParse parses arbitrary packets: any host that can send to this one can send these.
func FuzzParse(f *testing.F) {
	request, err := marshal(peer4, 7, 9, 64, ours)
	if err != nil {
		f.Fatal(err)
	}
	quoted := mustMarshal(f, icmp.Message{Type: ipv4.ICMPTypeDestinationUnreachable, Code: 4, Body: &icmp.DstUnreach{Data: packet(peer4, 1, request)}})
	f.Add(packet(peer4, 1, quoted))
	f.Add(packet(peer4, 1, request))
	f.Add(mustMarshal(f, icmp.Message{Type: ipv6.ICMPTypePacketTooBig, Body: &icmp.PacketTooBig{MTU: 1280, Data: packet(peer6, 58, request)}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, parse := range []func([]byte) (message, bool){parse4, parse6} {
			m, ok := parse(b)
			if ok && (m.mtu < 0 || m.mtu > 1<<16 || m.seq < 0 || m.seq >= 1<<16 || m.reply && m.to.IsValid()) {
				t.Errorf("%x is %+v", b, m)
			}
		}
	})
}
