package wireguard

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/lenonet/leno/backend"
)

const (
	// pathWindow is the minimum time between two looks at a path: within this time, a device that has packets to send
	// and gets no answer has tried a handshake.
	pathWindow = 6 * time.Second
	// sessionTime is how long a session is valid. A peer with a handshake in that time has been reached.
	sessionTime = 3 * time.Minute
)

// A path is the way that packets take to a peer for which this can change: the peer has several endpoints, or a NAT has
// chosen the port from which its packets come.
type path struct {
	ways   []netip.AddrPort
	at     int       // in ways
	looked time.Time // zero before the first look
	silent time.Time // when sent data first went unanswered; zero if it was answered
	rx, tx int64     // bytes at the last look
	told   bool      // that the peer does not answer, since it last did
}

// look examines the device's counters for the peer. keepalive is the interval of the keepalives to the peer, 0 for
// none. It returns true if the path does not work: data or handshakes were sent in each window for at least
// pathPatience, and nothing came back. Keepalives are never answered.
func (p *path) look(now time.Time, rx, tx int64, keepalive time.Duration) (failed bool) {
	passed := now.Sub(p.looked)
	if p.looked.IsZero() {
		p.looked, p.rx, p.tx = now, rx, tx
		return false
	}
	if passed < pathWindow {
		return false
	}
	quiet := int64(0) // bytes that need no answer
	if keepalive > 0 {
		quiet = keepalives(passed, keepalive)
	}
	sent, heard := tx-p.tx > quiet, rx != p.rx
	p.looked, p.rx, p.tx = now, rx, tx
	p.told = p.told && !heard
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

// paths owns where this host sends each peer's packets: by which of several ways, from which of its own addresses, and
// which endpoints WireGuard has chosen itself. It changes only endpoints on the device.
type paths struct {
	log      hclog.Logger
	followed map[wgtypes.Key]*path // of peers with several ways, or behind NAT
	roaming  roaming
	underlay backend.Underlay // of the last chooseSources
}

// forget forgets what the last device has shown. The underlay stays known.
func (ps *paths) forget() { ps.followed, ps.roaming = nil, nil }

// follow chooses the endpoint of each peer that has several, and changes to the next one if the present one does not
// work. The plan's peers get the endpoint.
func (ps *paths) follow(d device, p plan) error {
	before := ps.followed
	ps.followed = make(map[wgtypes.Key]*path)
	for key, ways := range p.ways {
		if s := p.sources[key]; len(ways) < 2 && !s.anyPort && !s.anywhere {
			continue
		}
		if ps.followed[key] = before[key]; before[key] == nil || !slices.Equal(before[key].ways, ways) {
			ps.followed[key] = &path{ways: ways}
		}
	}
	if len(ps.followed) == 0 {
		return nil
	}
	state, err := d.State()
	if err != nil {
		return err
	}
	var config wgtypes.Config
	now := time.Now()
	for i := range state.Peers {
		have := &state.Peers[i]
		path := ps.followed[have.PublicKey]
		if path == nil {
			continue
		}
		at, earlier := endpointOf(have), before[have.PublicKey]
		next := at
		if i := slices.Index(path.ways, at); i >= 0 {
			path.at = i
		} else if path != earlier && (earlier != nil || now.Sub(have.LastHandshakeTime) > sessionTime) {
			next = path.ways[0] // the peer has other endpoints now, or an earlier process left one that leads nowhere
		}
		if path.look(now, have.ReceiveBytes, have.TransmitBytes, have.PersistentKeepaliveInterval) {
			path.at = (path.at + 1) % len(path.ways)
			if next = path.ways[path.at]; next != at && !path.told {
				ps.log.Info("peer does not answer, trying another endpoint", "node", p.nodes[have.PublicKey], "endpoint", at,
					"next", next)
				path.told = true
			}
		}
		if next != at {
			config.Peers = append(config.Peers, atEndpoint(have.PublicKey, next))
		}
	}
	for key, path := range ps.followed {
		wanted := p.peers[key]
		wanted.endpoint = path.ways[path.at]
		p.peers[key] = wanted
	}
	if len(config.Peers) == 0 {
		return nil
	}
	if err := d.Configure(config); err != nil {
		return fmt.Errorf("change endpoints: %w", err)
	}
	return nil
}

// chooseSources makes a device in this process send from the addresses that the kernel chooses, after the underlay has
// changed. It would otherwise keep sending to each peer from the address at which the peer's last packet arrived, until
// it has heard nothing for 15 seconds. A device of the kernel needs no change.
func (ps *paths) chooseSources(d device, inProcess bool, p plan, u backend.Underlay) error {
	same := ps.isSame(u)
	ps.underlay = u
	if !inProcess || same {
		return nil
	}
	state, err := d.State()
	if err != nil {
		return err
	}
	var config wgtypes.Config
	for i := range state.Peers {
		key, endpoint := state.Peers[i].PublicKey, endpointOf(&state.Peers[i])
		peer, ok := p.peers[key]
		if !ok {
			continue
		}
		if !p.sources[key].has(endpoint) { // otherwise a NAT may have chosen it
			endpoint = peer.endpoint
		}
		config.Peers = append(config.Peers, atEndpoint(key, endpoint))
	}
	return d.Configure(config)
}

// isSame reports whether the underlay is that of the last chooseSources.
func (ps *paths) isSame(u backend.Underlay) bool { return reflect.DeepEqual(ps.underlay, u) }

// atEndpoint sets the endpoint of a peer that the device has.
func atEndpoint(key wgtypes.Key, endpoint netip.AddrPort) wgtypes.PeerConfig {
	return wgtypes.PeerConfig{PublicKey: key, UpdateOnly: true, Endpoint: net.UDPAddrFromAddrPort(endpoint)}
}
