package registry

import (
	"fmt"
	"net/netip"
	"slices"
)

// Choice is the slot a claim should take and how.
type Choice struct {
	Slot uint64
	// Existing is the record that stands on the slot and is to be replaced at
	// exactly its version; nil means the slot must have no record.
	Existing *Lease
	// Own says that Existing is this host's own record; when it is held, its
	// session is the one to adopt.
	Own bool
}

// TakesNew reports whether the claim gets a slot that has no record and that the host was
// not at work on until lately. Such a claim may have to wait: see LostLeases.
func (c Choice) TakesNew(plan Plan, claim Claim) bool {
	return c.Existing == nil && !claim.TakesBack(plan.Subnets(c.Slot)[0])
}

// Situation is what Choose decides on: one consistent view of a network.
type Situation struct {
	Network      Network
	Leases       []Lease
	Bad          []BadSlot // slots that unusable records stand on: never given out
	Reservations []Reservation
}

// BadSlot is the prefix in the key of an unusable record, and the session that
// holds the key: when it is the claimant's own, somebody overwrote its value
// and it may write it again.
type BadSlot struct {
	Prefix      netip.Prefix
	Session     string
	ModifyIndex uint64
}

// Choose picks the slot for a claim, in this order: the slot the host is at work
// on, when nobody but an older lapsed record stands there; the host's own lease,
// held or lapsed, or overwritten under its lock; its reservation; the subnet it held
// before if that is free; a free slot that no record stands on; the slot lapsed
// longest past the claim's hold. The slot to avoid comes after all of them, own
// record or not, unless a reservation keeps it for the host.
//
// rnd(n) returns a number in [0,n) and spreads hosts over the free slots so
// that many starting at once seldom collide. The pool is never walked: the
// work grows with the number of records alone. Errors: ErrNetworkFull, and a
// *RivalError of ErrDuplicateNode, ErrDuplicateAddress or ErrSetBack.
func Choose(s Situation, c Claim, rnd func(n uint64) uint64) (Choice, error) {
	if err := duplicates(s.Leases, c); err != nil {
		return Choice{}, err
	}
	taken := newOccupancy(s, c)
	own := taken.own(s.Leases, c)
	if choice, ok := taken.stillOurs(c, own); ok {
		if l := choice.Existing; l != nil && !choice.Own && l.Held() {
			return Choice{}, &RivalError{Lease: *l, Err: fmt.Errorf("%w: %s, where this host is, is held again by %q (%s, node id %s)",
				ErrSetBack, l.Subnet(), l.Node, joinAddrs(l.PublicIPs), l.NodeID)}
		}
		return choice, nil
	}
	if own != nil {
		return Choice{Slot: own.Slot, Existing: own, Own: true}, nil
	}
	if own := s.overwritten(c); own != nil && !taken.avoids(own.Slot) {
		return Choice{Slot: own.Slot, Existing: own, Own: true}, nil
	}

	for _, r := range s.Reservations {
		if !r.For(c) || taken.bad(r.Slot) {
			continue
		}
		if l := taken.leases[r.Slot]; l == nil || !l.Held() {
			return Choice{Slot: r.Slot, Existing: l}, nil
		}
	}
	if slot, err := s.Network.Plan.Slot(c.Prefer); err == nil && s.Network.Plan.InRange(slot) && taken.free(slot) && !taken.avoids(slot) {
		return Choice{Slot: slot}, nil
	}
	if slot, ok := taken.pick(rnd); ok {
		return Choice{Slot: slot}, nil
	}
	if l := taken.longestLapsed(c); l != nil {
		return Choice{Slot: l.Slot, Existing: l}, nil
	}
	if choice, ok := taken.lastResort(c); ok {
		return choice, nil
	}
	return Choice{}, fmt.Errorf("network %s: %w: %s", s.Network.Name, ErrNetworkFull, taken.summary())
}

// own is the claim's own record: the held one before a lapsed one, our node id
// before our name, the preferred subnet before others.
func (o *occupancy) own(leases []Lease, c Claim) *Lease {
	var best *Lease
	rank := func(l *Lease) int {
		n := 0
		if l.Held() {
			n += 4
		}
		if l.NodeID == c.NodeID {
			n += 2
		}
		if slices.Contains(l.Subnets, c.Prefer) {
			n++
		}
		return n
	}
	for i := range leases {
		l := &leases[i]
		if c.Same(*l) && !o.avoids(l.Slot) && (best == nil || rank(l) > rank(best)) {
			best = l
		}
	}
	return best
}

// overwritten is our own record when its value became unusable under our lock.
func (s Situation) overwritten(c Claim) *Lease {
	for _, b := range s.Bad {
		slot, err := s.Network.Plan.Slot(b.Prefix)
		if err == nil && c.Session != "" && b.Session == c.Session && b.Prefix == s.Network.Plan.Subnets(slot)[0] {
			return &Lease{Network: s.Network.Name, Slot: slot, Subnets: s.Network.Plan.Subnets(slot),
				Session: b.Session, ModifyIndex: b.ModifyIndex}
		}
	}
	return nil
}

// Surplus is the other records held under the node id of a lease just taken, to
// be removed: left by a claim whose outcome was never known, or by a store that
// was set back.
func Surplus(leases []Lease, taken Lease) []Lease {
	return slices.DeleteFunc(slices.Clone(leases), func(l Lease) bool {
		return l.NodeID != taken.NodeID || l.Slot == taken.Slot || !l.Held()
	})
}

func joinAddrs(addrs []netip.Addr) string {
	out := ""
	for i, a := range addrs {
		if i > 0 {
			out += ", "
		}
		out += a.String()
	}
	return out
}
