package registrytest

import (
	"net/netip"
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
		set, err := other.Reservations(s.ctx(), n)
		s.ok(err)
		s.equal("slots", reservedSlots(set), []uint64{20, 100})
		byID.Network, byID.Slot, byID.ModifyIndex = n.Name, 20, set.Reservations[0].ModifyIndex
		byName.Network, byName.Slot, byName.ModifyIndex = n.Name, 100, set.Reservations[1].ModifyIndex
		s.equal("set", set, registry.ReservationSet{Reservations: []registry.Reservation{byID, byName}})
		value, _, _ := s.store.Get(s.T, s.reservationKey(n, 20))
		s.equal("value", string(value), `{"version":1,"subnet":"10.5.20.0/24","node_id":"id-y"}`)

		s.ok(r.RemoveReservation(s.ctx(), n.Name, byName.Subnet))
		s.wantErr(r.RemoveReservation(s.ctx(), n.Name, byName.Subnet), registry.ErrReservationNotFound)
		set, err = r.Reservations(s.ctx(), n)
		s.ok(err)
		s.equal("slots", reservedSlots(set), []uint64{20})
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
			{"no host", registry.Reservation{Subnet: n.Plan.Subnets(11)[0]}, registry.ErrInvalid},
			{"two hosts", registry.Reservation{Subnet: n.Plan.Subnets(11)[0], Node: "a", NodeID: "b"}, registry.ErrInvalid},
			{"no subnet", registry.Reservation{Node: "a"}, registry.ErrInvalid},
			{"outside", registry.Reservation{Subnet: netip.MustParsePrefix("10.6.1.0/24"), Node: "a"}, registry.ErrInvalid},
			{"another length", registry.Reservation{Subnet: netip.MustParsePrefix("10.5.1.0/25"), Node: "a"}, registry.ErrInvalid},
			{"host bits", registry.Reservation{Subnet: netip.MustParsePrefix("10.5.1.1/24"), Node: "a"}, registry.ErrInvalid},
		} {
			s.Run(tt.name, func(t *testing.T) {
				(&suite{T: t, store: s.store}).wantErr(r.AddReservation(s.ctx(), n, tt.give, false), tt.want)
			})
		}
		set, err := r.Reservations(s.ctx(), n)
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
	{"leaves leases alone", func(s *suite) {
		n := s.network("default", wide)
		r := s.open()
		c := s.claim(0)
		l := s.acquire(r, n, c)
		s.ok(r.AddReservation(s.ctx(), n, registry.Reservation{Subnet: l.Subnet(), Node: "host-x"}, false))
		s.stays(n, l)
		s.equal("repeated", s.acquire(r, n, c), l)
		s.ok(r.RemoveReservation(s.ctx(), n.Name, l.Subnet()))
		s.stays(n, l)
	}},
	{"is taken over from a lapsed host", func(s *suite) {
		n := s.network("default", wide)
		r := s.open()
		l := s.acquire(r, n, s.claim(0))
		s.ok(r.AddReservation(s.ctx(), n, registry.Reservation{Subnet: l.Subnet(), Node: s.claim(1).Node}, false))
		s.store.EndSession(s.T, l.Session)
		s.equal("slot", s.acquire(s.open(), n, s.claim(1)).Slot, l.Slot)
	}},
}
