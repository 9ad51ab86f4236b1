package wireguard

import (
	"maps"
	"net/netip"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const (
	// pathPatience is how long a path may be without an answer. WireGuard answers data within 10 seconds.
	pathPatience = 15 * time.Second
	// keepaliveSize is the size of a keepalive: a data message without a packet.
	keepaliveSize = 32
)

// roaming holds what the last look at the device found of each peer. WireGuard itself changes an endpoint to the address
// from which the peer's last packet came. This may be one that the peer has not published, such as its second card in
// the same LAN.
type roaming map[wgtypes.Key]visit

// A visit is what a look at the device found of a peer.
type visit struct {
	endpoint   netip.AddrPort
	rx, tx     int64     // bytes
	roamed     bool      // the peer has not published the endpoint, and it was left alone
	unanswered time.Time // when packets to the peer were first seen of which none is answered yet, zero for no such packets
}

// look returns what is found of a peer now. An endpoint that the peer has not published is left alone if packets have
// come since the last look, which prove it. It stays until packets to it have gone unanswered for pathPatience. Nothing
// answers a keepalive.
func (r roaming) look(peer *wgtypes.Peer, published bool, at time.Time) visit {
	before, seen := r[peer.PublicKey]
	now := visit{endpoint: endpointOf(peer), rx: peer.ReceiveBytes, tx: peer.TransmitBytes, unanswered: before.unanswered}
	heard := now.rx > before.rx
	switch {
	case heard:
		now.unanswered = time.Time{}
	case now.tx-before.tx > keepaliveSize && now.unanswered.IsZero():
		now.unanswered = at
	}
	answers := now.unanswered.IsZero() || at.Sub(now.unanswered) < pathPatience
	stays := before.roamed && before.endpoint == now.endpoint && answers
	now.roamed = seen && !published && (heard || stays)
	return now
}

// withoutRoamed returns the peers whose endpoints WireGuard has not changed. What it has changed was not changed by another
// program, and it is no repair to set it back.
func (r roaming) withoutRoamed(peers map[wgtypes.Key]peer) map[wgtypes.Key]peer {
	out := maps.Clone(peers)
	maps.DeleteFunc(out, func(key wgtypes.Key, _ peer) bool { return r[key].roamed })
	return out
}
