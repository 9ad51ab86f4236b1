package registry

import (
	"encoding/json"
	"net/netip"
	"slices"
)

// A place is where a host is on the underlay: its public addresses and, for a host behind NAT, what tells it apart from
// the others with the same address. That is published by the backend, in these members of its attributes:
//
//	public_port  the UDP port of the public address at which the host receives; listen_port if there is none
//	local_ips    the host's own addresses behind the public ones
//
// During a switch, the attributes of the next backend are in the member next.
type place struct {
	public, local []netip.Addr
	ports         []uint16 // empty if the backend publishes none
}

// placeMembers are the members of attributes that say where a host is.
type placeMembers struct {
	PublicPort uint16        `json:"public_port"`
	ListenPort uint16        `json:"listen_port"`
	LocalIPs   []netip.Addr  `json:"local_ips"`
	Next       *placeMembers `json:"next"`
}

func placeOf(public []netip.Addr, b Backend) place {
	p := place{public: public}
	var m placeMembers
	if json.Unmarshal(b.Object, &m) != nil {
		return p // such a host has its address alone
	}
	for next := &m; next != nil; next = next.Next {
		if next.PublicPort != 0 {
			p.ports = append(p.ports, next.PublicPort)
		} else if next.ListenPort != 0 {
			p.ports = append(p.ports, next.ListenPort)
		}
		p.local = append(p.local, next.LocalIPs...)
	}
	return p
}

// SameEndpoint reports whether the hosts of two leases would receive each other's packets: they have a public address in
// common, and no ports that tell them apart.
func SameEndpoint(a, b Lease) bool {
	if !shareAny(a.PublicIPs, b.PublicIPs) {
		return false
	}
	one, other := placeOf(a.PublicIPs, a.Backend), placeOf(b.PublicIPs, b.Backend)
	return len(one.ports) == 0 || len(other.ports) == 0 || shareAny(one.ports, other.ports)
}

// SameMachine reports whether the hosts of two leases have the addresses of one machine: a public one in common and, if
// both are behind NAT, one of those behind it.
func SameMachine(a, b Lease) bool {
	if !shareAny(a.PublicIPs, b.PublicIPs) {
		return false
	}
	one, other := placeOf(a.PublicIPs, a.Backend), placeOf(b.PublicIPs, b.Backend)
	if len(one.local) == 0 || len(other.local) == 0 {
		return true
	}
	// A host that asks whether it has been copied adds its own address to the public ones.
	return shareAny(one.local, other.local) || shareAny(one.local, other.public) || shareAny(one.public, other.local)
}

// LocalIPs returns the host's own addresses behind its public ones, nil if it is not known to be behind NAT.
func (l Lease) LocalIPs() []netip.Addr { return placeOf(l.PublicIPs, l.Backend).local }

// host returns a lease of the claim's host, for SameEndpoint and SameMachine.
func (c Claim) host() Lease { return Lease{PublicIPs: c.PublicIPs, Backend: c.Backend} }

// whereabouts returns the addresses of a lease's host, for messages.
func (l Lease) whereabouts() string {
	if local := l.LocalIPs(); len(local) > 0 {
		return joinAddrs(l.PublicIPs) + ", behind NAT " + joinAddrs(local)
	}
	return joinAddrs(l.PublicIPs)
}

func shareAny[T comparable](a, b []T) bool {
	return slices.ContainsFunc(a, func(one T) bool { return slices.Contains(b, one) })
}
