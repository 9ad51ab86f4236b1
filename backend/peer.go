package backend

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// PublicIP is the peer's first public address of a's family.
func (p Peer) PublicIP(a netip.Addr) (netip.Addr, bool) {
	for _, ip := range p.PublicIPs {
		if ip.Is4() == a.Is4() {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

// PublicIPs are those of all peers, each once.
func PublicIPs(peers []Peer) []netip.Addr {
	out := make([]netip.Addr, 0, 2*len(peers))
	for _, p := range peers {
		out = append(out, p.PublicIPs...)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// Outer is the address to send to over a, an underlay of one address family. The
// peer's first address says in which family it receives; reason is why there is
// none.
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

// Source is the host's own address that packets are sent from, that behind the
// first public one.
func (u Underlay) Source() (netip.Addr, error) {
	switch {
	case len(u.Addrs) == 0 || !u.Addrs[0].IsValid():
		return netip.Addr{}, fmt.Errorf("underlay %s has no public address", u.Interface)
	case len(u.Own) == 0:
		return u.Addrs[0].Unmap(), nil
	case !u.Own[0].IsValid():
		return netip.Addr{}, fmt.Errorf("underlay %s has no %s address of its own to send from behind the public %s", u.Interface, Family(u.Addrs[0]), u.Addrs[0])
	}
	return u.Own[0].Unmap(), nil
}

// Family is the address's family in words, for reasons people read.
func Family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// SortedPeers is the peers in the order of their precedence, and beyond that in
// one that depends on them alone: of two that collide always the same is used.
func SortedPeers(peers []Peer) []Peer {
	return slices.SortedFunc(slices.Values(peers), func(a, b Peer) int {
		return cmp.Or(cmp.Compare(a.Precedence, b.Precedence), cmp.Compare(a.Node, b.Node), slices.CompareFunc(a.Subnets, b.Subnets, func(x, y netip.Prefix) int {
			return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Bits(), y.Bits()))
		}))
	})
}

// Claims says of each peer whether its subnets can be routed: they lie in the
// network, do not touch our own, and are nobody else's.
type Claims struct {
	pools, own []netip.Prefix
	taken      map[netip.Prefix]string // node
}

// NewClaims begins with no peer.
func NewClaims(pools, own []netip.Prefix) *Claims {
	return &Claims{pools: pools, own: own, taken: map[netip.Prefix]string{}}
}

// Take claims all subnets of a peer, or none and says why.
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
