package wireguard

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/overlay"
)

// overhead returns the bytes that WireGuard takes from the underlay's MTU: the outer IP header, UDP, and 32 bytes for
// its own header and the authentication tag.
func overhead(outer netip.Addr) int {
	if outer.Is4() {
		return 20 + 8 + 32
	}
	return 40 + 8 + 32
}

// advertise derives what to publish. The MTU suits the family of the underlay's first address.
func advertise(pools []netip.Prefix, o options, public wgtypes.Key, u backend.Underlay) (backend.Advertisement, error) {
	outer, err := u.Source()
	if err != nil {
		return backend.Advertisement{}, err
	}
	if u.VRF != 0 {
		return backend.Advertisement{}, fmt.Errorf("interface %s is in a VRF, and WireGuard sends by the main table: "+
			"take the interface out of the VRF, or use the backend vxlan or udp", u.Interface)
	}
	taken := overhead(outer)
	capsule := backend.Encapsulation{Overhead: taken, Name: "WireGuard over " + backend.Family(outer),
		Most: 1<<16 - 1 - taken}
	mtu, because, err := capsule.MTU(u, pools, o.MTU)
	if err != nil {
		return backend.Advertisement{}, err
	}
	published := attributes{PublicKey: public.String(), Port: o.Port, LocalIPs: u.Behind()}
	if len(u.Ports) > 0 {
		port, ok := u.Ports[uint16(o.Port)]
		if !ok {
			return backend.Advertisement{}, fmt.Errorf("underlay.public_ports has no port for %d, on which the host receives",
				o.Port)
		}
		published.PublicPort = int(port)
	}
	attrs, err := json.Marshal(published)
	return backend.Advertisement{MTU: mtu, Overhead: because, Attributes: attrs}, err
}

// peer is a peer's configuration on the device. It is comparable.
type peer struct {
	endpoint  netip.AddrPort
	allowed   string // the allowed IPs as allowedText returns them
	keepalive time.Duration
	psk       wgtypes.Key // zero for none
}

// String leaves out the preshared key, which must not be logged.
func (p peer) String() string {
	text := fmt.Sprintf("endpoint %s allowed ips %s", p.endpoint, p.allowed)
	if !p.endpoint.IsValid() {
		text = "no endpoint allowed ips " + p.allowed
	}
	if p.keepalive != 0 {
		text += " keepalive " + p.keepalive.String()
	}
	return text
}

// allowedText returns prefixes in one form, such as "10.5.2.0/24,fd00:5:0:2::/64".
func allowedText(prefixes []netip.Prefix) string {
	sorted := slices.SortedFunc(slices.Values(prefixes), kernel.CompareAddresses)
	texts := make([]string, len(sorted))
	for i, p := range sorted {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}

// allowedNets is the reverse of allowedText.
func allowedNets(text string) (out []net.IPNet) {
	for part := range strings.SplitSeq(text, ",") {
		if p, err := netip.ParsePrefix(part); err == nil {
			out = append(out, net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())})
		}
	}
	return out
}

// plan is what one State requires of the host, apart from the device itself.
type plan struct {
	peers     map[wgtypes.Key]peer
	sources   map[wgtypes.Key]sources          // where the packets of a peer may come from
	ways      map[wgtypes.Key][]netip.AddrPort // the endpoints of a peer, in the order in which to try them
	nodes     map[wgtypes.Key]string
	subnets   map[wgtypes.Key][]netip.Prefix
	endpoints map[netip.AddrPort]bool // see backend.Report
	skipped   []backend.Skip
	elsewhere backend.Elsewhere
	twin      string // a node that publishes this host's key, "" for none
	state     backend.State
}

// planner holds what is needed to plan a peer.
type planner struct {
	options  options
	psk      wgtypes.Key
	underlay backend.Underlay
	claims   *backend.Claims
	owners   map[wgtypes.Key]string // of each public key

	ipv4, ipv6 bool // whether this host has an address of the family to send from
}

