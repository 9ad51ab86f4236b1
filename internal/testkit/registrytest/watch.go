package registrytest

import (
	"context"
	"errors"
	"slices"

	"github.com/lenonet/leno/registry"
)

var watchTests = []test{
	{"one", func(s *suite) {
		r, other := s.open(), s.open()
		n := s.network("default", wide)
		c := s.claim(0)
		l := s.acquire(r, n, c)
		got, index, err := other.WatchLease(s.ctx(), n, l.Subnet(), 0)
		s.ok(err)
		s.equal("lease", got, l)
		s.blocks("WatchLease", func(ctx context.Context) error {
			_, _, err := other.WatchLease(ctx, n, l.Subnet(), index)
			return err
		})
		// follow runs change while the watch blocks and returns what the watch then shows, ignoring spurious wake-ups.
		follow := func(what string, change func(), want func(registry.Lease, error) bool) {
			s.Helper()
			done := make(chan struct{})
			go func() { defer close(done); change() }()
			for ctx := s.ctx(); ; {
				got, next, err := other.WatchLease(ctx, n, l.Subnet(), index)
				if ctx.Err() != nil {
					s.Fatalf("%s was not seen: last %+v, %v", what, got, err)
				}
				if next == 0 {
					s.Fatalf("%s: index 0 with %v", what, err)
				}
				if index = next; want(got, err) {
					break
				}
			}
			<-done
		}
		check := func(err error) {
			if err != nil {
				s.Error(err)
			}
		}
		follow("a changed attribute", func() {
			c.MTU = 1400
			_, err := r.Acquire(s.ctx(), n, c)
			check(err)
		}, func(l registry.Lease, err error) bool { return err == nil && l.MTU == 1400 })
		follow("a lapse", func() { s.store.EndSession(s.T, l.Session) },
			func(l registry.Lease, err error) bool { return err == nil && !l.Held() })
		follow("the host's return", func() {
			_, err := r.Acquire(s.ctx(), n, c)
			check(err)
		}, func(l registry.Lease, err error) bool { return err == nil && l.Held() })
		follow("an unusable record", func() { s.store.Put(s.T, s.leaseKey(n, l.Slot), []byte(`{}`)) },
			func(_ registry.Lease, err error) bool { return errors.Is(err, registry.ErrInvalid) })
		follow("a revocation", func() { check(s.open().Revoke(s.ctx(), n.Name, l.Subnet())) },
			func(_ registry.Lease, err error) bool { return errors.Is(err, registry.ErrLeaseRevoked) })
		follow("a new holder", func() {
			c := s.claim(1)
			c.Prefer = l.Subnet()
			_, err := s.open().Acquire(s.ctx(), n, c)
			check(err)
		}, func(l registry.Lease, err error) bool { return err == nil && l.NodeID == s.claim(1).NodeID })
	}},
	{"one that is no subnet of the network", func(s *suite) {
		n := s.network("default", wide)
		_, _, err := s.open().WatchLease(s.ctx(), n, s.plan(small).Subnets(1)[0], 0)
		s.wantErr(err, registry.ErrInvalid)
	}},
	{"all", func(s *suite) {
		r, watcher := s.open(), s.open()
		n := s.network("default", wide)
		set, index, err := watcher.WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		s.equal("set of an empty network", set, registry.LeaseSet{})
		s.blocks("WatchLeases of an empty network", func(ctx context.Context) error {
			_, _, err := watcher.WatchLeases(ctx, n, index)
			return err
		})
		follow := func(what string, change func(), want func(registry.LeaseSet) bool) {
			s.Helper()
			done := make(chan struct{})
			go func() { defer close(done); change() }()
			for ctx := s.ctx(); ; {
				set, next, err := watcher.WatchLeases(ctx, n, index)
				if err != nil {
					s.Fatalf("%s: %v", what, err)
				}
				if len(set.Bad) > 0 {
					s.Fatalf("%s: bad records %v", what, set.Bad)
				}
				if index = next; want(set) {
					break
				}
			}
			<-done
		}
		var a, b registry.Lease
		acquire := func(l *registry.Lease, i int, prefer uint64) func() {
			return func() {
				c := s.claim(i)
				c.Prefer = n.Plan.Subnets(prefer)[0]
				var err error
				if *l, err = r.Acquire(s.ctx(), n, c); err != nil {
					s.Error(err)
				}
			}
		}
		have := func(want ...uint64) func(registry.LeaseSet) bool {
			return func(set registry.LeaseSet) bool { return slices.Equal(slots(set.Leases), want) }
		}
		follow("a first lease", acquire(&a, 0, 200), have(200))
		follow("a second lease", acquire(&b, 1, 30), have(30, 200)) // sorted by slot, not by key
		set, _, err = watcher.WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		s.equal("set", set, registry.LeaseSet{Leases: []registry.Lease{b, a}})
		s.blocks("WatchLeases", func(ctx context.Context) error {
			_, _, err := watcher.WatchLeases(ctx, n, index)
			return err
		})
		follow("a lapse", func() { s.store.EndSession(s.T, a.Session) }, func(set registry.LeaseSet) bool {
			l, ok := find(set, 200)
			return ok && !l.Held()
		})
		follow("a release", func() {
			if err := r.Release(s.ctx(), b); err != nil {
				s.Error(err)
			}
		}, have(200))
		follow("a revocation", func() {
			if err := r.Revoke(s.ctx(), n.Name, a.Subnet()); err != nil {
				s.Error(err)
			}
		}, have())
	}},
	{"how long a lease has lapsed", func(s *suite) {
		n := s.network("default", wide)
		watcher := s.open()
		l := s.acquire(s.open(), n, s.claim(0))
		if set, _ := s.watchUntil(watcher, n, "the lease", func(set registry.LeaseSet) bool { return len(set.Leases) == 1 }); set.Leases[0].Lapsed != 0 {
			s.Errorf("a held lease has lapsed for %s", set.Leases[0].Lapsed)
		}
		s.store.EndSession(s.T, l.Session)
		first := s.lapsed(watcher, n, l.Slot)
		for ctx := s.ctx(); ; {
			set, _, err := watcher.WatchLeases(ctx, n, 0)
			s.ok(err)
			if got, _ := find(set, l.Slot); got.Lapsed > first.Lapsed {
				break
			}
		}
	}},
	{"from an older index", func(s *suite) {
		n := s.network("default", wide)
		l := s.acquire(s.open(), n, s.claim(0))
		_, index, err := s.open().WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		set, now, err := s.open().WatchLeases(s.ctx(), n, index-1)
		s.ok(err)
		s.equal("slots", slots(set.Leases), []uint64{l.Slot})
		s.equal("index", now, index)
	}},
	{"from what is known", func(s *suite) {
		n := s.network("default", wide)
		first := s.acquire(s.open(), n, s.claim(0))
		r := s.open()
		own := s.acquire(r, n, s.claim(1))
		set, index, err := r.WatchLeases(s.ctx(), n, registry.Known)
		s.ok(err)
		if _, ok := find(set, first.Slot); !ok {
			s.Errorf("got %v, a claim has just read slot %d", slots(set.Leases), first.Slot)
		}
		for ctx := s.ctx(); ; {
			if _, ok := find(set, own.Slot); ok {
				break
			}
			set, index, err = r.WatchLeases(ctx, n, index)
			s.ok(err)
		}
	}},
	{"an emptied store is not an empty network", func(s *suite) {
		n := s.network("default", wide)
		s.acquire(s.open(), n, s.claim(0))
		r := s.open()
		s.watchUntil(r, n, "the lease", func(set registry.LeaseSet) bool { return len(set.Leases) == 1 })
		for _, key := range s.store.Keys(s.T) {
			s.store.Delete(s.T, key)
		}
		for _, r := range []registry.Registry{r, s.open()} {
			ctx, cancel := context.WithTimeout(context.Background(), 10*pause)
			set, _, err := r.WatchLeases(ctx, n, 0)
			if err == nil {
				s.Errorf("got %+v as if it were certain", set)
			} else if ctx.Err() == nil && !errors.Is(err, registry.ErrUncertain) {
				s.Errorf("got %v, want %v", err, registry.ErrUncertain)
			}
			cancel()
		}
	}},
}
