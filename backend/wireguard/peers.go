package wireguard

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/lenonet/leno/backend/reconcile"
)

// device is a WireGuard device, of the kernel or in this process. Both behave alike.
type device interface {
	// State returns the device's configuration and counters. It may be called concurrently.
	State() (*wgtypes.Device, error)

	// Configure changes what the configuration mentions, in order. It continues to receive on the old port if the new one
	// cannot be used, and the error then wraps EADDRINUSE.
	Configure(wgtypes.Config) error
}

// peerTable is the table of a device's peers.
type peerTable struct {
	device device

	// sources holds, for each wanted peer, the endpoints that count as the wanted one: WireGuard replies to the
	// endpoint from which the peer's packets come.
	sources map[wgtypes.Key]sources
	want    map[wgtypes.Key]peer
	roaming roaming // of the last List, maybe by another table of the device

	// What the last List found; nil before it.
	state *wgtypes.Device
	have  map[wgtypes.Key]peer
}

var _ reconcile.Table[wgtypes.Key, peer] = (*peerTable)(nil)

// List implements reconcile.Table.
func (t *peerTable) List(context.Context) (map[wgtypes.Key]peer, error) {
	state, err := t.device.State()
	if err != nil {
		return nil, err
	}
	t.state = state
	now := time.Now()
	out, visits := make(map[wgtypes.Key]peer, len(state.Peers)), make(roaming, len(state.Peers))
	for i := range state.Peers {
		key, p := fromDevice(&state.Peers[i])
		published := t.sources[key].has(p.endpoint)
		visits[key] = t.roaming.look(&state.Peers[i], published, now)
		if published || visits[key].roamed && t.sources[key].reaches(p.endpoint.Addr()) {
			p.endpoint = t.want[key].endpoint
		}
		out[key] = p
	}
	t.have, t.roaming = out, visits
	return out, nil
}

// endpointOf returns where the device sends a peer's packets, the zero AddrPort for nowhere.
func endpointOf(p *wgtypes.Peer) netip.AddrPort {
	if p.Endpoint == nil {
		return netip.AddrPort{}
	}
	addr, _ := netip.AddrFromSlice(p.Endpoint.IP)
	return netip.AddrPortFrom(addr.Unmap(), uint16(p.Endpoint.Port))
}

func fromDevice(p *wgtypes.Peer) (wgtypes.Key, peer) {
	out := peer{keepalive: p.PersistentKeepaliveInterval, psk: p.PresharedKey, endpoint: endpointOf(p)}
	allowed := make([]netip.Prefix, 0, len(p.AllowedIPs))
	for _, n := range p.AllowedIPs {
		addr, _ := netip.AddrFromSlice(n.IP)
		bits, _ := n.Mask.Size()
		allowed = append(allowed, netip.PrefixFrom(addr.Unmap(), bits))
	}
	out.allowed = allowedText(allowed)
	return p.PublicKey, out
}

