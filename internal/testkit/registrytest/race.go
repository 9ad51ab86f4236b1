package registrytest

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/lenonet/leno/registry"
)

type result struct {
	lease registry.Lease
	err   error
}

// together makes all claims at the same time, each from its own host.
func (s *suite) together(n registry.Network, claims ...registry.Claim) []result {
	clients := make([]registry.Registry, len(claims))
	for i := range claims {
		clients[i] = s.open()
	}
	return s.race(n, clients, claims)
}

// race makes all claims at the same time, each with its client. About half of the clients reconnect in the meantime.
func (s *suite) race(n registry.Network, clients []registry.Registry, claims []registry.Claim) []result {
	out := make([]result, len(claims))
	ctx := s.ctx()
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i, c := range claims {
		wg.Go(func() {
			<-start
			out[i].lease, out[i].err = clients[i].Acquire(ctx, n, c)
		})
		if rand.IntN(2) == 0 {
			wg.Go(func() { <-start; clients[i].Reconnect() })
		}
	}
	close(start)
	wg.Wait()
	return out
}

// sort checks that every result is either a distinct lease or "full", and counts both.
func (s *suite) sort(n registry.Network, claims []registry.Claim, results []result) (won []registry.Lease, full int) {
	s.Helper()
	for i, r := range results {
		switch {
		case r.err == nil:
			s.checkLease(n, claims[i], r.lease)
			won = append(won, r.lease)
		case errors.Is(r.err, registry.ErrNetworkFull):
			full++
		default:
			s.Errorf("host %d: %v", i, r.err)
		}
	}
	distinct := slots(won)
	slices.Sort(distinct)
	if len(slices.Compact(distinct)) != len(won) {
		s.Fatalf("a slot has two holders: %+v", won)
	}
	return won, full
}

var raceTests = []test{
	{"many hosts, few slots", func(s *suite) {
		n := s.network("default", "10.7.0.0/21") // seven
		var claims []registry.Claim
		for i := range 20 {
			claims = append(claims, s.claim(i))
		}
		won, full := s.sort(n, claims, s.together(n, claims...))
		if len(won) != 7 || full != 13 {
			s.Fatalf("%d got a slot, %d were told it is full, want 7 and 13", len(won), full)
		}
		set, _, err := s.open().WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		s.equal("slots in the store", slots(set.Leases), []uint64{1, 2, 3, 4, 5, 6, 7})
	}},
	{"hosts that know the network", func(s *suite) {
		n := s.network("default", "10.7.0.0/20") // fifteen
		var clients []registry.Registry
		var claims []registry.Claim
		for i := range 16 {
			r := s.open()
			_, _, err := r.WatchLeases(s.ctx(), n, 0)
			s.ok(err)
			clients, claims = append(clients, r), append(claims, s.claim(i))
		}
		won, full := s.sort(n, claims[:10], s.race(n, clients[:10], claims[:10]))
		if len(won) != 10 || full != 0 {
			s.Fatalf("%d got a slot, %d were told it is full", len(won), full)
		}
		s.ok(clients[0].Release(s.ctx(), won[0]))
		// These do not know of the others yet.
		if won, full = s.sort(n, claims[10:], s.race(n, clients[10:], claims[10:])); len(won) != 6 || full != 0 {
			s.Fatalf("%d got a slot, %d were told it is full", len(won), full)
		}
		set, _, err := s.open().WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		s.equal("number of leases", len(set.Leases), 15)
	}},
	{"two hosts, the last slot", func(s *suite) {
		n := s.network("default", small)
		for i := range 2 {
			s.acquire(s.open(), n, s.claim(i))
		}
		for range 5 {
			claims := []registry.Claim{s.claim(2), s.claim(3)}
			won, full := s.sort(n, claims, s.together(n, claims...))
			if len(won) != 1 || full != 1 {
				s.Fatalf("%d got the slot, %d were told it is full", len(won), full)
			}
			s.ok(s.open().Release(s.ctx(), won[0]))
		}
	}},
	{"all want the same slot", func(s *suite) {
		n := s.network("default", wide)
		var claims []registry.Claim
		for i := range 8 {
			c := s.claim(i)
			c.Prefer = n.Plan.Subnets(50)[0]
			claims = append(claims, c)
		}
		won, _ := s.sort(n, claims, s.together(n, claims...))
		if len(won) != len(claims) {
			s.Fatalf("%d of %d got a slot", len(won), len(claims))
		}
		if !slices.Contains(slots(won), 50) {
			s.Error("no host got the slot that all wanted")
		}
	}},
	{"the owner's return and a taker past hold", func(s *suite) {
		n := s.network("default", small)
		owner := s.acquire(s.open(), n, s.claim(0))
		for i := 1; i < 3; i++ {
			s.acquire(s.open(), n, s.claim(i))
		}
		s.store.EndSession(s.T, owner.Session)
		c := s.claim(3)
		c.Hold = 0
		claims := []registry.Claim{s.claim(0), c}
		won, full := s.sort(n, claims, s.together(n, claims...))
		if len(won) != 1 || full != 1 || won[0].Slot != owner.Slot {
			s.Fatalf("got %+v, %d told it is full: want one holder of slot %d", won, full, owner.Slot)
		}
	}},
	{"expiry and the owner's return", func(s *suite) {
		n := s.network("default", wide)
		r, other := s.open(), s.open()
		l := s.acquire(r, n, s.claim(0))
		for range 5 {
			s.store.EndSession(s.T, l.Session)
			lapsed := s.lapsed(other, n, l.Slot)
			done := make(chan error, 1)
			go func() { done <- other.Expire(s.ctx(), lapsed) }()
			next := s.acquire(r, n, s.claim(0))
			err := <-done
			if err != nil && !errors.Is(err, registry.ErrConflict) {
				s.Fatal(err)
			}
			s.stays(n, next)
			l = next
		}
	}},
}
