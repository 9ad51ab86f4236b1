package vxlan

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
)

// overhead returns the bytes that the encapsulation takes from the underlay's MTU: the outer IP
// header, UDP, VXLAN and the inner Ethernet header.
func overhead(outer netip.Addr) int {
	if outer.Is4() {
		return 20 + 8 + 8 + 14
	}
	return 40 + 8 + 8 + 14
}

// device describes the network's VXLAN device.
type device struct {
	vni, port int
	gbp       bool
	other     string // any other setting that needs another device; "" in the wanted one
	local     netip.Addr

	below string // names of the devices below it, separated by spaces; "" if read from the kernel

	// Changeable in place.
	alias    string
	parent   int // ifindex of the underlay
	learning bool
	mac      kernel.MAC
	mtu      int
	up       bool
}

// wantDevice returns the device for a state that is not zero.
func wantDevice(network string, mac kernel.MAC, o options, s backend.State) (device, error) {
	local, err := s.Underlay.Source()
	if err != nil {
		return device{}, err
	}
	d := device{
		vni: o.VNI, port: o.Port, gbp: o.GBP, local: local,
		parent: s.Underlay.Index, alias: backend.LinkAlias(network), mac: mac, mtu: s.MTU, up: true,
		below: strings.Join(append(s.Underlay.Devices[:len(s.Underlay.Devices):len(s.Underlay.Devices)], s.Underlay.Interface), " "),
	}
	// A larger MTU fails with EINVAL over IPv4 and is silently reduced over IPv6.
	if most := s.Underlay.MTU - overhead(d.local); d.mtu == 0 || d.mtu > most {
		d.mtu = most
	}
	return d, nil
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

// What can be changed in place, as named in reports.
const (
	fixUnderlay = "underlay" // parent, local address, learning
	fixAddress  = "address"
	fixMTU      = "mtu"
	fixState    = "state"
	fixAlias    = "alias"
)

// fixes returns what must be changed in place, in order.
func (d device) fixes(want device) (out []string) {
	if d.parent != want.parent || d.local != want.local || d.learning != want.learning {
		out = append(out, fixUnderlay)
	}
	if d.mac != want.mac {
		out = append(out, fixAddress)
	}
	if d.mtu != want.mtu {
		out = append(out, fixMTU)
	}
	if d.up != want.up {
		out = append(out, fixState)
	}
	if d.alias != want.alias {
		out = append(out, fixAlias)
	}
	return out
}

// fault describes the difference that a fix corrected.
func (d device) fault(fix string, want device) backend.Repair {
	switch fix {
	case fixUnderlay:
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
		return backend.Repair{Part: backend.Device, Fault: "device had another underlay", Detail: strings.Join(parts, ", ")}
	case fixAddress:
		return backend.Repair{Part: backend.Device, Fault: "device had another MAC address", Detail: fmt.Sprintf("%s instead of %s", d.mac, want.mac)}
	case fixMTU:
		return backend.Repair{Part: backend.Device, Fault: "device had another MTU", Detail: fmt.Sprintf("%d instead of %d", d.mtu, want.mtu)}
	case fixAlias:
		return backend.Repair{Part: backend.Device, Fault: "device had another alias", Detail: fmt.Sprintf("%q", d.alias)}
	}
	return backend.Repair{Part: backend.Device, Fault: "device was down"}
}

// plan holds what the kernel should contain besides the device.
type plan struct {
	addresses  map[netip.Prefix]kernel.Address
	fdb        map[kernel.FDBKey]kernel.FDB
	neighbours map[kernel.NeighbourKey]kernel.MAC
	routes     map[kernel.RouteKey]kernel.Route
	skipped    []backend.Skip
	peers      int
}

// planner holds what is needed to plan a peer.
type planner struct {
	options options
	local   netip.Addr
	public  netip.Addr // what peers send to; equals local unless behind NAT
	link    int        // ifindex of the device
	parent  int        // of the underlay
	direct  map[netip.Addr]bool
	claims  *backend.Claims
	macs    map[kernel.MAC]string // the owner of each address
}

// newPlan derives the tables from a state. direct marks the public addresses that are neighbours on
// the underlay; it is empty without direct routing.
func newPlan(pools []netip.Prefix, o options, want device, link int, s backend.State, direct map[netip.Addr]bool) plan {
	p := plan{
		addresses:  map[netip.Prefix]kernel.Address{},
		fdb:        make(map[kernel.FDBKey]kernel.FDB, len(s.Peers)),
		neighbours: make(map[kernel.NeighbourKey]kernel.MAC, len(pools)*len(s.Peers)),
		routes:     make(map[kernel.RouteKey]kernel.Route, len(pools)*(len(s.Peers)+1)),
	}
	if s.Zero() {
		return p
	}
	for _, subnet := range s.Subnets {
		base := subnet.Masked().Addr()
		p.addresses[netip.PrefixFrom(base, base.BitLen())] = kernel.Address{}
	}
	maps.Copy(p.routes, kernel.Unreachable(pools))
	pl := planner{
		options: o, local: want.local, public: s.Underlay.Addrs[0], link: link, parent: s.Underlay.Index, direct: direct,
		claims: backend.NewClaims(pools, s.Subnets), macs: map[kernel.MAC]string{want.mac: "this host"},
	}
	for _, peer := range backend.SortedPeers(s.Peers) {
		if reason := pl.add(p, peer); reason != "" {
			p.skipped = append(p.skipped, backend.Skip{Node: peer.Node, Reason: reason})
			continue
		}
		p.peers++
	}
	return p
}

// add plans one peer completely, or returns why it cannot and plans nothing of it.
func (pl planner) add(p plan, peer backend.Peer) (reason string) {
	if peer.Backend != Name {
		return fmt.Sprintf("runs backend %q", peer.Backend)
	}
	mac, reason := pl.vtep(peer)
	if reason != "" {
		return reason
	}
	remote, reason := peer.Outer(pl.local)
	switch {
	case reason != "":
		return reason
	case remote == pl.local || remote == pl.public:
		return fmt.Sprintf("its public address %s is this host's", remote)
	}
	if reason := pl.claims.Take(peer); reason != "" {
		return reason
	}
	pl.macs[mac] = "node " + peer.Node
	for _, subnet := range peer.Subnets {
		key := kernel.RouteKey{Dst: subnet}
		// The gateway of a plain route is of the route's own family.
		if via, ok := peer.PublicIP(subnet.Addr()); ok && pl.direct[via] {
			p.routes[key] = kernel.Route{Link: pl.parent, Via: via}
			continue
		}
		p.fdb[kernel.FDBKey{MAC: mac}] = kernel.FDB{Dst: remote}
		p.neighbours[kernel.NeighbourKey{Addr: subnet.Addr()}] = mac
		p.routes[key] = kernel.Route{Link: pl.link, Via: subnet.Addr(), Onlink: true}
	}
	return ""
}

// vtep decodes a peer's attributes, which another host wrote, and returns its MAC address.
func (pl planner) vtep(peer backend.Peer) (mac kernel.MAC, reason string) {
	var a attributes
	if err := json.Unmarshal(peer.Attributes, &a); err != nil {
		return mac, "attributes are not valid: " + err.Error()
	}
	mac, err := kernel.ParseMAC(a.MAC)
	switch {
	case a.MAC == "":
		return mac, "attributes lack vtep_mac"
	case err != nil || !mac.Unicast():
		return mac, fmt.Sprintf("vtep_mac %q is no address of a device", a.MAC)
	case a.VNI != pl.options.VNI:
		return mac, fmt.Sprintf("vni is %d, the network's %d", a.VNI, pl.options.VNI)
	case a.Port != pl.options.Port:
		return mac, fmt.Sprintf("port is %d, the network's %d", a.Port, pl.options.Port)
	case pl.macs[mac] != "":
		return mac, fmt.Sprintf("vtep_mac %s is that of %s too", mac, pl.macs[mac])
	}
	return mac, ""
}
