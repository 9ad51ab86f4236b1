package wireguard

import (
	"net"
	"net/netip"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// TestRoaming checks which endpoints that a peer has not published are left alone, look by look.
func TestRoaming(t *testing.T) {
	const own, second, third = "192.0.2.2:51820", "192.0.2.12:51820", "192.0.2.22:51820"
	var r roaming
	for _, tt := range []struct {
		name     string
		endpoint string
		rx, tx   int64
		roamed   bool
	}{
		{"the first look proves nothing", second, 100, 100, false},
		{"published", own, 200, 200, false},
		{"packets came", second, 300, 300, true},
		{"nothing was sent since", second, 300, 300, true},
		{"more packets came", second, 400, 500, true},
		{"packets go unanswered", second, 400, 600, false},
		{"and still do", second, 400, 600, false},
		{"set by a program, and no packet came", third, 400, 600, false},
		{"packets come again", second, 500, 700, true},
		{"another one without a packet", third, 500, 700, false},
		{"the device counts from zero again", second, 10, 10, false},
	} {
		peer := &wgtypes.Peer{PublicKey: testKey(2), Endpoint: net.UDPAddrFromAddrPort(netip.MustParseAddrPort(tt.endpoint)),
			ReceiveBytes: tt.rx, TransmitBytes: tt.tx}
		now := r.look(peer, tt.endpoint == own)
		if now.roamed != tt.roamed {
			t.Errorf("%s: roamed %t", tt.name, now.roamed)
		}
		r = roaming{peer.PublicKey: now}
	}
}
