package registry

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Choice is the slot that a claim should take, and how to take it.
type Choice struct {
	Slot uint64
	// Existing is the record on the slot, to be replaced at exactly its version; nil means that the slot must have no
	// record.
	Existing *Lease
	// Own means that Existing is this host's own record. When the record is held, its session is the one to adopt.
	Own bool
}

// TakesNew reports whether the claim gets a slot that has no record and that the host was not using until recently.
// Such a claim may have to wait: see claim.LostLeases.
func (c Choice) TakesNew(plan Plan, claim Claim) bool {
	return c.Existing == nil && !claim.TakesBack(plan.Subnets(c.Slot)[0])
}

// Situation is the input of Choose: one consistent view of a network.
type Situation struct {
	Network      Network
	Leases       []Lease
	Bad          []BadSlot // slots with unusable records: never assigned
	Reservations []Reservation
}

// BadSlot is the prefix in the key of an unusable record, and the session that holds the key. When that is the
// claimant's own session, another program overwrote the value, and the claimant may write it again.
type BadSlot struct {
	Prefix      netip.Prefix
	Session     string
	ModifyIndex uint64
}

// Choose selects the slot for a claim, in this order:
//
//   - the slot the host is using, when there is at most an older lapsed record on it;
//   - the host's own lease, held or lapsed, or overwritten under its lock;
//   - its reservation;
//   - the subnet it held before, if that is free;
//   - a free slot without a record;
//   - the slot whose lease lapsed longest ago, beyond the claim's hold.
//
// The slot to avoid comes after all of them, own record or not, unless a reservation keeps it for the host.
//
// A claim with OnlySlot gets the slot of Prefer, without a record or with the host's own lapsed one, or an error:
// ErrHeld, ErrReserved or ErrInvalid. In particular, it never touches a lease that the host itself holds.
//
// rnd(n) returns a number in [0,n). It spreads hosts over the free slots so that many hosts starting at once seldom
// collide. Choose never walks the pool: the work grows only with the number of records. Errors: ErrNetworkFull, and a
// *RivalError of ErrDuplicateNode, ErrDuplicateAddress or ErrSetBack.
func Choose(s Situation, c Claim, rnd func(n uint64) uint64) (Choice, error) {
	if err := duplicates(s.Leases, c); err != nil {
		return Choice{}, err
	}
	taken := newOccupancy(s, c)
	if c.OnlySlot {
		return taken.exact(s.Leases, c)
	}
	own := taken.own(s.Leases, c)
	if choice, ok := taken.stillOurs(c, own); ok {
		if l := choice.Existing; l != nil && !choice.Own && l.Held() {
			err := fmt.Errorf("%w: %s, where this host is, is held again by %s", ErrSetBack, l.Subnet(), l.host())
			return Choice{}, &RivalError{Lease: *l, Err: err}
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
	slot, err := s.Network.Plan.Slot(c.Prefer)
	if err == nil && s.Network.Plan.InRange(slot) && taken.free(slot) && !taken.avoids(slot) {
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

// exact returns the choice of a claim that takes its preferred slot or nothing.
func (o *occupancy) exact(leases []Lease, c Claim) (Choice, error) {
	slot, err := o.plan.Slot(c.Prefer)
	if err != nil {
		return Choice{}, err
	}
	there := o.leases[slot]
	for _, l := range leases {
		switch {
		case l.Held() && c.Same(l):
			return Choice{}, fmt.Errorf("%w: the host itself holds %s", ErrHeld, l.Subnet())
		case l.Slot == slot && l.Held():
			return Choice{}, fmt.Errorf("%w: %s holds %s", ErrHeld, l.host(), l.Subnet())
		case l.Slot == slot && !c.Same(l):
			return Choice{}, fmt.Errorf("%w: the lapsed lease of %s is on %s", ErrHeld, l.host(), l.Subnet())
		}
	}
	switch {
	case o.bad(slot):
		return Choice{}, fmt.Errorf("%w: there is an unusable record on %s", ErrHeld, c.Prefer)
	case there != nil || o.reservedFor(c, slot):
	case o.reserved[slot]:
		return Choice{}, fmt.Errorf("%w: %s", ErrReserved, c.Prefer)
	case !o.plan.InRange(slot):
		return Choice{}, fmt.Errorf("%w: %s is out of the network's range", ErrInvalid, c.Prefer)
	}
	return Choice{Slot: slot, Existing: there, Own: there != nil}, nil
}

// own returns the claim's own record. It prefers a held record to a lapsed one, our node id to our name, and the
// preferred subnet to others.
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

// overwritten returns our own record when its value became unusable under our lock.
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

// Join returns a list as text.
func Join[T fmt.Stringer](list []T) string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.String()
	}
	return strings.Join(out, ", ")
}
