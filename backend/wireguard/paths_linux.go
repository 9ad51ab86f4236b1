package wireguard

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const (
	// pathWindow is the least time between two looks at a path: within it, a device that wants to send has tried a
	// handshake.
	pathWindow = 6 * time.Second
	// pathPatience is how long a path may be without an answer. WireGuard answers each packet within 10 seconds.
	pathPatience = 15 * time.Second
)

// A path is how packets go to a peer for which that can change: it has several endpoints, or a NAT has chosen the port
// from which its packets come.
type path struct {
	ways   []netip.AddrPort
	at     int       // in ways
	looked time.Time // zero before the first look
	silent time.Time // since when what was sent has not been answered, zero if it has
	rx, tx int64     // bytes at the last look
}

// look examines what the device has counted for the peer. It returns true if the path does not work: something was sent
// in each window for at least pathPatience, and nothing came back.
func (p *path) look(now time.Time, rx, tx int64) (failed bool) {
	if !p.looked.IsZero() && now.Sub(p.looked) < pathWindow {
		return false
	}
	sent, heard := tx > p.tx, rx != p.rx
	p.looked, p.rx, p.tx = now, rx, tx
	switch {
	case heard || !sent:
		p.silent = time.Time{}
	case p.silent.IsZero():
		p.silent = now
	case now.Sub(p.silent) >= pathPatience:
		p.silent = time.Time{}
		return true
	}
	return false
}

// follow chooses the way to each peer that has several, and changes to the next one where the present one does not work.
func (b *Backend) follow(p plan) error {
	paths := make(map[wgtypes.Key]*path)
	for key, ways := range p.ways {
		if len(ways) < 2 && !p.sources[key].anyPort && !p.sources[key].anywhere {
			continue
		}
		known := b.paths[key]
		if known == nil || !slices.Equal(known.ways, ways) {
			known = &path{ways: ways}
		}
		paths[key] = known
	}
	b.paths = paths
	if len(paths) == 0 {
		return nil
	}
	state, err := b.device.State()
	if err != nil {
		return err
	}
	var config wgtypes.Config
	now := time.Now()
	for i := range state.Peers {
		have := &state.Peers[i]
		path, node := paths[have.PublicKey], p.nodes[have.PublicKey]
		if path == nil {
			continue
		}
		at := endpointOf(have)
		if path.looked.IsZero() && !have.LastHandshakeTime.IsZero() {
			path.at = max(slices.Index(path.ways, at), 0) // an earlier process has found it
		}
		if !path.look(now, have.ReceiveBytes, have.TransmitBytes) {
			continue
		}
		path.at = (path.at + 1) % len(path.ways)
		if next := path.ways[path.at]; next != at {
			b.config.Logger.Info("peer does not answer, trying another endpoint", "node", node, "endpoint", at, "next", next)
			config.Peers = append(config.Peers, wgtypes.PeerConfig{PublicKey: have.PublicKey, UpdateOnly: true, Endpoint: net.UDPAddrFromAddrPort(next)})
		}
	}
	for key, path := range paths {
		wanted := p.peers[key]
		wanted.endpoint = path.ways[path.at]
		p.peers[key] = wanted
	}
	if len(config.Peers) == 0 {
		return nil
	}
	if err := b.device.Configure(config); err != nil {
		return fmt.Errorf("change endpoints: %w", err)
	}
	return nil
}
