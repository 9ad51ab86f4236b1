package registrytest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/lenonet/leno/registry"
)

// keptTests cover networks that are created together with reservations.
var keptTests = []test{
	{"from the first moment", func(s *suite) {
		n := s.definition("default", wide)
		kept := s.kept(n, 1, 250)
		s.ok(s.open().PutNetwork(s.ctx(), n, kept...))
		s.wantKept(n, kept)
		c := s.claim(0)
		c.Node = kept[199].Node
		s.equal("slot", s.acquire(s.open(), n, c).Slot, kept[199].Slot)
	}},
	{"of a plan with defaults", func(s *suite) {
		n := s.definition("default", wide)
		kept := s.kept(n, 9, 2)
		n.Plan = registry.Plan{{Prefix: netip.MustParsePrefix(wide)}}
		s.ok(s.open().PutNetwork(s.ctx(), n, kept...))
		s.wantKept(s.definition("default", wide), kept)
	}},
	{"some are there", func(s *suite) {
		n := s.definition("default", wide)
		kept := s.kept(n, 1, 20)
		r := s.open()
		for _, v := range []registry.Reservation{kept[3], kept[7]} {
			s.ok(r.AddReservation(s.ctx(), n, v, false))
		}
		s.ok(r.PutNetwork(s.ctx(), n, kept...))
		s.wantKept(n, kept)
	}},
	{"refused", func(s *suite) {
		// A deleted network has left a lease and reservations.
		n := s.network("default", wide)
		r := s.open()
		holder := s.claim(0)
		holder.Prefer = n.Plan.Subnets(100)[0]
		l := s.acquire(r, n, holder)
		s.ok(r.DeleteNetwork(s.ctx(), n.Name))
		n = s.definition("default", wide)
		before := s.kept(n, 9, 2)
		for _, v := range before {
			s.ok(r.AddReservation(s.ctx(), n, v, false))
		}
		s.store.Put(s.T, s.reservationKey(n, 30), []byte(`{`))
		keys := s.store.Keys(s.T, "reservations")
		other := s.network("other", small)

		is := func(slot uint64, node string) registry.Reservation {
			return registry.Reservation{Subnet: n.Plan.Subnets(slot)[0], Node: node}
		}
		for _, tt := range []struct {
			name  string
			n     registry.Network
			last  []registry.Reservation // in addition to two hundred valid ones
			want  error
			words []string
		}{
			{name: "a slot kept for another host", n: n, last: []registry.Reservation{is(10, "z")}, want: registry.ErrReserved, words: []string{n.Plan.Subnets(10)[0].String()}},
			{name: "a host with another slot", n: n, last: []registry.Reservation{is(250, before[0].Node)}, want: registry.ErrReserved, words: []string{before[0].Node}},
			{name: "a slot that a host holds", n: n, last: []registry.Reservation{is(l.Slot, "z")}, want: registry.ErrHeld, words: []string{l.Node}},
			{name: "an unusable record", n: n, last: []registry.Reservation{is(30, "z")}, want: registry.ErrReserved, words: []string{s.reservationKey(n, 30)}},
			{name: "out of range", n: n, last: []registry.Reservation{is(0, "z")}, want: registry.ErrInvalid},
			{name: "no host", n: n, last: []registry.Reservation{is(250, "")}, want: registry.ErrInvalid},
			{name: "a slot twice", n: n, last: []registry.Reservation{is(250, "y"), is(250, "z")}, want: registry.ErrInvalid, words: []string{"is there twice"}},
			{name: "a host twice", n: n, last: []registry.Reservation{is(250, "z"), is(251, "z")}, want: registry.ErrInvalid, words: []string{`node "z" has two`}},
			{name: "not new", n: registry.Network{Name: n.Name, Plan: n.Plan, Backend: n.Backend, ModifyIndex: 7}, want: registry.ErrInvalid, words: []string{"modify_index 0"}},
			{name: "exists", n: registry.Network{Name: other.Name, Plan: n.Plan, Backend: n.Backend}, want: registry.ErrNetworkExists},
		} {
			var kept []registry.Reservation
			for _, v := range s.kept(n, 31, 200) {
				if v.Slot != l.Slot {
					kept = append(kept, v)
				}
			}
			if tt.want == registry.ErrHeld {
				kept = append(kept, before...) // they stay
			}
			err := s.open().PutNetwork(s.ctx(), tt.n, append(kept, tt.last...)...)
			if !errors.Is(err, tt.want) {
				s.Errorf("%s: %v, want %v", tt.name, err, tt.want)
				continue
			}
			s.wantErr(err, tt.want, tt.words...)
			s.equal(tt.name, s.store.Keys(s.T, "reservations"), keys)
		}
		// A reservation for the host that holds the slot is allowed.
		s.ok(r.PutNetwork(s.ctx(), n, is(l.Slot, l.Node)))
	}},
	{"two at once", func(s *suite) {
		for i := range 8 {
			n := s.definition(fmt.Sprintf("n%d", i), wide)
			kept := s.kept(n, 1, 250)
			errs := s.putTogether(n, kept, kept)
			if (errs[0] == nil) == (errs[1] == nil) {
				s.Fatalf("errors %v, want one", errs)
			}
			for _, err := range errs {
				if err != nil {
					s.wantErr(err, registry.ErrNetworkExists)
				}
			}
			s.wantKept(n, kept)
		}
	}},
	{"two at once that contradict", func(s *suite) {
		// Each call keeps 200 slots for 200 hosts; half of them are also in the other call.
		for i := range 8 {
			n := s.definition(fmt.Sprintf("n%d", i), wide)
			kept := s.kept(n, 1, 250)
			one, two := append([]registry.Reservation{}, kept[:200]...), append([]registry.Reservation{}, kept[50:]...)
			two[120].Node, two[121] = "z", registry.Reservation{Subnet: kept[0].Subnet, Slot: kept[0].Slot, Node: kept[171].Node}
			errs := s.putTogether(n, one, two)
			switch {
			case errs[0] == nil && errs[1] != nil:
				s.wantKept(n, one)
			case errs[1] == nil && errs[0] != nil:
				s.wantKept(n, two)
			case errs[0] == nil:
				s.Fatal("both were accepted")
			default: // each conflicted with the other
				s.equal("networks", s.store.Keys(s.T, "networks"), []string(nil))
				for _, err := range errs {
					s.wantErr(err, registry.ErrReserved)
				}
			}
		}
	}},
	{"cancelled", func(s *suite) {
		n := s.definition("default", wide)
		ctx, cancel := context.WithCancel(s.ctx())
		cancel()
		s.wantErr(s.open().PutNetwork(ctx, n, s.kept(n, 1, 3)...), context.Canceled)
		s.equal("reservations", s.store.Keys(s.T, "reservations"), []string(nil))
	}},
	{"of no network", func(s *suite) {
		n := s.definition("default", wide)
		r := s.open()
		kept := s.kept(n, 9, 4)
		for _, v := range kept {
			s.ok(r.AddReservation(s.ctx(), n, v, false))
		}
		s.store.Put(s.T, s.reservationKey(n, 30), []byte(`{`))
		nameless := registry.Network{Name: n.Name}
		list := func() []string {
			set, _, err := r.WatchReservations(s.ctx(), nameless, 0)
			s.ok(err)
			var out []string
			for _, v := range set.Reservations {
				if v.Network != n.Name || v.ModifyIndex == 0 {
					s.Errorf("%+v without its network or index", v)
				}
				out = append(out, v.Subnet.String()+" "+v.Node)
			}
			s.equal("unusable", badKeys(set.Bad), []string{s.reservationKey(n, 30)})
			return out
		}
		s.equal("reservations", list(), []string{"10.5.9.0/24 x-9", "10.5.10.0/24 x-10", "10.5.11.0/24 x-11", "10.5.12.0/24 x-12"})
		s.ok(r.RemoveReservation(s.ctx(), n.Name, kept[1].Subnet))
		s.wantErr(r.RemoveReservation(s.ctx(), n.Name, kept[1].Subnet), registry.ErrReservationNotFound)
		s.equal("reservations", list(), []string{"10.5.9.0/24 x-9", "10.5.11.0/24 x-11", "10.5.12.0/24 x-12"})
		s.ok(r.DeleteNetwork(s.ctx(), n.Name))
		s.equal("records", s.store.Keys(s.T, "reservations"), []string(nil))
		s.wantErr(r.DeleteNetwork(s.ctx(), n.Name), registry.ErrNetworkNotFound)
	}},
}

