package vxlan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/overlay"
)

// overhead returns the bytes that the encapsulation takes from the underlay's MTU: the outer IP
// header, UDP, VXLAN and the inner Ethernet header.
func overhead(outer netip.Addr) int {
	if outer.Is4() {
		return 20 + 8 + 8 + 14
	}
	return 40 + 8 + 8 + 14
}

// device describes one of the network's VXLAN devices. The zero device is none.
type device struct {
	vni, port int
	gbp       bool
	other     string // any other setting that needs another device; "" in the wanted one
	vrf       int    // ifindex of the VRF that its socket is bound to, 0 for none
	local     netip.Addr

	// Changeable in place.
	parent   int // ifindex of the underlay
	learning bool
	ttl, tos int // of the packets between hosts; 0 is the host's default
	mac      kernel.MAC
	mtu      int
}

// wantDevice returns the device for a state that is not zero.
func wantDevice(mac kernel.MAC, o options, s backend.State) (device, error) {
	local, err := s.Underlay.Source()
	if err != nil {
		return device{}, err
	}
	d := device{
		vni: o.VNI, port: o.Port, gbp: o.GBP, vrf: s.Underlay.VRF, local: local,
		parent: s.Underlay.Index, mac: mac, mtu: s.MTU,
	}
	// A larger MTU fails with EINVAL over IPv4 and is silently reduced over IPv6.
	if most := s.Underlay.MTU - overhead(d.local); d.mtu == 0 || d.mtu > most {
		d.mtu = most
	}
	return d, nil
}

// otherFamily returns the zero address of the family that a is not of.
func otherFamily(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// wantSecond returns the device for peers that receive over another address family than the first
// device sends over. ok is false if no peer does, if this host has no address of that family, or if
// the underlay's MTU is too small for IPv6 in IPv6.
func wantSecond(first device, mac kernel.MAC, s backend.State) (d device, ok bool) {
	other := otherFamily(first.local)
	local, _, ok := s.Underlay.SourceOf(other)
	if !ok || !slices.ContainsFunc(s.Peers, func(p backend.Peer) bool { return receivesOver(p, other) }) {
		return device{}, false
	}
	d = first
	d.local, d.mac, d.mtu = local, mac, min(d.mtu, s.Underlay.MTU-overhead(local))
	return d, d.mtu >= backend.MinMTU(local)
}

// receivesOver reports whether a peer receives the packets of a's family over that family because
// it runs flannel. All peers are asked on every Apply, and hardly any has the attribute.
func receivesOver(p backend.Peer, a netip.Addr) bool {
	if p.Backend != Name || !bytes.Contains(p.Attributes, []byte("own_family")) {
		return false
	}
	_, reachable := p.PublicIP(a)
	has := slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool { return s.Addr().Is4() == a.Is4() })
	var published attributes
	return reachable && has && json.Unmarshal(p.Attributes, &published) == nil && published.OwnFamily
}

// needsNew returns why the device cannot be changed into the wanted one, or "" if it can.
func (d device) needsNew(want device) string {
	switch {
	case d.vni != want.vni:
		return "vni"
	case d.port != want.port:
		return "port"
	case d.gbp != want.gbp:
		return "gbp"
	case d.other != want.other:
		return d.other
	case d.vrf != want.vrf:
		return "VRF"
	case !d.local.IsValid() || d.local.Is4() != want.local.Is4():
		return "address family"
	}
	return ""
}

// made reports whether a device under another name was made by leno as the wanted one. The alias
// alone is no proof, because any program can copy it. But no two devices of one family have the
// same VNI and port, and no other host or network has our MAC address.
func (d device) made(want device) bool {
	return d.vni == want.vni && d.port == want.port && (d.needsNew(want) == "" || d.mac == want.mac)
}

// excludes reports whether the kernel refuses the wanted device as long as this one exists. A device without a local
// address counts as one of IPv4.
func (d device) excludes(want device) bool {
	return d.vni == want.vni && d.port == want.port && d.local.Is6() == want.local.Is6()
}

// otherUnderlay describes how the device's underlay, or how it is used, differs from the wanted one's, "" if it does
// not.
func (d device) otherUnderlay(want device) string {
	var parts []string
	if d.parent != want.parent {
		parts = append(parts, fmt.Sprintf("interface %d instead of %d", d.parent, want.parent))
	}
	if d.local != want.local {
		parts = append(parts, fmt.Sprintf("address %s instead of %s", d.local, want.local))
	}
	if d.learning {
		parts = append(parts, "learning was on")
	}
	if d.ttl != want.ttl {
		parts = append(parts, fmt.Sprintf("TTL was %d", d.ttl))
	}
	if d.tos != want.tos {
		parts = append(parts, fmt.Sprintf("TOS was %#x", d.tos))
	}
	return strings.Join(parts, ", ")
}