// newPlan turns a state into a plan, for a host with the given public key. Of peers that contradict each other, the
// first in order of precedence is used.
func newPlan(pools []netip.Prefix, o options, public, psk wgtypes.Key, s backend.State) plan {
	p := plan{
		peers:     make(map[wgtypes.Key]peer, len(s.Peers)),
		sources:   make(map[wgtypes.Key]sources, len(s.Peers)),
		ways:      make(map[wgtypes.Key][]netip.AddrPort, len(s.Peers)),
		nodes:     make(map[wgtypes.Key]string, len(s.Peers)),
		subnets:   make(map[wgtypes.Key][]netip.Prefix, len(s.Peers)),
		endpoints: map[netip.AddrPort]bool{},
		elsewhere: backend.NewElsewhere(s.Elsewhere),
		state:     s,
	}
	pl := planner{
		options:  o,
		psk:      psk,
		underlay: s.Underlay,
		claims:   backend.NewClaims(pools, s.Subnets),
		owners:   map[wgtypes.Key]string{public: "this host"},
	}
	_, _, pl.ipv4 = s.Underlay.SourceOf(netip.IPv4Unspecified())
	_, _, pl.ipv6 = s.Underlay.SourceOf(netip.IPv6Unspecified())
	for _, from := range backend.SortedPeers(s.Peers) {
		if p.elsewhere.Awaits(from) {
			continue // without its key, nothing can be received from it
		}
		if key, _, reason := published(from.Attributes); reason == "" && key == public && from.Backend == Name {
			p.twin = from.Node
		}
		if reason := pl.add(p, from); reason != "" {
			p.skipped = append(p.skipped, backend.Skip{Node: from.Node, Reason: reason})
		}
	}
	return p
}

// add plans one peer, or returns why it cannot. The claim comes last, so that a peer that cannot be used takes no
// subnet from another.
func (pl planner) add(p plan, from backend.Peer) (reason string) {
	if from.Backend != Name {
		return fmt.Sprintf("runs backend %q", from.Backend)
	}
	key, attributes, reason := published(from.Attributes)
	if reason != "" {
		return reason
	}
	if owner := pl.owners[key]; owner != "" {
		return fmt.Sprintf("public_key %s is that of %s too: one of them is a copy of the other and needs a new key", key,
			owner)
	}
	ways, near, reason := pl.waysTo(from, attributes)
	if reason != "" {
		return reason
	}
	if reason := pl.claims.Take(from); reason != "" {
		return reason
	}
	pl.owners[key] = "node " + from.Node
	p.nodes[key] = from.Node
	p.subnets[key] = slices.Clone(from.Subnets)
	p.ways[key] = ways
	for _, addr := range from.PublicIPs {
		if e := attributes.public(addr.Unmap()); int(e.Port()) != pl.options.Port {
			p.endpoints[e] = true
		}
	}
	behind := len(pl.underlay.Behind()) > 0
	p.sources[key] = pl.sourcesOf(from, attributes, behind, near)
	peer := peer{
		endpoint:  ways[0],
		allowed:   allowedText(from.Subnets),
		keepalive: time.Duration(pl.options.Keepalive) * time.Second,
		psk:       pl.psk,
	}
	if peer.keepalive == 0 && behind && !near {
		peer.keepalive = natKeepalive
	}
	p.peers[key] = peer
	return ""
}

// natKeepalive is the time between keepalives of a host behind NAT to peers outside. Many NATs forget a path after 30
// seconds.
const natKeepalive = 25 * time.Second

// waysTo returns the endpoints of a peer in the order in which to try them: its public address, the first one of the
// family that this host prefers, or else one of the other family if this host has it too. The device sends over both.
// A peer with the same public address is behind the same NAT and therefore near: its local addresses come first.
func (pl planner) waysTo(from backend.Peer, a attributes) (ways []netip.AddrPort, near bool, reason string) {
	var reasons []string
	for _, own := range pl.underlay.Addrs {
		local, public, ok := pl.underlay.SourceOf(own)
		if !ok {
			continue
		}
		to, ok := from.PublicIP(local)
		switch to = to.Unmap(); {
		case !ok:
			reasons = append(reasons, "no "+backend.Family(local)+" public address")
		case to != public && to == local:
			return nil, false, fmt.Sprintf("its public address %s is this host's own behind NAT", to)
		case to != public:
			return []netip.AddrPort{a.public(to)}, false, ""
		case a.public(to).Port() == pl.ownPort(local, public):
			return nil, false, fmt.Sprintf("its public address %s is this host's, and so is the port %d", to,
				a.public(to).Port())
		default:
			for _, addr := range a.LocalIPs {
				if addr.Is4() == local.Is4() && addr != local {
					ways = append(ways, netip.AddrPortFrom(addr, uint16(a.Port)))
				}
			}
			if local != public {
				ways = append(ways, a.public(to))
			}
			if len(ways) == 0 {
				return nil, false, fmt.Sprintf("its public address %s is this host's, and it has published no other", to)
			}
			return ways, true, ""
		}
	}
	if len(reasons) == 0 {
		return nil, false, "this host has no address to send from"
	}
	return nil, false, strings.Join(reasons, ", ")
}

