package registry

import (
	"fmt"
	"slices"
)

// Same reports whether the lease belongs to the claim's host: by node id or, when the state directory was lost, by node
// name. A live lease with another id counts only when it also has our session or one of our addresses, because two live
// hosts cannot share both name and address.
func (c Claim) Same(l Lease) bool {
	if l.NodeID == c.NodeID {
		return true
	}
	if l.Node != c.Node {
		return false
	}
	return !l.Held() || l.Session == c.Session || SameEndpoint(l, c.host()) && SameMachine(l, c.host())
}

// RivalError is ErrDuplicateNode, ErrDuplicateAddress or ErrSetBack, with the lease that conflicts with the claim.
type RivalError struct {
	Lease Lease
	Err   error
}

func (e *RivalError) Error() string { return e.Err.Error() }
func (e *RivalError) Unwrap() error { return e.Err }

// Duplicate returns an error if a live lease belongs to another host that could be mistaken for the claim's host
// because it has the same name, node id or address. Hosts behind one NAT have the same address and different ports. The
// error is a *RivalError of ErrDuplicateNode or ErrDuplicateAddress and names both hosts with their addresses.
// Duplicate returns nil when there is no such conflict.
//
// A lease with our node id and none of our addresses may also be ours from before this host moved. Only a running host
// can tell: the lease is its own when the record is no newer than the one it wrote.
func Duplicate(l Lease, c Claim) error {
	if !l.Held() {
		return nil
	}
	moved := l.ModifyIndex < c.Since || l.ModifyIndex == c.Since && c.Running
	var kind error
	switch {
	// This also applies under our session, which a copied state directory has too.
	case l.NodeID == c.NodeID && !SameMachine(l, c.host()) && !moved:
		kind = fmt.Errorf("%w: the node id was copied from another machine", ErrDuplicateNode)
	case c.Same(l), l.Session == c.Session:
		return nil
	case l.Node == c.Node:
		kind = ErrDuplicateNode
	case SameEndpoint(l, c.host()):
		kind = ErrDuplicateAddress
	default:
		return nil
	}
	return &RivalError{l, fmt.Errorf("%w: host %s holds %s; this host is %s", kind, l.host(), l.Subnet(), c.host().host())}
}

// IsLater reports whether a lease said later than own, which is this host's, what both say of their hosts. This host
// keeps its name and addresses then: otherwise any host could stop another one with a record that names it.
func IsLater(l, own Lease) bool {
	return l.CreateIndex > own.CreateIndex || l.ModifyIndex > own.ModifyIndex
}

// ownRecord returns the record that shows what the claim's host has said of itself until now, nil for none: one that
// the claim's session holds or, if the host has been running since it wrote it, the lapsed one on its subnet. A host
// that has just started may be one that another of the same name or address has replaced.
func ownRecord(leases []Lease, c Claim) (own *Lease) {
	for _, l := range leases {
		isUsed := l.Subnet() == c.Prefer
		isOwn := l.Held() && l.Session == c.Session ||
			!l.Held() && isUsed && c.Running && c.Since != 0 && l.ModifyIndex >= c.Since
		if l.NodeID == c.NodeID && isOwn && (own == nil || isUsed) {
			own = &l
		}
	}
	return own
}

// Contradicts returns Duplicate's error for a lease and a claim of the host whose record is own, nil for none. It
// returns nil if own already has all that the claim has in common with the lease: otherwise any host could stop another
// one with a record that names it.
func Contradicts(l Lease, c Claim, own *Lease) error {
	err := Duplicate(l, c)
	if err == nil || own == nil || l.NodeID == c.NodeID {
		return err
	}
	if l.Node == c.Node && l.Node != own.Node || SameEndpoint(l, c.host()) && !SameEndpoint(l, *own) {
		return err
	}
	return nil
}

// duplicates returns the first conflict of all leases, preferring one with another node id: a lease with our own node
// id may turn out to be ours.
//
// A running host whose record is lost takes it back even beside a lease that is older than its record was. A store that
// was set back shows a host again that this one has replaced, and refusing would leave our slot to the next host that
// claims.
func duplicates(leases []Lease, c Claim) (first error) {
	isCurrent := func(l Lease) bool { return l.NodeID == c.NodeID && l.ModifyIndex >= c.Since }
	lost := c.Running && !slices.ContainsFunc(leases, isCurrent)
	own := ownRecord(leases, c)
	for _, l := range leases {
		if own != nil && own.Subnet() == c.Prefer && l.NodeID == c.NodeID && l.Slot != own.Slot {
			continue
		}
		err := Contradicts(l, c, own)
		if err != nil && l.NodeID != c.NodeID {
			if lost && l.ModifyIndex < c.Since {
				continue
			}
			return err
		}
		if first == nil {
			first = err
		}
	}
	return first
}
