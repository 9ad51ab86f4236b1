package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// slowReads is a store that takes long to read leases, or cannot read them.
type slowReads struct {
	registry.Registry
	takes time.Duration
	err   error
	set   registry.LeaseSet
	reads atomic.Int32
}

func (s *slowReads) WatchLeases(ctx context.Context, _ registry.Network, after uint64) (registry.LeaseSet, uint64, error) {
	s.reads.Add(1)
	if after != 0 {
		return registry.LeaseSet{}, 0, errors.New("not asked for what is now")
	}
	if err := retry.Sleep(ctx, s.takes); err != nil {
		return registry.LeaseSet{}, 0, err
	}
	return s.set, uint64(s.reads.Load()), s.err
}

// TestLeasesNow runs with a simulated clock.
func TestLeasesNow(t *testing.T) {
	a := testLease("a", 1, "sa", 1)
	known := registry.LeaseSet{Leases: []registry.Lease{a, testLease("b", 2, "sb", 1)}}
	now := registry.LeaseSet{Leases: []registry.Lease{a, testLease("b", 2, "", 1)}}
	h := newHost(t, memory.New(), "a")
	for _, tt := range []struct {
		name  string
		store *slowReads
		known bool // whether the watch has read the leases
		held  bool // whether b's lease is held in the answer
		takes time.Duration
	}{
		{"the store answers", &slowReads{takes: time.Second, set: now}, true, false, time.Second},
		{"before the watch did", &slowReads{takes: time.Second, set: now}, false, false, time.Second},
		{"the store is away", &slowReads{takes: time.Second, err: registry.ErrUnavailable}, true, true, time.Second},
		{"the store hangs", &slowReads{takes: time.Hour}, true, true, freshTimeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h.catalog = tt.store
			r := h.part()
			synctest.Test(t, func(t *testing.T) {
				n := registry.Network{Name: "n"}
				if tt.known {
					r.snapshot.Set(snapshot{set: known, index: 7, read: time.Now()})
				}
				before, _, _ := r.snapshot.Get()
				ask := func() snapshot {
					snap, ok := r.leasesNow(t.Context(), n)
					if !ok || len(snap.set.Leases) != 2 || snap.set.Leases[1].Held() != tt.held {
						t.Errorf("got %+v, %t, want b held: %t", snap, ok, tt.held)
					}
					return snap
				}
				start := time.Now()
				var all sync.WaitGroup
				for range 10 { // at the same time, so all wait for one reading
					all.Go(func() { ask() })
				}
				all.Wait()
				if took := time.Since(start); took != tt.takes || tt.store.reads.Load() != 1 {
					t.Errorf("%d readings in %s", tt.store.reads.Load(), took)
				}
				age := freshEvery - tt.takes - time.Millisecond
				time.Sleep(age)
				if snap := ask(); tt.store.reads.Load() != 1 {
					t.Error("read again at once")
				} else if l := snap.set.Leases[1]; !l.Held() && l.Lapsed != age {
					t.Errorf("lapsed for %s, want %s", l.Lapsed, age)
				}
				time.Sleep(time.Millisecond)
				ask()
				if tt.store.reads.Load() != 2 {
					t.Error("not read again")
				}
				if after, _, _ := r.snapshot.Get(); after.index != before.index || !after.read.Equal(before.read) {
					t.Errorf("the snapshot was changed: %+v", after)
				}
				// What the watch reads after that is newer.
				time.Sleep(time.Millisecond)
				r.snapshot.Set(snapshot{set: registry.LeaseSet{Leases: now.Leases[:1]}, index: 9, read: time.Now()})
				if snap, _ := r.leasesNow(t.Context(), n); snap.index != 9 {
					t.Errorf("got %+v", snap)
				}
			})
		})
	}
}

