package registry_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/seed"
	"github.com/lenonet/leno/registry"
)

// outcome is the set of results that the model allows: any of the slots, or any of the errors.
type outcome struct {
	slots []uint64
	own   bool
	errs  []error
}

// model implements the order of choice as directly as possible, walking every slot of a small network.
func model(s registry.Situation, c registry.Claim) outcome {
	share := func(a, b []netip.Addr) bool {
		return slices.ContainsFunc(a, func(ip netip.Addr) bool { return slices.Contains(b, ip) })
	}
	shares := func(l registry.Lease) bool { return share(l.PublicIPs, c.PublicIPs) }
	keptFor := func(r registry.Reservation) bool {
		return r.Node == c.Node && r.NodeID == "" || r.NodeID == c.NodeID && r.Node == ""
	}
	avoid := func(slot uint64) bool {
		return s.Network.Plan.Subnets(slot)[0] == c.Avoid &&
			!slices.ContainsFunc(s.Reservations, func(r registry.Reservation) bool { return r.Slot == slot && keptFor(r) })
	}
	lost := c.Running
	for _, l := range s.Leases {
		lost = lost && (l.NodeID != c.NodeID || l.ModifyIndex < c.Since)
	}
	// No lease keeps the host from what its own record says already.
	mine := func(l registry.Lease) bool {
		if l.Held() {
			return l.Session == c.Session && l.NodeID == c.NodeID
		}
		return c.Running && c.Since > 0 && l.ModifyIndex >= c.Since && l.NodeID == c.NodeID &&
			slices.Contains(l.Subnets[:1], c.Prefer)
	}
	isSaid := func(l registry.Lease) bool {
		i := slices.IndexFunc(s.Leases, func(l registry.Lease) bool { return mine(l) && l.Subnets[0] == c.Prefer })
		if i < 0 {
			i = slices.IndexFunc(s.Leases, mine)
		}
		return i >= 0 && (l.Node != c.Node || s.Leases[i].Node == c.Node) &&
			(!shares(l) || share(l.PublicIPs, s.Leases[i].PublicIPs))
	}
	isSecond := func(l registry.Lease) bool { // beside the own record on the slot in use
		return l.Subnets[0] != c.Prefer &&
			slices.ContainsFunc(s.Leases, func(l registry.Lease) bool { return mine(l) && l.Subnets[0] == c.Prefer })
	}
	var out outcome
	byRank := map[int][]uint64{}
	for _, l := range s.Leases {
		id, name, session := l.NodeID == c.NodeID, l.Node == c.Node, l.Held() && l.Session == c.Session
		var own bool
		switch {
		case l.Held() && id && !isSecond(l) && !shares(l) && (l.ModifyIndex > c.Since || l.ModifyIndex == c.Since && !c.Running):
			out.errs = append(out.errs, registry.ErrDuplicateNode)
		case !l.Held() || session:
			own = id || name
		case id, name && shares(l):
			own = true
		case lost && l.ModifyIndex < c.Since, isSaid(l):
		case name:
			out.errs = append(out.errs, registry.ErrDuplicateNode)
		case shares(l):
			out.errs = append(out.errs, registry.ErrDuplicateAddress)
		}
		if own && !avoid(l.Slot) {
			rank := 0
			for i, better := range []bool{slices.Contains(l.Subnets, c.Prefer), id, l.Held()} {
				if better {
					rank += 1 << i
				}
			}
			byRank[rank] = append(byRank[rank], l.Slot)
		}
	}
	if len(out.errs) > 0 {
		return out
	}
	first, last := s.Network.Plan.Range()
	on := func(slot uint64) *registry.Lease {
		for i := range s.Leases {
			if s.Leases[i].Slot == slot {
				return &s.Leases[i]
			}
		}
		return nil
	}
	bad := func(slot uint64) bool {
		return slices.ContainsFunc(s.Bad, func(b registry.BadSlot) bool {
			return slices.ContainsFunc(s.Network.Plan.Subnets(slot), b.Prefix.Overlaps)
		})
	}
	reserved := func(slot uint64) bool {
		return slices.ContainsFunc(s.Reservations, func(r registry.Reservation) bool { return r.Slot == slot })
	}
	same := func(l *registry.Lease) bool {
		return l.NodeID == c.NodeID || l.Node == c.Node && (!l.Held() || l.Session == c.Session || shares(*l))
	}
	var own *registry.Lease
	for rank := 7; rank >= 0 && own == nil; rank-- {
		if len(byRank[rank]) > 0 {
			own = on(byRank[rank][0])
		}
	}
	remembers := c.Running || c.Since > 0 && (own == nil || own.ModifyIndex < c.Since)
	if slot, err := s.Network.Plan.Slot(c.Prefer); err == nil && remembers && !bad(slot) && !avoid(slot) && (own == nil || own.Slot != slot) {
		l := on(slot)
		stands := l != nil && (same(l) && l.Held() || !same(l) && l.ModifyIndex >= c.Since)
		wanted, here := false, false // by a reservation that is available
		for _, r := range s.Reservations {
			if keptFor(r) && r.Slot == slot {
				here = true
			} else if l := on(r.Slot); keptFor(r) && !bad(r.Slot) && (l == nil || !l.Held()) {
				wanted = true
			}
		}
		if !stands && (here || !wanted && !reserved(slot) && first <= slot && slot <= last) {
			if l != nil && !same(l) && l.Held() {
				return outcome{errs: []error{registry.ErrSetBack}}
			}
			return outcome{slots: []uint64{slot}, own: l != nil && same(l)}
		}
	}
	for rank := 7; rank >= 0; rank-- {
		if len(byRank[rank]) > 0 {
			return outcome{slots: byRank[rank], own: true}
		}
	}

	for _, r := range s.Reservations {
		if l := on(r.Slot); keptFor(r) && !bad(r.Slot) && (l == nil || !l.Held()) {
			return outcome{slots: []uint64{r.Slot}}
		}
	}
	var free []uint64
	longest := time.Duration(-1)
	var lapsed []uint64
	for slot := first; slot <= last; slot++ {
		l := on(slot)
		switch {
		case reserved(slot) || bad(slot) || avoid(slot):
		case l == nil:
			if s.Network.Plan.Subnets(slot)[0] == c.Prefer {
				return outcome{slots: []uint64{slot}}
			}
			free = append(free, slot)
		case !l.Held() && l.Lapsed >= c.Hold && l.Lapsed >= longest:
			if l.Lapsed > longest {
				lapsed = nil
			}
			longest, lapsed = l.Lapsed, append(lapsed, slot)
		}
	}
	if len(free) > 0 {
		return outcome{slots: free}
	}
	if len(lapsed) > 0 {
		return outcome{slots: lapsed}
	}
	for slot := first; slot <= last; slot++ {
		if l := on(slot); avoid(slot) && !reserved(slot) && !bad(slot) {
			own := l != nil && same(l)
			if l == nil || own || !l.Held() && l.Lapsed >= c.Hold {
				return outcome{slots: []uint64{slot}, own: own}
			}
		}
	}
	return outcome{errs: []error{registry.ErrNetworkFull}}
}