// kept returns reservations for count slots from first on, for nodes named x-FIRST and so on.
func (s *suite) kept(n registry.Network, first uint64, count int) []registry.Reservation {
	var out []registry.Reservation
	for slot := first; slot < first+uint64(count); slot++ {
		out = append(out, registry.Reservation{Network: n.Name, Slot: slot, Subnet: n.Plan.Subnets(slot)[0], Node: fmt.Sprintf("x-%d", slot)})
	}
	return out
}

func (s *suite) wantKept(n registry.Network, kept []registry.Reservation) {
	s.Helper()
	set, _, err := s.open().WatchReservations(s.ctx(), n, 0)
	s.ok(err)
	got, want := map[string]string{}, map[string]string{}
	for _, v := range set.Reservations {
		got[v.Subnet.String()] = v.Host()
	}
	for _, v := range kept {
		want[v.Subnet.String()] = v.Host()
	}
	s.equal("reservations of "+n.Name, got, want)
}

// putTogether creates a network once per element of kept, all at the same time.
func (s *suite) putTogether(n registry.Network, kept ...[]registry.Reservation) []error {
	errs := make([]error, len(kept))
	ctx := s.ctx()
	var wg sync.WaitGroup
	for i := range kept {
		r := s.open()
		wg.Go(func() { errs[i] = r.PutNetwork(ctx, n, kept[i]...) })
	}
	wg.Wait()
	return errs
}
