package probe

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
)

// kernelState holds what a plan needs to know of the kernel.
type kernelState struct {
	local map[netip.Addr]bool // addresses of this host

	// route returns the index of the device that packets to an address leave by, and whether the address is a
	// neighbour there; 0 when there is no route. The routes are those of a VRF, or the usual ones if vrf is 0.
	route func(to netip.Addr, vrf int) (index int, neighbour bool)
	// routeMTU returns the MTU of the route to an address, as leno sets it for hosts with a smaller MTU, 0 for none. What
	// the kernel has learned of the path does not count.
	routeMTU func(to netip.Addr) int
	// the kernel drops IPv4 packets that arrive over the underlay if their answers would leave by another device
	strictFilter bool
	link         int // index of the overlay's device, 0 for none

	// The overlay's device for the other address family; see backend.OtherFamilyLinkName.
	otherFamily    int // index, 0 for none
	otherFamilyMTU int // bytes
}

// planner chooses where to send for a backend.
type planner struct {
	Host
	kernel kernelState
}

// options holds the backend options that matter here.
type options struct {
	Port          int  `json:"port"`
	ListenPort    int  `json:"listen_port"` // wireguard's name for it
	DirectRouting bool `json:"direct_routing"`
}

func (h Host) options() options {
	var o options
	_ = json.Unmarshal(h.Options, &o) // invalid ones are reported where they are used
	o.Port = max(o.Port, o.ListenPort)
	return o
}

// isRouted reports whether packets between hosts are routed without a tunnel.
func (h Host) isRouted() bool { return h.Backend == "host-gw" }

// OverlayAddress returns the address in a subnet that its host has itself: the first one, or with a backend without a
// device the gateway, which the host has if its containers have a bridge.
func (h Host) OverlayAddress(subnet netip.Prefix) netip.Addr {
	if h.isRouted() {
		return subnet.Masked().Addr().Next()
	}
	return subnet.Masked().Addr()
}

// Links returns the devices by which the packets of peers arrive.
func (h Host) Links() []string {
	if h.isRouted() {
		return []string{h.Underlay.Interface}
	}
	out := []string{h.Link, backend.OtherFamilyLinkName(h.Network), backend.LinkNameB(h.Network)}
	if h.options().DirectRouting {
		out = append(out, h.Underlay.Interface)
	}
	return out
}

// ways returns the paths to probe for a peer: the overlay in each family it has a subnet of, then the underlay by
// each address that packets to it go to.
func (p planner) ways(peer api.Peer) []way {
	var out []way
	for _, subnet := range peer.Subnets {
		out = append(out, p.overlay(peer, subnet))
	}
	if p.OnlyOverlay {
		return out
	}
	for _, to := range p.underlayAddresses(peer) {
		from, _ := p.ownAddress(to)
		out = append(out, way{path: api.PathUnderlay, from: from, to: to, vrf: p.VRF, mtu: p.Underlay.MTU})
	}
	return out
}

// overlay returns the path to one subnet of a peer.
//
// A backend with a device gives the device the subnet's first address, and the peer's kernel answers for it. Where
// routes need no device, no host has that address. There the packet goes to the subnet's gateway, as the subnet file
// names it, which container runtimes give to their bridge. When there is no such bridge, the peer's kernel reports
// that: the packet may make no hop beyond that host, and the host's error also proves that the packet arrived.
func (p planner) overlay(peer api.Peer, subnet netip.Prefix) way {
	w := way{path: api.PathOverlay, to: subnet.Masked().Addr(), mtu: p.MTU, noSearch: p.NoSearch}
	own := p.ownSubnet(subnet.Addr())
	switch {
	case p.Backend == "alloc":
		w.skipReason = "the backend alloc carries no packets"
	case peer.Skipped != "":
		w.skipReason = "left out of the datapath: " + peer.Skipped
	case !own.IsValid():
		w.skipReason = fmt.Sprintf("this host has no %s subnet in the network", backend.Family(subnet.Addr()))
	case p.isRouted():
		w.to, w.hops = w.to.Next(), 1
		w.hostPrefixes = append(slices.Clone(peer.Subnets), hostPrefixes(peer.PublicIPs)...)
		if gateway := own.Masked().Addr().Next(); p.kernel.local[gateway] {
			w.from = gateway
		} else {
			w.from, _ = p.ownAddress(w.to)
		}
	default:
		w.from = own.Masked().Addr()
		if p.isOnOtherFamilyLink(w.to) {
			w.mtu = min(w.mtu, p.kernel.otherFamilyMTU)
		}
	}
	return w
}

