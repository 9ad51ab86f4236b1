package registry

import (
	"cmp"
	"fmt"
	"slices"
)

// occupancy records the leases, reservations and unusable records on the slots.
type occupancy struct {
	plan         Plan
	leases       map[uint64]*Lease
	reserved     map[uint64]bool
	reservations []Reservation
	blocked      []slotRange // by bad records
	avoided      []slotRange // by the claim
}

type slotRange struct{ first, last uint64 }

func newOccupancy(s Situation, c Claim) *occupancy {
	o := &occupancy{
		plan:         s.Network.Plan,
		leases:       map[uint64]*Lease{},
		reserved:     map[uint64]bool{},
		reservations: s.Reservations,
	}
	for i := range s.Leases {
		o.leases[s.Leases[i].Slot] = &s.Leases[i]
	}
	for _, r := range s.Reservations {
		o.reserved[r.Slot] = true
	}
	for _, b := range s.Bad {
		if first, last, ok := o.plan.Overlapping(b.Prefix); ok {
			o.blocked = append(o.blocked, slotRange{first, last})
		}
	}
	if slot, err := o.plan.Slot(c.Avoid); err == nil && !o.reservedFor(c, slot) {
		o.avoided = []slotRange{{slot, slot}}
	}
	return o
}

// avoids reports whether the claim prefers any other slot to this one.
func (o *occupancy) avoids(slot uint64) bool {
	return len(o.avoided) > 0 && o.avoided[0].first == slot
}

// reservedFor reports whether the slot is kept for the claim's host.
func (o *occupancy) reservedFor(c Claim, slot uint64) bool {
	return slices.ContainsFunc(o.reservations, func(r Reservation) bool { return r.Slot == slot && r.For(c) })
}

func (o *occupancy) bad(slot uint64) bool {
	return slices.ContainsFunc(o.blocked, func(r slotRange) bool { return r.first <= slot && slot <= r.last })
}

// free reports whether the slot has no lease, no unusable record and no reservation for any host.
func (o *occupancy) free(slot uint64) bool {
	return o.leases[slot] == nil && !o.reserved[slot] && !o.bad(slot)
}

// stillOurs returns the slot that a host is using although the store, which was emptied or set back, says otherwise.
// There must be no record on the slot, or only one that is the host's own and lapsed, or older than the one the host
// had. The slot must not be reserved for another host, and no other slot may be reserved for this host.
//
// own is the host's record in the store: it tells where the host was, not where its containers are. When the host was
// not running all the time, own takes precedence unless it is older than what the host remembers.
func (o *occupancy) stillOurs(c Claim, own *Lease) (Choice, bool) {
	slot, err := o.plan.Slot(c.Prefer)
	if err != nil || o.bad(slot) || o.avoids(slot) || own != nil && own.Slot == slot {
		return Choice{}, false
	}
	if !c.Running && (c.Since == 0 || own != nil && own.ModifyIndex >= c.Since) {
		return Choice{}, false
	}
	choice := Choice{Slot: slot, Existing: o.leases[slot]}
	if l := choice.Existing; l != nil {
		choice.Own = c.Same(*l)
		if choice.Own && l.Held() || !choice.Own && l.ModifyIndex >= c.Since {
			return Choice{}, false
		}
	}
	if o.reservedFor(c, slot) {
		return choice, true
	}
	if o.reserved[slot] || !o.plan.InRange(slot) {
		return Choice{}, false
	}
	for _, r := range o.reservations {
		if l := o.leases[r.Slot]; r.For(c) && !o.bad(r.Slot) && (l == nil || !l.Held()) {
			return Choice{}, false
		}
	}
	return choice, true
}

// Free returns the number of slots in the plan's range that a new host could get at once: slots without a lease, held
// or lapsed, without a reservation, and without an unusable record of set.
func Free(p Plan, set LeaseSet, reservations []Reservation) uint64 {
	s := Situation{Network: Network{Plan: p}, Leases: set.Leases, Reservations: reservations}
	for _, b := range set.Bad {
		if prefix, err := b.Subnet(); err == nil {
			s.Bad = append(s.Bad, BadSlot{Prefix: prefix})
		}
	}
	_, free := newOccupancy(s, Claim{}).gaps()
	return free
}

// pick returns a random free slot: the r-th free one, found by stepping over the sorted occupied ranges.
func (o *occupancy) pick(rnd func(uint64) uint64) (uint64, bool) {
	gaps, free := o.gaps()
	if free == 0 {
		return 0, false
	}
	r := rnd(free)
	for _, g := range gaps {
		if width := g.last - g.first + 1; r < width {
			return g.first + r, true
		} else {
			r -= width
		}
	}
	return 0, false
}

// gaps returns the ranges of free slots and the number of free slots.
func (o *occupancy) gaps() (gaps []slotRange, free uint64) {
	first, last := o.plan.Range()
	used := slices.Concat(o.blocked, o.avoided)
	for slot := range o.leases {
		used = append(used, slotRange{slot, slot})
	}
	for slot := range o.reserved {
		used = append(used, slotRange{slot, slot})
	}
	slices.SortFunc(used, func(a, b slotRange) int { return cmp.Compare(a.first, b.first) })

	next := first
	for _, u := range used {
		if u.last < next {
			continue
		}
		if u.first > last {
			break
		}
		if u.first > next {
			gaps = append(gaps, slotRange{next, u.first - 1})
			free += u.first - next
		}
		next = u.last + 1
	}
	if next <= last {
		gaps = append(gaps, slotRange{next, last})
		free += last - next + 1
	}
	return gaps, free
}

// longestLapsed returns the lease that lapsed longest ago, beyond hold, and is neither reserved nor out of range.
func (o *occupancy) longestLapsed(c Claim) *Lease {
	var best *Lease
	for _, l := range o.leases {
		if l.Held() || l.Lapsed < c.Hold || !o.usable(l.Slot) || o.avoids(l.Slot) {
			continue
		}
		if best == nil || l.Lapsed > best.Lapsed || (l.Lapsed == best.Lapsed && l.ModifyIndex < best.ModifyIndex) {
			best = l
		}
	}
	return best
}

// usable reports whether the slot may be assigned to any host once it is not held.
func (o *occupancy) usable(slot uint64) bool {
	return !o.reserved[slot] && o.plan.InRange(slot) && !o.bad(slot)
}

// lastResort returns the slot to avoid if it is available: there is no record on it, or the host's own, or one that
// lapsed beyond hold.
func (o *occupancy) lastResort(c Claim) (Choice, bool) {
	if len(o.avoided) == 0 || !o.usable(o.avoided[0].first) {
		return Choice{}, false
	}
	slot := o.avoided[0].first
	l := o.leases[slot]
	switch {
	case l == nil:
		return Choice{Slot: slot}, true
	case c.Same(*l):
		return Choice{Slot: slot, Existing: l, Own: true}, true
	case !l.Held() && l.Lapsed >= c.Hold:
		return Choice{Slot: slot, Existing: l}, true
	}
	return Choice{}, false
}

func (o *occupancy) summary() string {
	held, lapsed := 0, 0
	for _, l := range o.leases {
		if l.Held() {
			held++
		} else {
			lapsed++
		}
	}
	return fmt.Sprintf("%d slots: %d held, %d lapsed and kept for their hosts, %d reserved, %d under records that are "+
		"unusable or may be lost", o.plan.Capacity(), held, lapsed, len(o.reserved), len(o.blocked))
}