// plan holds what the kernel should contain besides the devices.
type plan struct {
	devices [2]overlay.Entries // of the first device and of the second
	routes  map[kernel.RouteKey]kernel.Route
	direct  []netip.Prefix // see backend.Report
	skipped []backend.Skip
	peers   int
}

func newEntries(t tunnel, pools, peers int) overlay.Entries {
	return overlay.Entries{
		Link:       t.link,
		Bare:       t.bare,
		Addresses:  map[netip.Prefix]kernel.Address{},
		FDB:        make(map[kernel.FDBKey]kernel.FDB, peers),
		Neighbours: make(map[kernel.NeighbourKey]kernel.MAC, pools*peers),
	}
}

// tunnel is a device that stands. The zero tunnel is none.
type tunnel struct {
	device
	link int  // ifindex
	bare bool // see overlay.Entries
}

// planner holds what is needed to plan a peer.
type planner struct {
	options options
	ends    [2]end // of the first device and of the second
	parent  int    // ifindex of the underlay
	direct  map[netip.Addr]bool
	claims  *backend.Claims
}

// end is a device as other hosts see it. The end of no device has no address.
type end struct {
	local  netip.Addr
	public netip.Addr            // what peers send to; equals local unless behind NAT
	link   int                   // ifindex of the device
	macs   map[kernel.MAC]string // the owner of each address
}

// newPlan derives the tables from a state. The second tunnel is zero where no peer needs it. direct
// marks the public addresses that are neighbours on the underlay; it is empty without direct
// routing.
func newPlan(pools []netip.Prefix, o options, tunnels [2]tunnel, s backend.State, direct map[netip.Addr]bool) plan {
	p := plan{
		devices: [2]overlay.Entries{newEntries(tunnels[0], len(pools), len(s.Peers)), newEntries(tunnels[1], 0, 0)},
		routes:  make(map[kernel.RouteKey]kernel.Route, len(pools)*len(s.Peers)),
	}
	pl := planner{options: o, parent: s.Underlay.Index, direct: direct, claims: backend.NewClaims(pools, s.Subnets)}
	for i, t := range tunnels {
		if t.link == 0 {
			continue
		}
		_, public, _ := s.Underlay.SourceOf(t.local)
		pl.ends[i] = end{t.local, public, t.link, map[kernel.MAC]string{t.mac: "this host"}}
		p.devices[i].Addresses = overlay.HostAddresses(s.Subnets)
	}
	// The second device is the source of this host's own packets only in its family.
	maps.DeleteFunc(p.devices[1].Addresses, func(a netip.Prefix, _ kernel.Address) bool {
		return a.Addr().Is4() != tunnels[1].local.Is4()
	})
	elsewhere := backend.NewElsewhere(s.Elsewhere)
	for _, peer := range backend.SortedPeers(s.Peers) {
		if elsewhere.Awaits(peer) {
			continue // its packets are received without them
		}
		if reason := pl.add(p, peer); reason != "" {
			p.skipped = append(p.skipped, backend.Skip{Node: peer.Node, Reason: reason})
			continue
		}
		p.peers++
	}
	for key, route := range p.routes {
		if route.Link == pl.parent {
			p.direct = append(p.direct, key.Dst)
		}
	}
	p.routes = overlay.CompleteRoutes(p.routes, pools, s, o.MTU, 1)
	return p
}

// way is how packets to one subnet of a peer leave.
type way struct {
	subnet netip.Prefix
	device int // index into planner.ends
	remote netip.Addr
	mac    kernel.MAC
}

// add plans one peer, or returns why it cannot. Of a leno host it plans all subnets or none. Of a
// host that runs flannel, which has a device for each family, it plans those that can be reached,
// and returns why the others cannot.
func (pl planner) add(p plan, peer backend.Peer) (reason string) {
	if peer.Backend != Name {
		return fmt.Sprintf("runs backend %q", peer.Backend)
	}
	ways, reason := pl.ways(peer)
	if len(ways) == 0 && reason != "" {
		return reason
	}
	if reason := pl.claims.Take(peer); reason != "" {
		return reason
	}
	for _, w := range ways {
		pl.ends[w.device].macs[w.mac] = "node " + peer.Node
		key := kernel.RouteKey{Dst: w.subnet}
		// The gateway of a plain route is of the route's own family.
		if via, ok := peer.PublicIP(w.subnet.Addr()); ok && pl.direct[via] {
			p.routes[key] = kernel.Route{Link: pl.parent, Via: via}
			continue
		}
		t := p.devices[w.device]
		t.FDB[kernel.FDBKey{MAC: w.mac}] = kernel.FDB{Dst: w.remote}
		t.Neighbours[kernel.NeighbourKey{Addr: w.subnet.Addr()}] = w.mac
		p.routes[key] = kernel.Route{Link: pl.ends[w.device].link, Via: w.subnet.Addr(), Onlink: true}
	}
	return reason
}

