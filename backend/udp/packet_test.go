package udp

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// packet returns a complete IP packet with an experimental protocol number (253, RFC 3692).
func packet(src, dst string, payload int) []byte {
	from, to := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	if from.Is4() {
		pkt := make([]byte, ipv4HeaderLen+payload)
		pkt[0], pkt[8], pkt[9] = 0x45, 64, 253
		binary.BigEndian.PutUint16(pkt[2:], uint16(len(pkt)))
		copy(pkt[12:], from.AsSlice())
		copy(pkt[16:], to.AsSlice())
		return pkt
	}
	pkt := make([]byte, ipv6HeaderLen+payload)
	pkt[0], pkt[6], pkt[7] = 0x60, 253, 64
	binary.BigEndian.PutUint16(pkt[4:], uint16(payload))
	copy(pkt[8:], from.AsSlice())
	copy(pkt[24:], to.AsSlice())
	return pkt
}

func edit(pkt []byte, at int, to byte) []byte {
	pkt[at] = to
	return pkt
}

func TestParsePacket(t *testing.T) {
	ip4 := func() []byte { return packet("10.5.1.2", "10.5.2.3", 8) }
	ip6 := func() []byte { return packet("fd00:5:0:1::2", "fd00:5:0:2::3", 8) }
	tests := []struct {
		name string
		pkt  []byte
		want reason
	}{
		{"IPv4", ip4(), passed},
		{"IPv4 without payload", packet("10.5.1.2", "10.5.2.3", 0), passed},
		{"IPv4 with options", edit(packet("10.5.1.2", "10.5.2.3", 40), 0, 0x4f), passed},
		{"IPv6", ip6(), passed},
		{"IPv6 without payload", packet("fd00:5:0:1::2", "fd00:5:0:2::3", 0), passed},
		{"nothing", nil, truncated},
		{"one byte of IPv4", []byte{0x45}, truncated},
		{"IPv4 header cut", ip4()[:19], truncated},
		{"IPv6 header cut", ip6()[:39], truncated},
		{"IPv4 payload cut", ip4()[:27], badLength},
		{"IPv6 payload cut", ip6()[:47], badLength},
		{"IPv4 stretched", append(ip4(), 0), badLength},
		{"IPv6 stretched", append(ip6(), 0), badLength},
		{"IPv4 header shorter than can be", edit(ip4(), 0, 0x44), badLength},
		{"IPv4 options beyond the end", edit(ip4(), 0, 0x4f), badLength},
		{"IPv6 jumbogram", edit(ip6(), 5, 0), badLength},
		{"version 0", edit(ip4(), 0, 0x05), badVersion},
		{"version 5", edit(ip4(), 0, 0x55), badVersion},
		{"version 15", edit(ip6(), 0, 0xf0), badVersion},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			src, dst, why := parsePacket(tt.pkt)
			if why != tt.want {
				t.Fatalf("got %s, want %s", why, tt.want)
			}
			if why != passed {
				if src.IsValid() || dst.IsValid() {
					t.Errorf("addresses %s, %s of a refused packet", src, dst)
				}
				return
			}
			wantSrc, wantDst := "10.5.1.2", "10.5.2.3"
			if tt.pkt[0]>>4 == 6 {
				wantSrc, wantDst = "fd00:5:0:1::2", "fd00:5:0:2::3"
			}
			if src.String() != wantSrc || dst.String() != wantDst {
				t.Errorf("addresses %s, %s", src, dst)
			}
		})
	}
}

func TestIsGroup(t *testing.T) {
	for addr, want := range map[string]bool{
		"224.0.0.1": true, "239.255.255.255": true, "255.255.255.255": true, "ff02::1": true,
		"10.5.2.255": false, "240.0.0.1": false, "fd00::1": false, "fe80::1": false,
	} {
		if got := isGroup(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %t", addr, got)
		}
	}
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range reasons {
		if r.String() == "" || seen[r.String()] {
			t.Errorf("reason %d is called %q", r, r)
		}
		seen[r.String()] = true
	}
}
