package wireguard

import (
	"maps"
	"net/netip"
	"time"

	wg "golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// pathPatience is how long a path may be without an answer. WireGuard answers data within 10 seconds.
const pathPatience = 15 * time.Second

// keepalives returns how many bytes a device may have sent to a peer in keepalives, which are never answered: one that
// acknowledges the peer's packets, and one for each interval, 0 for none.
func keepalives(passed, interval time.Duration) int64 {
	n := int64(1)
	if interval > 0 {
		n += int64(passed / interval)
	}
	return n * wg.MessageKeepaliveSize
}

// roaming holds what the last look at the device found of each peer. WireGuard itself changes an endpoint to the
// address from which the peer's last packet came. This may be one that the peer has not published, such as its second
// card in the same LAN.
type roaming map[wgtypes.Key]visit

// A visit is what a look at the device found of a peer.
type visit struct {
	at         time.Time
	endpoint   netip.AddrPort
	rx, tx     int64     // bytes
	roamed     bool      // the peer has not published the endpoint, and it was left alone
	unanswered time.Time // when packets to the peer first went unanswered; zero if they were answered
}

// look returns what is found of a peer now. An endpoint that the peer has not published is left alone if packets have
// come since the last look, which prove it. It stays until packets to it, other than keepalives, have gone unanswered
// for pathPatience.
func (r roaming) look(peer *wgtypes.Peer, published bool, at time.Time) visit {
	before, seen := r[peer.PublicKey]
	now := visit{at: at, endpoint: endpointOf(peer), rx: peer.ReceiveBytes, tx: peer.TransmitBytes,
		unanswered: before.unanswered}
	heard := now.rx > before.rx
	sent := now.tx-before.tx > keepalives(at.Sub(before.at), peer.PersistentKeepaliveInterval)
	switch {
	case heard:
		now.unanswered = time.Time{}
	case sent && now.unanswered.IsZero():
		now.unanswered = at
	}
	answers := now.unanswered.IsZero() || at.Sub(now.unanswered) < pathPatience
	stays := before.roamed && before.endpoint == now.endpoint && answers
	now.roamed = seen && !published && (heard || stays)
	return now
}

// withoutRoamed returns the peers whose endpoints WireGuard has not changed. What it has changed was not changed by
// another program, and it is no repair to set it back.
func (r roaming) withoutRoamed(peers map[wgtypes.Key]peer) map[wgtypes.Key]peer {
	out := maps.Clone(peers)
	maps.DeleteFunc(out, func(key wgtypes.Key, _ peer) bool { return r[key].roamed })
	return out
}
