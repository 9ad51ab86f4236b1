package registrytest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/lenonet/leno/registry"
)

var reservationTests = []test{
	{"add, list, remove", func(s *suite) {
		n := s.network("default", wide)
		r, other := s.open(), s.open()
		byName := registry.Reservation{Subnet: netip.MustParsePrefix("10.5.100.0/24"), Node: "host-x"}
		byID := registry.Reservation{Subnet: netip.MustParsePrefix("10.5.20.0/24"), NodeID: "id-y"}
		for range 2 { // the second time changes nothing
			s.ok(r.AddReservation(s.ctx(), n, byName, false))
			s.ok(other.AddReservation(s.ctx(), n, byID, false))
		}
		set, _, err := other.WatchReservations(s.ctx(), n, 0)
		s.ok(err)
		s.equal("slots", reservedSlots(set), []uint64{20, 100})
		byID.Network, byID.Slot, byID.ModifyIndex = n.Name, 20, set.Reservations[0].ModifyIndex
		byName.Network, byName.Slot, byName.ModifyIndex = n.Name, 100, set.Reservations[1].ModifyIndex
		s.equal("set", set, registry.ReservationSet{Reservations: []registry.Reservation{byID, byName}})
		value, _, _ := s.store.Get(s.T, s.reservationKey(n, 20))
		s.equal("value", string(value), `{"version":1,"subnet":"10.5.20.0/24","node_id":"id-y"}`)

		s.ok(r.RemoveReservation(s.ctx(), n.Name, byName.Subnet))
		s.wantErr(r.RemoveReservation(s.ctx(), n.Name, byName.Subnet), registry.ErrReservationNotFound)
		set, _, err = r.WatchReservations(s.ctx(), n, 0)
		s.ok(err)
		s.equal("slots", reservedSlots(set), []uint64{20})
	}},
	{"watch", func(s *suite) {
		n := s.network("default", wide)
		r, other := s.open(), s.open()
		_, index, err := other.WatchReservations(s.ctx(), n, 0)
		s.ok(err)
		see := func(change error, want ...uint64) {
			s.Helper()
			s.ok(change)
			for {
				set, next, err := other.WatchReservations(s.ctx(), n, index)
				s.ok(err)
				if index = next; slices.Equal(reservedSlots(set), want) {
					return
				}
			}
		}
		kept := registry.Reservation{Subnet: netip.MustParsePrefix("10.5.20.0/24"), NodeID: "id-y"}
		see(r.AddReservation(s.ctx(), n, kept, false), 20)
		s.blocks("WatchReservations", func(ctx context.Context) error {
			_, _, err := other.WatchReservations(ctx, n, index)
			return err
		})
		see(r.AddReservation(s.ctx(), n, registry.Reservation{Subnet: netip.MustParsePrefix("10.5.30.0/24"), Node: "host-x"}, false), 20, 30)
		see(r.RemoveReservation(s.ctx(), n.Name, kept.Subnet), 30)
		set, _, err := other.WatchReservations(s.ctx(), n, registry.Known) // which does not wait
		s.ok(err)
		s.equal("known slots", reservedSlots(set), []uint64{30})
	}},
	{"refused", func(s *suite) {
		n := s.network("default", wide)
		r := s.open()
		s.ok(r.AddReservation(s.ctx(), n, registry.Reservation{Subnet: n.Plan.Subnets(9)[0], Node: "host-x"}, false))
		s.ok(r.AddReservation(s.ctx(), n, registry.Reservation{Subnet: n.Plan.Subnets(10)[0], NodeID: "id-y"}, false))
		for _, tt := range []struct {
			name string
			give registry.Reservation
			want error
		}{
			{"slot of another by name", registry.Reservation{Subnet: n.Plan.Subnets(9)[0], Node: "host-z"}, registry.ErrReserved},
			{"slot of another by id", registry.Reservation{Subnet: n.Plan.Subnets(9)[0], NodeID: "host-x"}, registry.ErrReserved},
			{"second of the host by name", registry.Reservation{Subnet: n.Plan.Subnets(11)[0], Node: "host-x"}, registry.ErrReserved},
			{"second of the host by id", registry.Reservation{Subnet: n.Plan.Subnets(11)[0], NodeID: "id-y"}, registry.ErrReserved},
			{"second of the host by id in upper case", registry.Reservation{Subnet: n.Plan.Subnets(11)[0], NodeID: "ID-Y"},
				registry.ErrReserved},
			{"no host", registry.Reservation{Subnet: n.Plan.Subnets(11)[0]}, registry.ErrInvalid},
			{"two hosts", registry.Reservation{Subnet: n.Plan.Subnets(11)[0], Node: "a", NodeID: "b"}, registry.ErrInvalid},
			{"no subnet", registry.Reservation{Node: "a"}, registry.ErrInvalid},
			{"outside", registry.Reservation{Subnet: netip.MustParsePrefix("10.6.1.0/24"), Node: "a"}, registry.ErrInvalid},
			{"another length", registry.Reservation{Subnet: netip.MustParsePrefix("10.5.1.0/25"), Node: "a"}, registry.ErrInvalid},
			{"before the range", registry.Reservation{Subnet: n.Plan.Subnets(0)[0], Node: "a"}, registry.ErrInvalid},
			{"host bits", registry.Reservation{Subnet: netip.MustParsePrefix("10.5.1.1/24"), Node: "a"}, registry.ErrInvalid},
		} {
			s.Run(tt.name, func(t *testing.T) {
				(&suite{T: t, store: s.store}).wantErr(r.AddReservation(s.ctx(), n, tt.give, false), tt.want)
			})
		}
		set, _, err := r.WatchReservations(s.ctx(), n, 0)
		s.ok(err)
		s.equal("slots", reservedSlots(set), []uint64{9, 10})
		other := s.network("default-2", wide)
		s.ok(r.AddReservation(s.ctx(), other, registry.Reservation{Subnet: n.Plan.Subnets(11)[0], Node: "host-x"}, false))
	}},
	{"honoured", func(s *suite) {
		n := s.network("default", wide)
		r := s.open()
		byName, byID := s.claim(0), s.claim(1)
		s.ok(r.AddReservation(s.ctx(), n, registry.Reservation{Subnet: n.Plan.Subnets(40)[0], Node: byName.Node}, false))
		s.ok(r.AddReservation(s.ctx(), n, registry.Reservation{Subnet: n.Plan.Subnets(41)[0], NodeID: byID.NodeID}, false))
		byName.Prefer = n.Plan.Subnets(50)[0] // the reservation comes first
		s.equal("slot", s.acquire(s.open(), n, byName).Slot, uint64(40))
		s.equal("slot", s.acquire(s.open(), n, byID).Slot, uint64(41))
	}},
	{"not given to others", func(s *suite) {
		n := s.network("default", small)
		r := s.open()
		s.ok(r.AddReservation(s.ctx(), n, registry.Reservation{Subnet: n.Plan.Subnets(2)[0], Node: "host-x"}, false))
		for i := range 2 {
			c := s.claim(i)
			c.Prefer = n.Plan.Subnets(2)[0]
			if l := s.acquire(s.open(), n, c); l.Slot == 2 {
				s.Fatal("a reserved slot was given away")
			}
		}
		_, err := s.open().Acquire(s.ctx(), n, s.claim(2))
		s.wantErr(err, registry.ErrNetworkFull)
		c := s.claim(3)
		c.Node = "host-x"
		l := s.acquire(r, n, c)
		s.equal("slot", l.Slot, uint64(2))

		// It outlives its lease, lapsed or released.
		s.store.EndSession(s.T, l.Session)
		s.lapsed(r, n, 2)
		c2 := s.claim(4)
		c2.Hold = 0
		_, err = r.Acquire(s.ctx(), n, c2)
		s.wantErr(err, registry.ErrNetworkFull)
		s.ok(r.Revoke(s.ctx(), n.Name, l.Subnet()))
		_, err = r.Acquire(s.ctx(), n, c2)
		s.wantErr(err, registry.ErrNetworkFull)
		s.ok(r.RemoveReservation(s.ctx(), n.Name, l.Subnet()))
		s.equal("slot", s.acquire(r, n, c2).Slot, uint64(2))
	}},
	{"over a live lease", func(s *suite) {
		n := s.network("default", wide)
		r, operator := s.open(), s.open()
		c := s.claim(0)
		l := s.acquire(r, n, c)
		for _, other := range []registry.Reservation{
			{Subnet: l.Subnet(), Node: "host-x"},
			{Subnet: l.Subnet(), NodeID: "id-x"},
			{Subnet: l.Subnet(), NodeID: c.Node}, // a name is no id
			{Subnet: l.Subnet(), Node: c.NodeID},
		} {
			s.wantErr(operator.AddReservation(s.ctx(), n, other, false), registry.ErrHeld,
				l.Node, l.NodeID, l.PublicIPs[0].String(), l.Subnet().String())
			s.equal("reservations", s.store.Keys(s.T, "reservations", n.Name), []string(nil))
		}
		for _, own := range []registry.Reservation{{Subnet: l.Subnet(), Node: c.Node}, {Subnet: l.Subnet(), NodeID: c.NodeID}} {
			s.ok(operator.AddReservation(s.ctx(), n, own, false))
			s.stays(n, l)
			s.ok(operator.RemoveReservation(s.ctx(), n.Name, l.Subnet()))
			s.stays(n, l)
		}

		forced := registry.Reservation{Subnet: l.Subnet(), Node: "host-x"}
		s.ok(operator.AddReservation(s.ctx(), n, forced, true))
		s.ok(operator.AddReservation(s.ctx(), n, forced, false)) // it exists already
		s.wantErr(operator.AddReservation(s.ctx(), n, registry.Reservation{Subnet: l.Subnet(), Node: "host-z"}, true), registry.ErrReserved)
		s.stays(n, l)
		s.equal("repeated", s.acquire(r, n, c), l)
		s.ok(operator.RemoveReservation(s.ctx(), n.Name, l.Subnet()))
		s.stays(n, l)
		s.equal("repeated", s.acquire(r, n, c), l)
	}},
	{"over a lapsed lease", func(s *suite) {
		n := s.network("default", wide)
		l := s.acquire(s.open(), n, s.claim(0))
		s.store.EndSession(s.T, l.Session)
		s.ok(s.open().AddReservation(s.ctx(), n, registry.Reservation{Subnet: l.Subnet(), Node: s.claim(1).Node}, false))
		// Either host may get the slot first. The host that had it loses no more than it would without a reservation.
		s.equal("slot", s.acquire(s.open(), n, s.claim(1)).Slot, l.Slot)
		if again := s.acquire(s.open(), n, s.claim(0)); again.Slot == l.Slot {
			s.Fatal("took a slot that another host holds")
		}
	}},
	{"over a lapsed lease whose host returns", func(s *suite) {
		n := s.network("default", wide)
		l := s.acquire(s.open(), n, s.claim(0))
		s.store.EndSession(s.T, l.Session)
		s.ok(s.open().AddReservation(s.ctx(), n, registry.Reservation{Subnet: l.Subnet(), Node: s.claim(1).Node}, false))
		again := s.acquire(s.open(), n, s.claim(0))
		s.equal("slot", again.Slot, l.Slot)
		other := s.acquire(s.open(), n, s.claim(1))
		if other.Slot == l.Slot {
			s.Fatal("took a slot that another host holds")
		}
		s.stays(n, again)
	}},
	{"over an unusable record", func(s *suite) {
		n := s.network("default", wide)
		r := s.open()
		s.store.Put(s.T, s.leaseKey(n, 9), []byte(`{`))
		s.ok(r.AddReservation(s.ctx(), n, registry.Reservation{Subnet: n.Plan.Subnets(9)[0], Node: "host-x"}, false))
		l := s.acquire(r, n, s.claim(0))
		s.store.Put(s.T, s.leaseKey(n, l.Slot), []byte(`{`)) // and locked
		kept := registry.Reservation{Subnet: l.Subnet(), Node: "host-y"}
		s.wantErr(r.AddReservation(s.ctx(), n, kept, false), registry.ErrHeld, s.leaseKey(n, l.Slot), l.Session)
		s.ok(r.AddReservation(s.ctx(), n, kept, true))
	}},
	{"outlives restarts by name", func(s *suite) {
		s.outlives(func(c registry.Claim) registry.Reservation { return registry.Reservation{Node: c.Node} },
			func(c *registry.Claim, i int) { c.NodeID = fmt.Sprintf("id-%d", i) })
	}},
	{"outlives restarts by node id", func(s *suite) {
		s.outlives(func(c registry.Claim) registry.Reservation { return registry.Reservation{NodeID: c.NodeID} },
			func(c *registry.Claim, i int) { c.Node = fmt.Sprintf("host-%d", i) })
	}},
}