// Write implements reconcile.Table. All changes are one configuration, so an error may concern any of them.
func (t *peerTable) Write(_ context.Context, changes []reconcile.Change[wgtypes.Key, peer]) []error {
	config := wgtypes.Config{Peers: make([]wgtypes.PeerConfig, 0, len(changes))}
	for _, c := range changes {
		if c.New == nil {
			config.Peers = append(config.Peers, wgtypes.PeerConfig{PublicKey: c.Key, Remove: true})
			continue
		}
		p := c.New.config(c.Key)
		if c.Old != nil && c.Old.endpoint == c.New.endpoint {
			p.Endpoint = nil // the device's may be the one that a NAT has chosen, see List, and the wanted one may lead nowhere
		}
		config.Peers = append(config.Peers, p)
	}
	err := t.device.Configure(config)
	if err == nil {
		return nil
	}
	errs := make([]error, len(changes))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func (p peer) config(key wgtypes.Key) wgtypes.PeerConfig {
	return wgtypes.PeerConfig{
		PublicKey:                   key,
		PresharedKey:                &p.psk,
		Endpoint:                    net.UDPAddrFromAddrPort(p.endpoint),
		PersistentKeepaliveInterval: &p.keepalive,
		ReplaceAllowedIPs:           true,
		AllowedIPs:                  allowedNets(p.allowed),
	}
}

// shownPeers is the number of peers that a note names.
const shownPeers = 3

// unproven returns the peers with which, at the last List, there had been no handshake since the device was opened or
// the peer got its key. The device counts a handshake when it has received the peer's answer, or its first packet.
func (t *peerTable) unproven(peers map[wgtypes.Key]peer) map[wgtypes.Key]peer {
	out := maps.Clone(peers)
	if t.state == nil {
		return out
	}
	for i := range t.state.Peers {
		if !t.state.Peers[i].LastHandshakeTime.IsZero() {
			delete(out, t.state.Peers[i].PublicKey)
		}
	}
	return out
}

// silent returns a note for users about the peers with which there was no handshake, or "" if there are none.
func silent(names []string) string {
	if len(names) == 0 {
		return ""
	}
	text := "no handshake so far with " + strings.Join(names[:min(len(names), shownPeers)], ", ")
	if more := len(names) - shownPeers; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// peers owns what is known of the device's peers beyond the device: which were wanted before, and with which there has
// been no handshake. It starts handshakes, and changes no peer otherwise.
type peers struct {
	last    map[wgtypes.Key]peer // that the device has had, to tell repairs from changes; nil if unknown
	greeted time.Time            // when the device last started without sessions
	retried time.Time            // when idle last returned all unproven peers
	silent  string               // which peers have not had a handshake, for users; "" for none
}

// judge returns the sorted nodes of the unproven peers. It records those that have had enough time to answer, for a
// note to users.
func (ps *peers) judge(unproven map[wgtypes.Key]peer, p plan, have map[wgtypes.Key]peer) (nodes []string) {
	var late []string
	for key := range unproven {
		nodes = append(nodes, p.nodes[key])
		if _, had := have[key]; had && time.Since(ps.greeted) > greetTime {
			late = append(late, p.nodes[key])
		}
	}
	slices.Sort(nodes)
	ps.silent = silent(late)
	return nodes
}

// greet starts the handshakes that no traffic starts: with all wanted peers if the device has just started without
// sessions, and otherwise with those of the unproven ones that are due.
func (ps *peers) greet(d device, fresh bool, wanted, unproven map[wgtypes.Key]peer, p plan,
	have map[wgtypes.Key]peer) error {
	if !fresh {
		return greet(d, ps.due(p, have, unproven))
	}
	ps.greeted = time.Now()
	return greet(d, wanted)
}

// due returns the unproven peers with which this host must start a handshake. Each peer needs one when it is added: it
// may have started a handshake before this host knew it, and would wait 5 seconds before the next attempt. Peers whose
// routes belong to another backend need one every retryTime, because no traffic starts it.
func (ps *peers) due(p plan, have, unproven map[wgtypes.Key]peer) map[wgtypes.Key]peer {
	again := time.Since(ps.retried) >= retryTime
	due := map[wgtypes.Key]peer{}
	for key, peer := range unproven {
		_, had := have[key]
		if !had || again && p.elsewhere.HasAny(p.subnets[key]) {
			due[key] = peer
		}
	}
	if again {
		ps.retried = time.Now()
	}
	return due
}

// greetTime is how long peers may take to answer the handshakes that a device starts when it is opened. The device
// repeats a handshake after 5 seconds.
const greetTime = 10 * time.Second

// retryTime is the time between two handshakes with a peer that does not answer. WireGuard itself uses the same
// interval, but gives up after 90 seconds.
const retryTime = 5 * time.Second

// compareKeys orders peers by key.
func compareKeys(a, b wgtypes.Key) int { return slices.Compare(a[:], b[:]) }

// briefKeepalive is an interval of keepalives that is set only to make the device send one.
const briefKeepalive = time.Second

// greet starts a handshake with each peer. A device without sessions needs this: its peers may have a session with the
// device of an earlier process, and continue to send in it for up to 15 seconds. When keepalives are enabled for a
// peer, the device sends one at once, and starts a handshake to do so.
func greet(d device, peers map[wgtypes.Key]peer) error {
	var on, off wgtypes.Config
	for key, p := range peers {
		if p.keepalive != 0 {
			continue // the device greeted the peer when it was added
		}
		brief := briefKeepalive
		on.Peers = append(on.Peers, wgtypes.PeerConfig{PublicKey: key, UpdateOnly: true, PersistentKeepaliveInterval: &brief})
		off.Peers = append(off.Peers, wgtypes.PeerConfig{PublicKey: key, UpdateOnly: true,
			PersistentKeepaliveInterval: &p.keepalive})
	}
	if len(on.Peers) == 0 {
		return nil
	}
	return cmp.Or(d.Configure(on), d.Configure(off))
}
