package wireguard

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// TestRoaming checks which endpoints that a peer has not published are left alone, look by look.
func TestRoaming(t *testing.T) {
	const own, second, third = "192.0.2.2:51820", "192.0.2.12:51820", "192.0.2.22:51820"
	var r roaming
	start := time.Now()
	for _, tt := range []struct {
		name     string
		at       int // seconds
		endpoint string
		rx, tx   int64
		roamed   bool
	}{
		{"the first look proves nothing", 0, second, 100, 100, false},
		{"published", 1, own, 200, 200, false},
		{"packets came", 2, second, 300, 300, true},
		{"nothing was sent since", 200, second, 300, 300, true},
		{"more packets came", 201, second, 400, 500, true},
		{"a keepalive needs no answer", 210, second, 400, 532, true},
		{"nor do those that are sent at an interval", 260, second, 400, 596, true},
		{"nor later", 261, second, 400, 596, true},
		{"packets are not answered yet", 300, second, 400, 700, true},
		{"more of them", 314, second, 400, 800, true},
		{"they go unanswered", 315, second, 400, 800, false},
		{"and still do", 316, second, 400, 800, false},
		{"packets come again", 317, second, 500, 800, true},
		{"and are answered", 318, second, 500, 900, true},
		{"set by a program, and no packet came", 319, third, 500, 900, false},
		{"the device counts from zero again", 320, second, 10, 10, false},
	} {
		peer := &wgtypes.Peer{PublicKey: testKey(2), Endpoint: net.UDPAddrFromAddrPort(netip.MustParseAddrPort(tt.endpoint)),
			ReceiveBytes: tt.rx, TransmitBytes: tt.tx, PersistentKeepaliveInterval: 25 * time.Second}
		now := r.look(peer, tt.endpoint == own, start.Add(time.Duration(tt.at)*time.Second))
		if now.roamed != tt.roamed {
			t.Errorf("%s: roamed %t", tt.name, now.roamed)
		}
		r = roaming{peer.PublicKey: now}
	}
}
