package backend

import (
	"net/netip"
	"slices"
)

// Elsewhere is the set of destinations in State.Elsewhere.
type Elsewhere map[netip.Prefix]struct{}

// NewElsewhere returns the set of the given destinations.
func NewElsewhere(destinations []netip.Prefix) Elsewhere {
	e := make(Elsewhere, len(destinations))
	for _, dst := range destinations {
		e[dst] = struct{}{}
	}
	return e
}

// Has reports whether the routes to exactly dst belong to another backend.
func (e Elsewhere) Has(dst netip.Prefix) bool {
	_, ok := e[dst]
	return ok
}

// HasAny reports whether Has is true for any of the subnets.
func (e Elsewhere) HasAny(subnets []netip.Prefix) bool { return slices.ContainsFunc(subnets, e.Has) }

// Awaits reports whether a peer has a subnet elsewhere and no attributes yet: its host has not published any for this
// backend.
func (e Elsewhere) Awaits(p Peer) bool { return len(p.Attributes) == 0 && e.HasAny(p.Subnets) }