func TestAPIShowsALapseAtOnce(t *testing.T) {
	store := memory.New()
	a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
	a.ready()
	b.ready()
	a.applies(fmt.Sprintf("%s <- b@%s", a.subnet(), b.subnet()))
	lease, _, _ := mustRunner(t, b).lease.Get()
	must(t, b.stop())
	store.EndSession(lease.Session)
	if code, body := a.request("GET", "/v1/network/n/leases?memory=true", ""); code != http.StatusOK || !strings.Contains(body, lease.Subnet().String()) {
		t.Errorf("%d %s", code, body)
	}
	f := mustRunner(t, a).fresh
	f.mu.Lock()
	begun := f.begun
	f.mu.Unlock()
	if !begun.IsZero() {
		t.Error("the store was asked for an answer from memory")
	}
	got, err := a.client.Lease(context.Background(), "n", lease.Subnet())
	if err != nil || got.Held {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAPIAgesLapsedLeases(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	subnet := netip.MustParsePrefix("10.5.1.0/24")
	l := testLease("b", 1, "", 1)
	l.Lapsed = 10 * time.Second
	r := mustRunner(t, a)
	a.registry.setOne("WatchLeases", registry.ErrUnavailable) // so that only known leases can be shown
	own, _, _ := r.lease.Get()
	r.snapshot.Set(snapshot{set: registry.LeaseSet{Leases: []registry.Lease{own, l}}, index: 1, read: time.Now().Add(-time.Hour)})
	if subnet == own.Subnet() {
		l.Slot, l.Subnets = 2, []netip.Prefix{netip.MustParsePrefix("10.5.2.0/24")}
		r.snapshot.Set(snapshot{set: registry.LeaseSet{Leases: []registry.Lease{own, l}}, index: 1, read: time.Now().Add(-time.Hour)})
	}
	list, err := a.client.Leases(context.Background(), "n")
	must(t, err)
	for _, got := range list.Leases {
		if want := int64(3610); got.Node == "b" && (got.LapsedSeconds < want || got.LapsedSeconds > want+60) {
			t.Errorf("lapsed for %d s", got.LapsedSeconds)
		}
		if got.Node == "a" && got.LapsedSeconds != 0 {
			t.Errorf("a held lease lapsed for %d s", got.LapsedSeconds)
		}
	}
	if len(list.Leases) != 2 {
		t.Errorf("%+v", list.Leases)
	}
	peers, err := a.client.Peers(context.Background(), "n")
	if err != nil || len(peers.Peers) != 1 || peers.Peers[0].Held {
		t.Errorf("peers %+v, %v", peers, err)
	}
	// A single lease ages in the same way, whether it is read or known.
	for _, memory := range []string{"", "?memory=true"} {
		var got api.Lease
		code, body := a.request("GET", "/v1/network/n/lease/"+registry.SubnetKey(l.Subnet())+memory, "")
		must(t, json.Unmarshal([]byte(body), &got))
		if want := int64(3610); code != http.StatusOK || got.LapsedSeconds < want || got.LapsedSeconds > want+60 {
			t.Errorf("%d: lapsed for %d s%s", code, got.LapsedSeconds, memory)
		}
	}
	// Requests do not change what is known.
	if snap, _, _ := r.snapshot.Get(); snap.set.Leases[1].Lapsed != 10*time.Second {
		t.Errorf("the snapshot was changed: %s", snap.set.Leases[1].Lapsed)
	}
}

// TestReadersElsewhere: reading a network in which this host takes no part costs the store one reading in each period
// of freshEvery, however many clients ask. Changes made through this agent are shown at once.
func TestReadersElsewhere(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	n := registry.Network{Name: "other", Plan: mustPlan(t, "10.9.0.0/22"), Backend: mustBackend(t, "recorder", "")}
	must(t, store.Client().PutNetwork(t.Context(), n))
	claim := registry.Claim{Node: "b", NodeID: "id-b", PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}, MTU: 1450,
		Backend: n.Backend, TTL: time.Minute, Hold: time.Hour}
	lease, err := store.Client().Acquire(t.Context(), n, claim)
	must(t, err)
	eventually(t, func() error { return errOf(a.client.Network(t.Context(), "other")) })
	before := a.registry.count("own WatchLeases")
	for range 20 {
		list, err := a.client.Leases(t.Context(), "other")
		if err != nil || len(list.Leases) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		if _, err := a.client.Lease(t.Context(), "other", lease.Subnet()); err != nil {
			t.Fatal(err)
		}
		if _, err := a.client.PlanNetwork(t.Context(), api.Network{Name: "other", Pools: []api.Pool{{Prefix: n.Plan[0].Prefix}}, Backend: n.Backend.Object}); err != nil {
			t.Fatal(err)
		}
	}
	if reads := a.registry.count("own WatchLeases") - before; reads > 1+int(time.Since(a.agent.started)/freshEvery) {
		t.Errorf("%d readings for 60 requests", reads)
	}
	must(t, a.client.RevokeLease(t.Context(), "other", lease.Subnet()))
	if list, err := a.client.Leases(t.Context(), "other"); err != nil || len(list.Leases) != 0 {
		t.Errorf("after it was revoked: %+v, %v", list, err)
	}
}

// TestRefreshersAreForgotten: what was read of networks elsewhere is dropped when clients stop asking for it.
func TestRefreshersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := refreshers{registry: memory.New().Client()}
		one := all.of("one")
		one.refresh(t.Context(), registry.Network{Name: "one"})
		if all.of("two") == one || len(all.read) != 2 || all.of("one") != one {
			t.Errorf("%v", all.read)
		}
		time.Sleep(idleElsewhere / 2)
		one.refresh(t.Context(), registry.Network{Name: "one"})
		known := func() int {
			synctest.Wait()
			all.mu.Lock()
			defer all.mu.Unlock()
			return len(all.read)
		}
		time.Sleep(idleElsewhere / 2)
		if n := known(); n != 1 || all.of("one") != one {
			t.Errorf("%d are known", n)
		}
		time.Sleep(2 * idleElsewhere)
		if n := known(); n != 0 {
			t.Errorf("%d are known", n)
		}
		if all.of("one") == one {
			t.Error("it was not forgotten")
		}
		time.Sleep(2 * idleElsewhere) // until the timer has ended
	})
}

// TestReadingIsShared: a reading goes on when the caller that began it gives up. What is read in another way while it
// runs is newer.
func TestReadingIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := registry.Network{Name: "n"}
		store := &slowReads{takes: time.Second, set: registry.LeaseSet{Leases: []registry.Lease{testLease("b", 2, "sb", 1)}}}
		f := newRefresher(store, "n", callTimeout, func() []registry.Lease { return nil })
		first, leave := context.WithCancel(t.Context())
		go f.refresh(first, n)
		synctest.Wait()
		leave()
		f.refresh(t.Context(), n)
		if snap := f.newest(); len(snap.set.Leases) != 1 || snap.index != 1 {
			t.Errorf("got %+v, %v", snap, f.refreshError())
		}
		time.Sleep(freshEvery)
		go f.refresh(t.Context(), n)
		synctest.Wait()
		time.Sleep(time.Millisecond)
		f.learn(registry.LeaseSet{}, 9)
		f.refresh(t.Context(), n)
		if snap := f.newest(); snap.index != 9 || len(snap.set.Leases) != 0 {
			t.Errorf("got %+v", snap)
		}
	})
}
