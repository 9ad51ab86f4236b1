package registry

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
)

// attributes are the members of a lease's backend object that tell hosts behind one NAT apart, which have the same
// public addresses. Backends that can do so publish them.
type attributes struct {
	ListenPort uint16       `json:"listen_port"` // UDP port on which the host receives
	PublicPort uint16       `json:"public_port"` // the one of the public addresses that leads to it; 0: the same
	LocalIPs   []netip.Addr `json:"local_ips"`   // the host's own addresses, if they differ from the public ones
}

func attributesOf(b Backend) (a attributes) {
	if json.Unmarshal(b.Object, &a) != nil {
		return attributes{} // such a host has its addresses alone
	}
	return a
}

// port returns the UDP port at which the host is reached at its public addresses, 0 if that is not published.
func (a attributes) port() uint16 { return cmp.Or(a.PublicPort, a.ListenPort) }

// Endpoints returns the public addresses of a lease's host with the port at which it is reached there, which is 0 if
// the backend publishes none.
func (l Lease) Endpoints() []netip.AddrPort {
	port := attributesOf(l.Backend).port()
	out := make([]netip.AddrPort, len(l.PublicIPs))
	for i, addr := range l.PublicIPs {
		out[i] = netip.AddrPortFrom(addr, port)
	}
	return out
}

// EndpointText returns an endpoint without a port of 0.
func EndpointText(e netip.AddrPort) string {
	if e.Port() == 0 {
		return e.Addr().String()
	}
	return e.String()
}

// LocalIPs returns the host's own addresses behind its public ones, nil if it is not known to be behind NAT.
func (l Lease) LocalIPs() []netip.Addr { return attributesOf(l.Backend).LocalIPs }

// SharesAddress reports whether other hosts have the public addresses of a lease's host, too, as far as it says.
func (l Lease) SharesAddress() bool { return attributesOf(l.Backend).PublicPort != 0 }

// SameEndpoint reports whether the hosts of two leases would receive each other's packets: they have a public address
// in common, and no ports that tell them apart.
func SameEndpoint(a, b Lease) bool {
	if !shareAny(a.PublicIPs, b.PublicIPs) {
		return false
	}
	one, other := attributesOf(a.Backend).port(), attributesOf(b.Backend).port()
	return one == 0 || other == 0 || one == other
}

// SameMachine reports whether the hosts of two leases have the addresses of one machine: a public one in common and, if
// both are behind NAT, one of those behind it.
func SameMachine(a, b Lease) bool {
	if !shareAny(a.PublicIPs, b.PublicIPs) {
		return false
	}
	one, other := a.LocalIPs(), b.LocalIPs()
	if len(one) == 0 || len(other) == 0 {
		return true
	}
	// A host that asks whether it has been copied adds its own address to the public ones.
	return shareAny(one, other) || shareAny(one, b.PublicIPs) || shareAny(a.PublicIPs, other)
}

// host returns a lease of the claim's host, for SameEndpoint and SameMachine.
func (c Claim) host() Lease {
	return Lease{Node: c.Node, NodeID: c.NodeID, PublicIPs: c.PublicIPs, Backend: c.Backend}
}

// host describes a lease's host, for messages.
func (l Lease) host() string {
	where := Join(l.PublicIPs)
	if local := l.LocalIPs(); len(local) > 0 {
		where += ", behind NAT " + Join(local)
	}
	return fmt.Sprintf("%q (%s, node id %s)", l.Node, where, l.NodeID)
}

func shareAny[T comparable](a, b []T) bool {
	return slices.ContainsFunc(a, func(one T) bool { return slices.Contains(b, one) })
}
