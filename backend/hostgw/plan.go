// Package hostgw implements the backend that carries packets unchanged: each peer's subnets are
// routed through its public address, which must be on the same layer 2. It owns the routes with our
// protocol inside the network's pools, and knows nothing of devices.
package hostgw

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/overlay"
)

// Name is the type's name in a network's record.
const Name = "host-gw"

// options holds the network's options, which are the same on every host.
type options struct {
	MTU int `json:"mtu"` // largest MTU of the overlay in bytes; 0: the underlay's
}

var normalize = backend.Normalizer(decode)

func decode(raw json.RawMessage) (o options, err error) {
	errs := backend.DecodeOptions(Name, raw, map[string]backend.OptionTarget{backend.OptionMTU: backend.MTUTarget(&o.MTU)})
	return o, errors.Join(append(errs, backend.CheckMTU(o.MTU))...)
}

// plan holds what the kernel should contain.
type plan struct {
	routes  map[kernel.RouteKey]kernel.Route
	skipped []backend.Skip
	peers   int
}

// newPlan derives the routes from the state. indirect maps the public addresses that are not
// neighbours on the underlay to the reason. ipv6 says whether the underlay's interface has IPv6; without it, the IPv6
// subnets of peers get no routes.
func newPlan(pools []netip.Prefix, o options, s backend.State, indirect map[netip.Addr]string, ipv6 bool) plan {
	p := plan{routes: make(map[kernel.RouteKey]kernel.Route, len(pools)*len(s.Peers))}
	claims := backend.NewClaims(pools, s.Subnets)
	for _, peer := range backend.SortedPeers(s.Peers) {
		if reason := p.add(peer, claims, s.Underlay.Index, indirect, ipv6); reason != "" {
			p.skipped = append(p.skipped, backend.Skip{Node: peer.Node, Reason: reason})
			continue
		}
		p.peers++
	}
	p.routes = overlay.CompleteRoutes(p.routes, pools, s, o.MTU, 1)
	return p
}

// add plans routes for those of the peer's subnets that can be routed, and returns why the others
// cannot.
func (p plan) add(
	peer backend.Peer, claims *backend.Claims, link int, indirect map[netip.Addr]string, ipv6 bool,
) string {
	if peer.Backend != Name {
		return fmt.Sprintf("runs backend %q", peer.Backend)
	}
	if reason := claims.Take(peer); reason != "" {
		return reason
	}
	var reasons []string
	for _, subnet := range peer.Subnets {
		if subnet.Addr().Is6() && !ipv6 {
			continue
		}
		// The gateway of a route is of the route's own family.
		via, ok := peer.PublicIP(subnet.Addr())
		switch {
		case !ok:
			reasons = append(reasons, fmt.Sprintf("no %s public address for %s", backend.Family(subnet.Addr()), subnet))
		case indirect[via] != "":
			reasons = append(reasons, "not on the same layer 2: "+indirect[via])
		default:
			p.routes[kernel.RouteKey{Dst: subnet}] = kernel.Route{Link: link, Via: via}
		}
	}
	return strings.Join(reasons, "; ")
}
