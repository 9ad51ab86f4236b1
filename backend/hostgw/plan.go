// Package hostgw implements the backend that carries packets unchanged: each peer's subnets are
// routed through its public address, which must be on the same layer 2. It owns the routes with our
// protocol inside the network's pools, and knows nothing of devices.
package hostgw

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
)

// Name is the type's name in a network's record.
const Name = "host-gw"

func normalize(options json.RawMessage) (json.RawMessage, error) {
	members := map[string]json.RawMessage{}
	if len(options) > 0 {
		if err := json.Unmarshal(options, &members); err != nil {
			return nil, fmt.Errorf("options of backend %q: %w", Name, err)
		}
	}
	var errs []error
	for option := range members {
		errs = append(errs, &backend.OptionError{Option: option, Reason: "unknown option; host-gw has none"})
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return json.RawMessage(`{}`), nil
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
func newPlan(pools []netip.Prefix, s backend.State, indirect map[netip.Addr]string, ipv6 bool) plan {
	p := plan{routes: make(map[kernel.RouteKey]kernel.Route, len(pools)*(len(s.Peers)+1))}
	if s.Zero() {
		return p
	}
	maps.Copy(p.routes, kernel.Unreachable(pools))
	claims := backend.NewClaims(pools, s.Subnets)
	for _, peer := range backend.SortedPeers(s.Peers) {
		if reason := p.add(peer, claims, s.Underlay.Index, indirect, ipv6); reason != "" {
			p.skipped = append(p.skipped, backend.Skip{Node: peer.Node, Reason: reason})
			continue
		}
		p.peers++
	}
	kernel.LimitMTU(p.routes, s, 1)
	kernel.RemoveRoutes(p.routes, backend.NewElsewhere(s.Elsewhere))
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
