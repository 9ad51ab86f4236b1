package wireguard

import (
	"maps"
	"net/netip"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// roaming holds what the last look at the device found of each peer. WireGuard itself changes an endpoint to the address
// from which the peer's last packet came. This may be one that the peer has not published, such as its second card in
// the same LAN.
type roaming map[wgtypes.Key]visit

// A visit is what a look at the device found of a peer.
type visit struct {
	endpoint netip.AddrPort
	rx, tx   int64 // bytes
	roamed   bool  // the peer has not published the endpoint, and it was left alone
}

// look returns what is found of a peer now. An endpoint that the peer has not published is left alone if packets have
// come since the last look, which prove it. It stays until packets to it go unanswered.
func (r roaming) look(peer *wgtypes.Peer, published bool) visit {
	before, seen := r[peer.PublicKey]
	now := visit{endpoint: endpointOf(peer), rx: peer.ReceiveBytes, tx: peer.TransmitBytes}
	heard, sent := now.rx > before.rx, now.tx > before.tx
	stays := before.roamed && before.endpoint == now.endpoint && !sent
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
