package registrytest

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lenonet/leno/internal/testkit/seed"
	"github.com/lenonet/leno/registry"
)

var holdTests = []test{
	{"a host silent for less than hold finds its subnet", func(s *suite) {
		n := s.network("default", small)
		owner, rival := s.open(), s.open()
		c := s.claim(0)
		l := s.acquire(owner, n, c)
		for i := 1; i < 3; i++ {
			s.acquire(s.open(), n, s.claim(i))
		}
		s.store.EndSession(s.T, l.Session)
		for range 3 {
			_, err := rival.Acquire(s.ctx(), n, s.claim(3))
			s.wantErr(err, registry.ErrNetworkFull, "3 slots: 2 held, 1 lapsed")
		}
		again := s.acquire(s.open(), n, c) // another process, which remembers nothing
		if again.Slot != l.Slot || again.CreateIndex != l.CreateIndex {
			s.Fatalf("was %+v, is %+v", l, again)
		}
		_, err := rival.Acquire(s.ctx(), n, s.claim(3))
		s.wantErr(err, registry.ErrNetworkFull, "3 slots: 3 held")
	}},
	{"a claim on behalf of a host", func(s *suite) {
		n := s.network("default", small)
		reg, host := s.open(), s.open()
		c := s.claim(0)
		c.Prefer, c.Running, c.OnlySlot = n.Plan.Subnets(2)[0], true, true
		l := s.acquire(reg, n, c)
		if l.Slot != 2 || l.CreateIndex != l.ModifyIndex {
			s.Fatalf("got %+v", l)
		}
		_, err := reg.Acquire(s.ctx(), n, c) // it could be the host itself by now
		s.wantErr(err, registry.ErrHeld, "the host itself")
		other := s.claim(1)
		other.Prefer, other.Running, other.OnlySlot = c.Prefer, true, true
		_, err = reg.Acquire(s.ctx(), n, other)
		s.wantErr(err, registry.ErrHeld, c.Node)
		s.stays(n, l)

		s.store.EndSession(s.T, l.Session)
		again := s.acquire(reg, n, c) // keeps it for another hold
		if again.Slot != 2 || again.CreateIndex != l.CreateIndex || again.Session == l.Session {
			s.Fatalf("was %+v, is %+v", l, again)
		}
		s.store.EndSession(s.T, again.Session)
		own := s.claim(0)
		own.Session = "694d9b3c1a2b3c04-694d9b3c1a2b3c06" // of another kind of store
		taken := s.acquire(host, n, own)
		if taken.Slot != 2 || taken.CreateIndex != l.CreateIndex {
			s.Fatalf("was %+v, the host got %+v", l, taken)
		}
		own.Session = "0b7e0f5c-3f5e-4b57-9a53-0d9a1c7b7f11" // likewise
		if taken = s.acquire(s.open(), n, own); taken.Slot != 2 {
			s.Fatalf("the host got %+v", taken)
		}
	}},
	{"one silent for longer has to take another", func(s *suite) {
		const hold = 300 * time.Millisecond
		n := s.network("default", small)
		rival := s.open()
		c := s.claim(0)
		l := s.acquire(s.open(), n, c)
		for i := 1; i < 3; i++ {
			s.acquire(s.open(), n, s.claim(i))
		}
		silent := time.Now()
		s.store.EndSession(s.T, l.Session)
		r := s.claim(3)
		r.Hold = hold
		var taken registry.Lease
		for ctx := s.ctx(); ; {
			var err error
			if taken, err = rival.Acquire(ctx, n, r); err == nil {
				break
			}
			s.wantErr(err, registry.ErrNetworkFull)
		}
		if d := time.Since(silent); d < hold || taken.Slot != l.Slot {
			s.Fatalf("slot %d taken %s after slot %d fell silent", taken.Slot, d, l.Slot)
		}
		s.checkLease(n, r, taken)
		_, err := s.open().Acquire(s.ctx(), n, c)
		s.wantErr(err, registry.ErrNetworkFull, "3 slots: 3 held")
		s.stays(n, taken)
		s.ok(rival.Release(s.ctx(), taken))
		s.equal("slot", s.acquire(s.open(), n, c).Slot, l.Slot)
	}},
	{"hosts come and go", func(s *suite) { s.churn(seed.Rand(s.T)) }},
}

// churn lets 40 hosts come and go over 15 slots and checks each claim: a host gets its own slot, else a free one, else
// the one that lapsed longest ago. It goes on until each of these cases has happened.
func (s *suite) churn(rnd *rand.Rand) {
	n := s.network("default", "10.8.0.0/20")
	r := s.open() // one client for all, so it has watched every lapse
	type slot struct {
		host   int
		lease  registry.Lease
		lapsed int // the number of the lapse, 0 while held
	}
	taken := map[uint64]slot{}
	lapses, got := 0, map[string]int{}
	for step := 0; step < 120 || len(got) < 4; step++ {
		if step == 5000 {
			s.Fatalf("not every case has happened: %v", got)
		}
		if rnd.IntN(8) == 0 {
			r.Reconnect()
		}
		i := rnd.IntN(40)
		c := s.claim(i)
		c.Hold = time.Nanosecond
		var own *slot
		var oldest []slot
		for _, t := range taken {
			if t.host == i {
				own = &t
			}
			if t.lapsed > 0 {
				oldest = append(oldest, t)
			}
		}
		slices.SortFunc(oldest, func(a, b slot) int { return cmp.Compare(a.lapsed, b.lapsed) })

		if own != nil && own.lapsed == 0 {
			switch rnd.IntN(4) {
			case 0, 1: // it dies
				s.store.EndSession(s.T, own.lease.Session)
				lapses++
				taken[own.lease.Slot] = slot{i, s.lapsed(r, n, own.lease.Slot), lapses}
			case 2: // it leaves
				s.ok(r.Release(s.ctx(), own.lease))
				delete(taken, own.lease.Slot)
			case 3: // it starts again
				c.Session, c.Prefer = own.lease.Session, own.lease.Subnet()
				s.equal("restarted", s.acquire(r, n, c), own.lease)
			}
			continue
		}
		if rnd.IntN(2) == 0 {
			c.Prefer = n.Plan.Subnets(rnd.Uint64N(16))[0] // a preference from an earlier life
		}
		l, err := r.Acquire(s.ctx(), n, c)
		last, was := taken[l.Slot]
		var what string
		switch {
		case own != nil:
			if what = "its own"; err != nil || l.Slot != own.lease.Slot {
				s.Fatalf("step %d: got %+v, %v, want slot %d again", step, l, err, own.lease.Slot)
			}
		case len(taken) < 15:
			if what = "a free one"; err != nil || was {
				s.Fatalf("step %d: got %+v, %v, with %d slots free; there was %+v", step, l, err, 15-len(taken), last)
			}
		case len(oldest) > 0:
			if what = "a lapsed one"; err != nil || last.lapsed != oldest[0].lapsed {
				s.Fatalf("step %d: got %+v, %v, lapsed %d, want %d of %d", step, l, err, last.lapsed, oldest[0].lapsed, lapses)
			}
		default:
			if what = "none"; !errors.Is(err, registry.ErrNetworkFull) {
				s.Fatalf("step %d: got %+v, %v of a full network", step, l, err)
			}
		}
		got[what]++
		if err == nil {
			s.checkLease(n, c, l)
			taken[l.Slot] = slot{i, l, 0}
		}
	}
}