// ways returns how packets to each subnet of a peer leave, and why those to the others cannot.
func (pl planner) ways(peer backend.Peer) (ways []way, reason string) {
	a, reason := pl.published(peer)
	if reason != "" {
		return nil, reason
	}
	if !a.OwnFamily {
		return pl.waysOver(peer, a)
	}
	var reasons []string
	for _, subnet := range peer.Subnets {
		w, reason := pl.wayOfFamily(peer, a, subnet)
		if reason != "" {
			reasons = append(reasons, reason)
			continue
		}
		ways = append(ways, w)
	}
	return ways, strings.Join(reasons, "; ")
}

// waysOver returns the ways to a leno host: all through the first device.
func (pl planner) waysOver(peer backend.Peer, a attributes) (ways []way, reason string) {
	mac, reason := pl.vtep("vtep_mac", a.MAC, 0)
	if reason != "" {
		return nil, reason
	}
	remote, reason := peer.Outer(pl.ends[0].local)
	if reason == "" {
		reason = pl.ends[0].refuses(remote)
	}
	if reason != "" {
		return nil, reason
	}
	for _, subnet := range peer.Subnets {
		ways = append(ways, way{subnet, 0, remote, mac})
	}
	return ways, ""
}

// wayOfFamily returns the way to one subnet of a host that runs flannel: through the device that
// sends over the subnet's family.
func (pl planner) wayOfFamily(peer backend.Peer, a attributes, subnet netip.Prefix) (way, string) {
	family := backend.Family(subnet.Addr())
	option, text := "vtep_mac", a.MAC
	if subnet.Addr().Is6() && a.MACv6 != "" {
		option, text = "vtep_mac_v6", a.MACv6
	}
	i := slices.IndexFunc(pl.ends[:], func(e end) bool {
		return e.local.IsValid() && e.local.Is4() == subnet.Addr().Is4()
	})
	remote, ok := peer.PublicIP(subnet.Addr())
	switch {
	case !ok:
		return way{}, fmt.Sprintf("no %s public address for %s, which flannel receives over %s", family, subnet, family)
	case i < 0:
		return way{}, fmt.Sprintf("flannel receives %s over %s, and this host cannot send over %s", subnet, family, family)
	}
	mac, reason := pl.vtep(option, text, i)
	if reason == "" {
		reason = pl.ends[i].refuses(remote)
	}
	return way{subnet, i, remote, mac}, reason
}

// refuses returns why packets are not sent to a peer's public address, or "" if they are.
func (e end) refuses(remote netip.Addr) string {
	if remote == e.local || remote == e.public {
		return fmt.Sprintf("its public address %s is this host's", remote)
	}
	return ""
}

// published decodes a peer's attributes, which another host wrote, and checks what all hosts share.
func (pl planner) published(peer backend.Peer) (a attributes, reason string) {
	switch err := json.Unmarshal(peer.Attributes, &a); {
	case err != nil:
		return a, "attributes are not valid: " + err.Error()
	case a.MAC == "":
		return a, "attributes lack vtep_mac"
	}
	for _, mac := range []struct{ option, text string }{{"vtep_mac", a.MAC}, {"vtep_mac_v6", a.MACv6}} {
		if parsed, err := kernel.ParseMAC(mac.text); mac.text != "" && (err != nil || !parsed.Unicast()) {
			return a, fmt.Sprintf("%s %q is not an address of a device", mac.option, mac.text)
		}
	}
	switch {
	case a.VNI != pl.options.VNI:
		return a, fmt.Sprintf("vni is %d, the network's %d", a.VNI, pl.options.VNI)
	case a.Port != pl.options.Port:
		return a, fmt.Sprintf("port is %d, the network's %d", a.Port, pl.options.Port)
	}
	return a, ""
}

// vtep returns the MAC address of a peer behind one of the devices, unless it has another owner.
func (pl planner) vtep(option, text string, device int) (mac kernel.MAC, reason string) {
	mac, err := kernel.ParseMAC(text)
	if err != nil {
		return mac, err.Error()
	}
	if owner := pl.ends[device].macs[mac]; owner != "" {
		return mac, fmt.Sprintf("%s %s is that of %s too", option, mac, owner)
	}
	return mac, ""
}
