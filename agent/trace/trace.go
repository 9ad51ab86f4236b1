// Package trace follows the packets between two addresses through a host, and finds the stage at which they end.
//
// Run gathers Facts: what the kernel says of the container's namespace, the device that connects it, the rules, routes,
// neighbours and the table of connections, and what became of packets that it sends. Judge turns them into stages.
// Judge is pure. Nothing on the host is changed. The package knows neither the agent nor the store: the caller says
// which networks and hosts there are.
package trace

import (
	"context"
	"net/http"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/api"
)

// A Host is what is known of this host.
type Host struct {
	Node     string
	Networks []Network
}

// A Network is this host's part in one network.
type Network struct {
	Name    string
	Backend string // type
	Pools   []netip.Prefix
	Local   api.Local
	Links   []string // devices by which packets to other hosts leave, and theirs arrive
	Port    int      // UDP port of the tunnel, 0 for none
	Forward bool     // leno accepts forwarded packets
	IPMasq  bool
	Peers   []api.Peer

	// Probe sends packets to a peer, as `leno peers -probe` does. It is nil unless Carries.
	Probe func(ctx context.Context, node string) (api.Probe, error)
}

// Carries reports whether leno carries the network's packets.
func (n Network) Carries() bool { return n.Backend != "alloc" }

// An End is one end of a path.
type End struct {
	api.TraceEnd
	IsHere  bool      // on this host
	Peer    *api.Peer // that has it, nil if it is here
	IsOuter bool      // it is an address of a host in the underlay
}

// subnet returns the peer's subnet that has the address, or the address alone if it is in the underlay.
func (e End) subnet() netip.Prefix {
	if e.IsOuter {
		return subnetWith(nil, e.Address)
	}
	return subnetWith(e.Peer.Subnets, e.Address)
}

// subnetWith returns the subnet that has an address, or the address alone if none has it.
func subnetWith(subnets []netip.Prefix, a netip.Addr) netip.Prefix {
	if i := slices.IndexFunc(subnets, func(s netip.Prefix) bool { return s.Contains(a) }); i >= 0 {
		return subnets[i]
	}
	return netip.PrefixFrom(a, a.BitLen())
}

// A Path is what a trace follows.
type Path struct {
	Network             Network
	Source, Destination End
	Protocol            string // icmp, tcp or udp
	Port                int    // of the destination, 0 for icmp
}

// Locate finds the ends of a path. Errors are *api.Error.
func Locate(h Host, r api.TraceRequest) (Path, error) {
	p := Path{Protocol: r.Protocol, Port: r.Port}
	if p.Protocol == "" {
		p.Protocol = "icmp"
	}
	switch {
	case !r.Source.IsValid() || !r.Destination.IsValid():
		return p, api.Errorf(http.StatusBadRequest, "source and destination must be addresses")
	case r.Source.Is4() != r.Destination.Is4():
		return p, api.Errorf(http.StatusBadRequest, "source and destination must be of the same address family")
	case r.Source == r.Destination:
		return p, api.Errorf(http.StatusBadRequest, "source and destination are the same address")
	case !slices.Contains([]string{"icmp", "tcp", "udp"}, p.Protocol):
		return p, api.Errorf(http.StatusBadRequest, "protocol is %q, must be icmp, tcp or udp", r.Protocol)
	case (p.Protocol == "icmp") != (r.Port == 0) || r.Port < 0 || r.Port > 65535:
		return p, api.Errorf(http.StatusBadRequest, "port is %d, must be 1 to 65535 with tcp and udp, and absent with icmp",
			r.Port)
	}
	unknown := r.Source
	for _, n := range h.Networks {
		source, ok := n.end(h.Node, r.Source)
		destination, found := n.end(h.Node, r.Destination)
		if ok && !found {
			unknown = r.Destination
		}
		if !ok || !found || source.IsOuter && destination.IsOuter {
			continue
		}
		p.Network, p.Source, p.Destination = n, source, destination
		if !source.IsHere && !destination.IsHere {
			return p, api.Errorf(http.StatusNotFound, "%s is on %s and %s is on %s: run the command on one of these hosts",
				r.Source, source.Node, r.Destination, destination.Node)
		}
		return p, nil
	}
	return p, api.Errorf(http.StatusNotFound,
		"no host of a network of this host has %s in its subnet: `leno lease list` shows the subnets",
		unknown)
}

// end finds the host of an address.
func (n Network) end(node string, a netip.Addr) (End, bool) {
	contains := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(s netip.Prefix) bool { return s.Contains(a) })
	}
	own := n.Local.Underlay.Own
	e := End{TraceEnd: api.TraceEnd{Address: a, Node: node, PublicIPs: n.Local.Underlay.Addresses}}
	switch {
	case contains(n.Local.Subnets):
		e.IsHere, e.Container = true, true
		return e, true
	case slices.Contains(own, a) || slices.Contains(n.Local.Underlay.Addresses, a):
		e.IsHere, e.IsOuter = true, true
		return e, true
	}
	for i, p := range n.Peers {
		inside := contains(p.Subnets)
		if inside || slices.Contains(p.PublicIPs, a) {
			e.Node, e.PublicIPs, e.Peer = p.Node, p.PublicIPs, &n.Peers[i]
			e.Container, e.IsOuter = inside, !inside
			return e, true
		}
	}
	return e, false
}

// peer returns the other host of a path, nil if both ends are here.
func (p Path) peer() *api.Peer {
	if p.Source.Peer != nil {
		return p.Source.Peer
	}
	return p.Destination.Peer
}

// Run follows the packets of a request through this host. Errors are *api.Error, or ctx's. It reads rules with programs
// that it starts from the calling thread, hence in its network namespace.
func Run(ctx context.Context, h Host, r api.TraceRequest) (api.Trace, error) {
	p, err := Locate(h, r)
	if err != nil {
		return api.Trace{}, err
	}
	facts, err := read(ctx, p)
	if err != nil {
		return api.Trace{}, err
	}
	facts.Node = h.Node
	return Judge(facts), ctx.Err()
}
