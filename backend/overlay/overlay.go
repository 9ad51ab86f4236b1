// Package overlay holds what backends have in common: how they tell the network's devices from others, repair and
// remove them, what the devices contain, and the network's routes. It decides what is wanted, tells repairs from
// changes, and does not know how a backend carries packets. Package kernel knows how the kernel is asked.
package overlay

import (
	"maps"
	"net/netip"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/reconcile"
)

// Wanted is what a network should have in the kernel besides its devices themselves.
type Wanted struct {
	Devices []Entries                        // always in the same order
	Steps   []reconcile.Step                 // further tables that routes depend on
	Routes  map[kernel.RouteKey]kernel.Route // see CompleteRoutes
}

// Entries is what one device should contain.
type Entries struct {
	Link       int  // ifindex
	Bare       bool // it is new, or was down or renumbered, so the loss of entries is no repair of its own
	Addresses  map[netip.Prefix]kernel.Address
	FDB        map[kernel.FDBKey]kernel.FDB       // nil for a device without a forwarding database
	Neighbours map[kernel.NeighbourKey]kernel.MAC // nil for a device without neighbours
}

// HostAddresses returns the addresses of a device of a host: the first of each subnet, alone.
func HostAddresses(subnets []netip.Prefix) map[netip.Prefix]kernel.Address {
	out := make(map[netip.Prefix]kernel.Address, len(subnets))
	for _, subnet := range subnets {
		base := subnet.Masked().Addr()
		out[netip.PrefixFrom(base, base.BitLen())] = kernel.Address{}
	}
	return out
}

// CompleteRoutes returns the routes of a network, for those to its peers. It adds those that refuse packets to the
// pools, limits MTUs, and leaves out destinations elsewhere. mtu is the network's option of that name, and packets
// are padded to a multiple of padding bytes.
func CompleteRoutes(
	peers map[kernel.RouteKey]kernel.Route, pools []netip.Prefix, s backend.State, mtu, padding int,
) map[kernel.RouteKey]kernel.Route {
	routes := kernel.Unreachable(pools)
	maps.Copy(routes, peers)
	limitDirect(routes, s.Underlay, mtu)
	limitMTU(routes, s, padding)
	elsewhere := backend.NewElsewhere(s.Elsewhere)
	maps.DeleteFunc(routes, func(k kernel.RouteKey, _ kernel.Route) bool { return elsewhere.Has(k.Dst) })
	return routes
}

// limitDirect sets the MTU of the routes that leave by the underlay itself, in a network whose option mtu is less
// than the underlay's MTU. A device of the network has the MTU of the overlay.
func limitDirect(routes map[kernel.RouteKey]kernel.Route, u backend.Underlay, mtu int) {
	if mtu == 0 || mtu >= u.MTU {
		return
	}
	for key, r := range routes {
		if !r.Unreachable && r.Link == u.Index {
			r.MTU = mtu
			routes[key] = r
		}
	}
}

// limitMTU sets the MTU of the routes to peers whose MTU is smaller than this host's. What is larger would be lost
// on the peer's network, without an error to its sender. Packets are padded to a multiple of padding bytes, unless
// that is more than this host's MTU.
func limitMTU(routes map[kernel.RouteKey]kernel.Route, s backend.State, padding int) {
	for _, p := range s.Peers {
		if p.MTU <= 0 || p.MTU >= s.MTU {
			continue
		}
		mtu := p.MTU - p.MTU%padding
		for _, subnet := range p.Subnets {
			key := kernel.RouteKey{Dst: subnet}
			if r, ok := routes[key]; ok && !r.Unreachable && mtu >= backend.MinMTU(subnet.Addr()) {
				r.MTU = mtu
				routes[key] = r
			}
		}
	}
}

// previousRoutes returns the routes to remember: the network's, and for each destination elsewhere a route that equals
// no other. When that destination is elsewhere no longer, the route that another backend left there is then not taken
// for another program's.
func previousRoutes(
	routes map[kernel.RouteKey]kernel.Route, elsewhere backend.Elsewhere,
) map[kernel.RouteKey]kernel.Route {
	if len(elsewhere) == 0 || routes == nil {
		return routes
	}
	out := maps.Clone(routes)
	for dst := range elsewhere {
		out[kernel.RouteKey{Dst: dst}] = kernel.Route{}
	}
	return out
}

// AddPeer adds the routes for a peer's subnets into a device without neighbours. For IPv6 they have a gateway, which
// such a device does not use. On a route without one, Linux takes the subnet's first address for the subnet-router
// anycast address (RFC 4291, 2.6.1) and sends it no ICMPv6 errors. That address is the peer's own, so its host would
// never learn of an exceeded hop limit or of the path's MTU.
func AddPeer(routes map[kernel.RouteKey]kernel.Route, link int, subnets []netip.Prefix) {
	for _, subnet := range subnets {
		route := kernel.Route{Link: link}
		if subnet.Addr().Is6() {
			route.Via, route.Onlink = subnet.Masked().Addr(), true
		}
		routes[kernel.RouteKey{Dst: subnet}] = route
	}
}
