package registry

import (
	"fmt"
	"net/netip"
	"slices"
)

// Same says whether the lease belongs to the claim's host: by node id, or, when
// the state directory was lost, by node name. A live lease under another id
// counts only when it also carries one of our addresses, since two live hosts
// cannot share both.
func (c Claim) Same(l Lease) bool {
	if l.NodeID == c.NodeID {
		return true
	}
	if l.Node != c.Node {
		return false
	}
	return !l.Held() || l.Session == c.Session || shareAddress(l, c)
}

func shareAddress(l Lease, c Claim) bool {
	return slices.ContainsFunc(l.PublicIPs, func(a netip.Addr) bool { return slices.Contains(c.PublicIPs, a) })
}

// Duplicate says why a live lease is of another host that passes for the
// claim's: it has the same name, node id or address. It is nil when there is no
// such contradiction, and wraps ErrDuplicateNode or ErrDuplicateAddress and
// names both hosts with their addresses otherwise.
func Duplicate(l Lease, c Claim) error {
	if !l.Held() {
		return nil
	}
	both := fmt.Sprintf("host %q (%s, node id %s) holds %s; this host is %q (%s, node id %s)",
		l.Node, joinAddrs(l.PublicIPs), l.NodeID, l.Subnet(), c.Node, joinAddrs(c.PublicIPs), c.NodeID)
	switch {
	case l.NodeID == c.NodeID && l.Node != c.Node && !shareAddress(l, c):
		// Also under our session: a copied state directory has that too. What is
		// older than our own record is ours of before, in a store set back.
		if l.ModifyIndex < c.Since {
			return nil
		}
		return fmt.Errorf("%w: the node id was copied from another machine: %s", ErrDuplicateNode, both)
	case c.Same(l), l.Session == c.Session:
		return nil
	case l.Node == c.Node:
		return fmt.Errorf("%w: %s", ErrDuplicateNode, both)
	case shareAddress(l, c):
		return fmt.Errorf("%w: %s", ErrDuplicateAddress, both)
	}
	return nil
}