// outlives takes a host with a reservation through 15 restarts of all kinds, sometimes with another host in between
// that wants the same slot. renew changes the part of the host's identity that the reservation does not depend on.
func (s *suite) outlives(kept func(registry.Claim) registry.Reservation, renew func(*registry.Claim, int)) {
	s.Helper()
	n := s.network("default", wide)
	c, rival := s.claim(0), s.claim(1)
	v := kept(c)
	v.Subnet = n.Plan.Subnets(40)[0]
	s.ok(s.open().AddReservation(s.ctx(), n, v, false))
	r := s.open()
	for i := range 15 {
		l, err := r.Acquire(s.ctx(), n, c)
		s.ok(err)
		if l.Slot != 40 {
			s.Fatalf("restart %d: slot %d, want 40", i, l.Slot)
		}
		c.Session, c.Prefer = l.Session, l.Subnet()
		switch i % 5 {
		case 0: // the agent returns at once
			r = s.open()
			continue
		case 1: // the host was away
			s.store.EndSession(s.T, l.Session)
		case 2: // its disk was replaced, or it was renamed
			renew(&c, i)
			c.Session, c.Prefer = "", netip.Prefix{}
		case 3: // it released the slot
			s.ok(r.Release(s.ctx(), l))
		case 4: // the lease was revoked, and the host has forgotten what it had
			s.ok(r.Revoke(s.ctx(), n.Name, l.Subnet()))
			c.Session, c.Prefer = "", netip.Prefix{}
		}
		if i%5 > 2 {
			rival.Prefer, rival.Hold = v.Subnet, 0
			other := s.open()
			l, err := other.Acquire(s.ctx(), n, rival)
			s.ok(err)
			if l.Slot == 40 {
				s.Fatalf("restart %d: another host got the reserved slot", i)
			}
			s.ok(other.Release(s.ctx(), l))
			r = s.open()
		}
	}
	set, _, err := r.WatchReservations(s.ctx(), n, 0)
	s.ok(err)
	s.equal("reserved", reservedSlots(set), []uint64{40})
}