// ownPort returns this host's port at its public address, behind which it has a local one.
func (pl planner) ownPort(local, public netip.Addr) uint16 {
	port := uint16(pl.options.Port)
	if local == public {
		return port
	}
	return pl.underlay.PublicPort(port)
}

// public returns the endpoint of one of the host's public addresses. Behind a NAT of one family, it may have an address
// of its own in the other.
func (a attributes) public(addr netip.Addr) netip.AddrPort {
	sameFamily := func(local netip.Addr) bool { return local.Is4() == addr.Is4() }
	if len(a.LocalIPs) > 0 && !slices.ContainsFunc(a.LocalIPs, sameFamily) {
		return netip.AddrPortFrom(addr, uint16(a.Port))
	}
	return netip.AddrPortFrom(addr, uint16(a.PublicPort))
}

// sources holds the endpoints from which the packets of a peer may come. WireGuard replies to these endpoints.
type sources struct {
	endpoints []netip.AddrPort
	anyPort   bool // of the same addresses: a NAT on the way chooses the port
	anywhere  bool // a NAT on the way chooses the address, too

	// The families that this host can send over. Once it has lost its IPv6 address, for example, a device that still has
	// an IPv6 endpoint of the peer could not reply.
	ipv4, ipv6 bool
}

// sourcesOf returns the sources of a peer, for a host that is behind NAT or not. A NAT that passes packets from one of
// its hosts to another may give them any address of its own.
func (pl planner) sourcesOf(from backend.Peer, a attributes, behind, near bool) sources {
	s := sources{
		anyPort:  behind || len(a.LocalIPs) > 0 || a.PublicPort != a.Port,
		anywhere: near,
		ipv4:     pl.ipv4,
		ipv6:     pl.ipv6,
	}
	for _, addr := range from.PublicIPs {
		s.endpoints = append(s.endpoints, a.public(addr.Unmap()))
	}
	for _, addr := range a.LocalIPs {
		s.endpoints = append(s.endpoints, netip.AddrPortFrom(addr, uint16(a.Port)))
	}
	return s
}

// has reports whether a packet of the peer may come from an endpoint, and this host can reply to it.
func (s sources) has(e netip.AddrPort) bool {
	if !s.reaches(e.Addr()) {
		return false
	}
	return s.anywhere || slices.ContainsFunc(s.endpoints, func(o netip.AddrPort) bool {
		return e == o || s.anyPort && e.Addr() == o.Addr()
	})
}

// reaches reports whether this host can send to an address.
func (s sources) reaches(a netip.Addr) bool { return a.Is4() && s.ipv4 || a.Is6() && s.ipv6 }

// padding is the number of bytes to a multiple of which WireGuard pads packets (its white paper, 5.4.6).
const padding = 16

// routes returns the network's routes over a device.
func (p plan) routes(pools []netip.Prefix, link int) map[kernel.RouteKey]kernel.Route {
	out := map[kernel.RouteKey]kernel.Route{}
	for _, subnets := range p.subnets {
		overlay.AddPeer(out, link, subnets)
	}
	return overlay.CompleteRoutes(out, pools, p.state, 0, padding)
}

// fill returns the wanted peers that can be added to a device without changing the peers that it has. WireGuard gives
// an allowed IP to only one peer, so adding a peer would take its subnets from the peer that has them.
func fill(want, have map[wgtypes.Key]peer) map[wgtypes.Key]peer {
	taken := map[string]wgtypes.Key{}
	for key, p := range have {
		for prefix := range strings.SplitSeq(p.allowed, ",") {
			taken[prefix] = key
		}
	}
	out := make(map[wgtypes.Key]peer, len(want))
	for key, p := range want {
		free := true
		for prefix := range strings.SplitSeq(p.allowed, ",") {
			owner, is := taken[prefix]
			free = free && (!is || owner == key)
		}
		if free {
			out[key] = p
		}
	}
	return out
}