// limitSizes makes full-size packets in the overlay no larger than the routes allow.
func (p planner) limitSizes(ways []way) {
	for i := range ways {
		w := &ways[i]
		if w.path != api.PathOverlay || w.skipReason != "" {
			continue
		}
		if mtu := p.kernel.routeMTU(w.to); mtu > 0 {
			w.mtu = min(w.mtu, mtu)
		}
	}
}

// isOnOtherFamilyLink reports whether packets to an address leave by the network's device for the other address family.
func (p planner) isOnOtherFamilyLink(a netip.Addr) bool {
	if p.kernel.otherFamily == 0 {
		return false
	}
	index, _ := p.kernel.route(a, 0)
	return index == p.kernel.otherFamily
}

// ownSubnet returns this host's subnet of a's family.
func (p planner) ownSubnet(a netip.Addr) netip.Prefix {
	for _, s := range p.Subnets {
		if s.Addr().Is4() == a.Is4() {
			return s
		}
	}
	return netip.Prefix{}
}

// ownAddress returns this host's underlay address of a's family.
func (p planner) ownAddress(a netip.Addr) (netip.Addr, bool) {
	list := p.Underlay.Own
	if len(list) == 0 {
		list = p.Underlay.Addresses
	}
	for _, o := range list {
		if o.IsValid() && o.Is4() == a.Is4() {
			return o, true
		}
	}
	return netip.Addr{}, false
}

// underlayAddresses returns the peer's addresses that packets for it are sent to: one for a tunnel, else one of each
// family, if this host has an address of that family. A tunnel through the second device is one over the subnet's own
// family.
func (p planner) underlayAddresses(peer api.Peer) []netip.Addr {
	var out []netip.Addr
	from := backend.Peer{PublicIPs: peer.PublicIPs}
	add := func(a netip.Addr, ok bool) {
		if _, has := p.ownAddress(a); ok && has && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	tunnel := !p.isRouted() && p.Backend != "alloc"
	if tunnel && peer.Endpoint.IsValid() {
		add(peer.Endpoint.Addr().Unmap(), true)
	} else if tunnel && len(p.Underlay.Addresses) > 0 {
		a, _ := from.Outer(p.Underlay.Addresses[0])
		add(a, a.IsValid())
	}
	for _, s := range peer.Subnets {
		if !tunnel || p.options().DirectRouting || p.isOnOtherFamilyLink(s.Masked().Addr()) {
			add(from.PublicIP(s.Addr()))
		}
	}
	return out
}

func hostPrefixes(addrs []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range addrs {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// isReached reports whether small packets reached the peer's host on all paths that packets of containers take.
func (p planner) isReached(o api.PeerProbe) bool {
	path := api.PathOverlay
	if p.Backend == "alloc" {
		path = api.PathUnderlay
	}
	any := false
	for _, w := range o.Ways {
		if w.Path == path {
			any = true
			if w.Largest == 0 {
				return false
			}
		}
	}
	return any
}

// addTunnelErrors adds the errors about the tunnel's packets to the underlay's paths.
func (p planner) addTunnelErrors(l pinger, peer api.Peer, o *api.PeerProbe) {
	port := p.options().Port
	if port == 0 {
		return
	}
	if peer.Endpoint.IsValid() {
		port = int(peer.Endpoint.Port())
	}
	for i := range o.Ways {
		if o.Ways[i].Path == api.PathUnderlay {
			for _, a := range l.tunnelErrors(o.Ways[i].To, port) {
				o.Ways[i].Errors = addError(o.Ways[i].Errors, a, fmt.Sprintf("udp port %d", port))
			}
		}
	}
}
