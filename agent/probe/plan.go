package probe

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
)

// surroundings holds what a plan needs to know of the kernel.
type surroundings struct {
	local map[netip.Addr]bool // addresses of this host

	// device returns the index of the device that packets to an address leave by, and whether the address is a
	// neighbour there; 0 when there is no route. The routes are those of a VRF, or the usual ones if vrf is 0.
	device func(to netip.Addr, vrf int) (index int, neighbour bool)
	// the kernel drops IPv4 packets that arrive over the underlay if their answers would leave by another device
	strict bool
	link   int // index of the overlay's device, 0 for none

	// The overlay's second device; see backend.SecondLinkName.
	second    int // index, 0 for none
	secondMTU int // bytes
}

// planner chooses where to send for a backend.
type planner struct {
	Host
	here surroundings
}

// options holds the backend options that matter here.
type options struct {
	Port          int  `json:"port"`
	ListenPort    int  `json:"listen_port"` // wireguard's name for it
	DirectRouting bool `json:"direct_routing"`
}

func (p planner) options() options {
	var o options
	_ = json.Unmarshal(p.Options, &o) // invalid ones are reported where they are used
	o.Port = max(o.Port, o.ListenPort)
	return o
}

// plain reports whether packets cross unwrapped, over routes that need no device.
func (p planner) plain() bool { return p.Backend == "host-gw" }

// ways returns the paths to probe for a peer: the overlay in each family it has a subnet of, then the underlay by
// each address that packets to it go to.
func (p planner) ways(peer api.Peer) []way {
	var out []way
	for _, subnet := range peer.Subnets {
		out = append(out, p.overlay(peer, subnet))
	}
	for _, to := range p.outer(peer) {
		from, _ := p.own(to)
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
	w := way{path: api.PathOverlay, to: subnet.Masked().Addr(), mtu: p.MTU}
	own := p.subnet(subnet.Addr())
	switch {
	case p.Backend == "alloc":
		w.unprobed = "alloc carries no packets, others do"
	case peer.Skipped != "":
		w.unprobed = "left out of the datapath: " + peer.Skipped
	case !own.IsValid():
		w.unprobed = fmt.Sprintf("this host has no %s subnet in the network", backend.Family(subnet.Addr()))
	case p.plain():
		w.to, w.hops = w.to.Next(), 1
		w.host = append(slices.Clone(peer.Subnets), singles(peer.PublicIPs)...)
		if gateway := own.Masked().Addr().Next(); p.here.local[gateway] {
			w.from = gateway
		} else {
			w.from, _ = p.own(w.to)
		}
	default:
		w.from = own.Masked().Addr()
		if p.bySecond(w.to) {
			w.mtu = min(w.mtu, p.here.secondMTU)
		}
	}
	return w
}

// bySecond reports whether packets to an address leave by the network's second device.
func (p planner) bySecond(a netip.Addr) bool {
	if p.here.second == 0 {
		return false
	}
	index, _ := p.here.device(a, 0)
	return index == p.here.second
}

// subnet returns this host's subnet of a's family.
func (p planner) subnet(a netip.Addr) netip.Prefix {
	for _, s := range p.Subnets {
		if s.Addr().Is4() == a.Is4() {
			return s
		}
	}
	return netip.Prefix{}
}

// own returns this host's underlay address of a's family.
func (p planner) own(a netip.Addr) (netip.Addr, bool) {
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

// outer returns the peer's addresses that packets for it are sent to: one for a tunnel, else one of each family, if
// this host has an address of that family. A tunnel through the second device is one over the subnet's own family.
func (p planner) outer(peer api.Peer) []netip.Addr {
	var out []netip.Addr
	from := backend.Peer{PublicIPs: peer.PublicIPs}
	add := func(a netip.Addr, ok bool) {
		if _, has := p.own(a); ok && has && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	tunnel := !p.plain() && p.Backend != "alloc"
	if tunnel && peer.Endpoint.IsValid() {
		add(peer.Endpoint.Addr().Unmap(), true)
	} else if tunnel && len(p.Underlay.Addresses) > 0 {
		a, _ := from.Outer(p.Underlay.Addresses[0])
		add(a, a.IsValid())
	}
	for _, s := range peer.Subnets {
		if !tunnel || p.options().DirectRouting || p.bySecond(s.Masked().Addr()) {
			add(from.PublicIP(s.Addr()))
		}
	}
	return out
}

func singles(addrs []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range addrs {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// reached reports whether small packets reached the peer's host on all paths that packets of containers take.
func (p planner) reached(o api.PeerProbe) bool {
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

// refusals adds the errors about the tunnel's packets to the underlay's paths.
func (p planner) refusals(l line, peer api.Peer, o *api.PeerProbe) {
	port := p.options().Port
	if port == 0 {
		return
	}
	if peer.Endpoint.IsValid() {
		port = int(peer.Endpoint.Port())
	}
	for i := range o.Ways {
		if o.Ways[i].Path == api.PathUnderlay {
			for _, a := range l.refusals(o.Ways[i].To, port) {
				o.Ways[i].Errors = note(o.Ways[i].Errors, a, fmt.Sprintf("udp port %d", port))
			}
		}
	}
}