func TestChooseModel(t *testing.T) {
	rnd := seed.Rand(t)
	for step := range 10000 {
		n := registry.Network{Name: "default", Plan: mustPlan(t, pool("10.7.0.0/21", 24, "10.7.1.0", "10.7.6.0"))}
		if rnd.IntN(2) == 0 {
			n.Plan = mustPlan(t, pool("10.7.0.0/22", 24), pool("fd00:5::/60", 64))
		}
		size := uint64(1) << (n.Plan[0].SubnetLen - n.Plan[0].Prefix.Bits())
		s := registry.Situation{Network: n}
		crowd := rnd.IntN(11)
		for slot := range size {
			if rnd.IntN(10) < crowd {
				i := rnd.IntN(12)
				l := held(n, slot, i)
				if rnd.IntN(2) == 0 {
					l = lapsedFor(n, slot, i, time.Duration(rnd.IntN(4))*time.Hour)
				}
				if rnd.IntN(6) == 0 {
					l.Node = fmt.Sprintf("host-%d", rnd.IntN(12))
				}
				if rnd.IntN(6) == 0 {
					l.PublicIPs = []netip.Addr{addr(rnd.IntN(12)), addr(rnd.IntN(12))}
				}
				s.Leases = append(s.Leases, l)
			}
			if rnd.IntN(8) == 0 {
				r := reservation(n, slot, fmt.Sprintf("host-%d", rnd.IntN(12)), "")
				if rnd.IntN(2) == 0 {
					r.Node, r.NodeID = "", fmt.Sprintf("id-%d", rnd.IntN(12))
				}
				s.Reservations = append(s.Reservations, r)
			}
			if rnd.IntN(10) == 0 {
				p := n.Plan.Subnets(slot)[0]
				s.Bad = append(s.Bad, registry.BadSlot{Prefix: netip.PrefixFrom(p.Addr(), p.Bits()+rnd.IntN(3)-1).Masked()})
			}
		}
		rnd.Shuffle(len(s.Leases), func(i, j int) { s.Leases[i], s.Leases[j] = s.Leases[j], s.Leases[i] })
		c := claimOf(rnd.IntN(12))
		if rnd.IntN(2) == 0 {
			c.Prefer = n.Plan.Subnets(rnd.Uint64N(size))[0]
			c.Running = rnd.IntN(3) == 0
			if rnd.IntN(2) == 0 {
				c.Since = rnd.Uint64N(size + 2)
			}
		}
		if rnd.IntN(2) == 0 {
			c.Avoid = n.Plan.Subnets(rnd.Uint64N(size))[0]
			if c.Prefer.IsValid() && rnd.IntN(2) == 0 {
				c.Avoid = c.Prefer
			}
		}
		if rnd.IntN(3) == 0 {
			c.Session = fmt.Sprintf("session-%d", rnd.IntN(12))
		}
		c.Hold = time.Duration(rnd.IntN(3)) * time.Hour

		want := model(s, c)
		got, err := registry.Choose(s, c, rnd.Uint64N)
		switch {
		case len(want.errs) > 0:
			if !slices.ContainsFunc(want.errs, func(e error) bool { return errors.Is(err, e) }) {
				t.Fatalf("step %d: got %+v, %v, want one of %v", step, got, err, want.errs)
			}
		case err != nil || !slices.Contains(want.slots, got.Slot) || got.Own != want.own:
			t.Fatalf("step %d: got slot %d, own %v, %v, want one of %v, own %v\n%+v\n%+v", step, got.Slot, got.Own, err, want.slots, want.own, s, c)
		default:
			stands := slices.IndexFunc(s.Leases, func(l registry.Lease) bool { return l.Slot == got.Slot })
			if (stands >= 0) != (got.Existing != nil) || stands >= 0 && got.Existing != &s.Leases[stands] {
				t.Fatalf("step %d: slot %d replaces %+v, on it stands %d", step, got.Slot, got.Existing, stands)
			}
		}
	}
}
