package backend

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// PublicIP returns the peer's first public address of a's family.
func (p Peer) PublicIP(a netip.Addr) (netip.Addr, bool) {
	for _, ip := range p.PublicIPs {
		if ip.Is4() == a.Is4() {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

// AddrBehind returns an address of a peer's subnet that no host's device has: the last but one. It may be a
// container's.
func AddrBehind(subnet netip.Prefix) netip.Addr {
	raw := subnet.Masked().Addr().AsSlice()
	for i := subnet.Bits(); i < len(raw)*8; i++ {
		raw[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(raw)
	return last.Prev()
}

// PublicIPs returns the public addresses of all peers, sorted and without duplicates.
func PublicIPs(peers []Peer) []netip.Addr {
	out := make([]netip.Addr, 0, 2*len(peers))
	for _, p := range peers {
		out = append(out, p.PublicIPs...)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// Outer returns the address to send to over a, an underlay of one address family. If there is none,
// reason explains why. The family of the peer's first address is the one it receives over; if the
// address returned is of another family, reason says so.
func (p Peer) Outer(a netip.Addr) (outer netip.Addr, reason string) {
	for i, ip := range p.PublicIPs {
		if ip = ip.Unmap(); ip.IsValid() && ip.Is4() == a.Is4() {
			if i > 0 {
				return ip, fmt.Sprintf("receives over %s, and this host over %s", Family(p.PublicIPs[0]), Family(a))
			}
			return ip, ""
		}
	}
	return netip.Addr{}, "no " + Family(a) + " public address"
}

// Source returns the host's own address that packets are sent from: the one behind the first public
// address.
func (u Underlay) Source() (netip.Addr, error) {
	switch {
	case len(u.Addrs) == 0 || !u.Addrs[0].IsValid():
		return netip.Addr{}, fmt.Errorf("underlay %s has no public address", u.Interface)
	case len(u.Own) == 0:
		return u.Addrs[0].Unmap(), nil
	case !u.Own[0].IsValid():
		return netip.Addr{}, fmt.Errorf("underlay %s has no %s address of its own to send from behind the public %s",
			u.Interface, Family(u.Addrs[0]), u.Addrs[0])
	}
	return u.Own[0].Unmap(), nil
}

// SourceOf returns the host's own address of a's family, and the public address that peers send to
// in its place; both are equal unless the host is behind NAT. ok is false if there is none.
func (u Underlay) SourceOf(a netip.Addr) (own, public netip.Addr, ok bool) {
	for i, addr := range u.Addrs {
		if addr = addr.Unmap(); !addr.IsValid() || addr.Is4() != a.Is4() {
			continue
		}
		switch {
		case len(u.Own) == 0:
			return addr, addr, true
		case i < len(u.Own) && u.Own[i].IsValid():
			return u.Own[i].Unmap(), addr, true
		}
	}
	return netip.Addr{}, netip.Addr{}, false
}

// PublicPort returns the port at which other hosts reach the given UDP port of this host.
func (u Underlay) PublicPort(port uint16) uint16 {
	if public, ok := u.Ports[port]; ok {
		return public
	}
	return port
}

// Behind returns the host's own addresses that differ from its public ones: those behind NAT.
func (u Underlay) Behind() (own []netip.Addr) {
	for i, addr := range u.Own {
		if addr.IsValid() && i < len(u.Addrs) && addr.Unmap() != u.Addrs[i].Unmap() {
			own = append(own, addr.Unmap())
		}
	}
	return own
}

// Alone returns an error if the host shares its public address with others, for a backend that cannot tell such hosts
// apart.
func (u Underlay) Alone(backend string) error {
	if len(u.Ports) == 0 {
		return nil
	}
	return fmt.Errorf("underlay.public_ports is set, so that other hosts have the public address too, and backend %s "+
		"needs one for each host: "+
		"use the backend wireguard, or give this host an address of its own", backend)
}

// Family returns the name of the address's family, for messages.
func Family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// SortedPeers returns the peers in order of precedence. Ties are broken by node and subnets alone,
// so that of two colliding peers always the same one is used.
func SortedPeers(peers []Peer) []Peer {
	return slices.SortedFunc(slices.Values(peers), func(a, b Peer) int {
		return cmp.Or(cmp.Compare(a.Precedence, b.Precedence), cmp.Compare(a.Node, b.Node),
			slices.CompareFunc(a.Subnets, b.Subnets, func(x, y netip.Prefix) int {
				return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Bits(), y.Bits()))
			}))
	})
}

// Claims tracks which subnets are taken. A peer's subnets can be routed if they lie in the network,
// do not overlap our own and belong to no other peer.
type Claims struct {
	pools, own []netip.Prefix
	taken      map[netip.Prefix]string // node
}

// NewClaims returns Claims without any peer.
func NewClaims(pools, own []netip.Prefix) *Claims {
	return &Claims{pools: pools, own: own, taken: map[netip.Prefix]string{}}
}

// Take claims all subnets of a peer, or none, and then returns the reason.
func (c *Claims) Take(p Peer) (reason string) {
	if len(p.Subnets) == 0 {
		return "has no subnet"
	}
	for _, s := range p.Subnets {
		inPool := func(pool netip.Prefix) bool { return pool.Bits() <= s.Bits() && pool.Contains(s.Addr()) }
		switch other, taken := c.taken[s]; {
		case !s.IsValid() || s != s.Masked():
			return fmt.Sprintf("subnet %s is invalid", s)
		case !slices.ContainsFunc(c.pools, inPool):
			return fmt.Sprintf("subnet %s is outside the network", s)
		case slices.ContainsFunc(c.own, s.Overlaps):
			return fmt.Sprintf("subnet %s is our own", s)
		case taken:
			return fmt.Sprintf("subnet %s is node %s's too", s, other)
		}
	}
	for _, s := range p.Subnets {
		c.taken[s] = p.Node
	}
	return ""
}
