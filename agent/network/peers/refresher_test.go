package peers

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

// slowReads is a store that takes long to read leases, or cannot read them.
type slowReads struct {
	registry.Registry
	takes time.Duration
	err   error
	set   registry.LeaseSet
	reads atomic.Int32
}

func (s *slowReads) WatchLeases(
	ctx context.Context, _ registry.Network, after uint64,
) (registry.LeaseSet, uint64, error) {
	s.reads.Add(1)
	if after != 0 {
		return registry.LeaseSet{}, 0, errors.New("not asked for what is now")
	}
	if err := retry.Sleep(ctx, s.takes); err != nil {
		return registry.LeaseSet{}, 0, err
	}
	return s.set, uint64(s.reads.Load()), s.err
}

// TestNow: callers at the same time share one reading, and what is known is the answer if the store does not give one.
func TestNow(t *testing.T) {
	a := agenttest.Lease("a", 1, "sa", 1)
	known := registry.LeaseSet{Leases: []registry.Lease{a, agenttest.Lease("b", 2, "sb", 1)}}
	now := registry.LeaseSet{Leases: []registry.Lease{a, agenttest.Lease("b", 2, "", 1)}}
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
		{"the store hangs", &slowReads{takes: time.Hour}, true, true, refreshTimeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newHost(t).newFollower(tt.store, t.TempDir())
				n := registry.Network{Name: "n"}
				if tt.known {
					f.snapshot.Set(Snapshot{Set: known, Index: 7, Read: time.Now()})
				}
				before, _, _ := f.snapshot.Get()
				ask := func() Snapshot {
					snap, ok := f.now(t.Context(), n)
					if !ok || len(snap.Set.Leases) != 2 || snap.Set.Leases[1].Held() != tt.held {
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
				age := RefreshEvery - tt.takes - time.Millisecond
				time.Sleep(age)
				if snap := ask(); tt.store.reads.Load() != 1 {
					t.Error("read again at once")
				} else if l := snap.Set.Leases[1]; !l.Held() && l.Lapsed != age {
					t.Errorf("lapsed for %s, want %s", l.Lapsed, age)
				}
				time.Sleep(time.Millisecond)
				ask()
				if tt.store.reads.Load() != 2 {
					t.Error("not read again")
				}
				if after, _, _ := f.snapshot.Get(); after.Index != before.Index || !after.Read.Equal(before.Read) {
					t.Errorf("the snapshot was changed: %+v", after)
				}
				// What the watch reads after that is newer.
				time.Sleep(time.Millisecond)
				f.snapshot.Set(Snapshot{Set: registry.LeaseSet{Leases: now.Leases[:1]}, Index: 9, Read: time.Now()})
				if snap, _ := f.now(t.Context(), n); snap.Index != 9 {
					t.Errorf("got %+v", snap)
				}
			})
		})
	}
}

// TestReadingIsShared: a reading goes on when the caller that began it gives up. What is read in another way while it
// runs is newer.
func TestReadingIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := registry.Network{Name: "n"}
		store := &slowReads{takes: time.Second, set: registry.LeaseSet{Leases: []registry.Lease{agenttest.Lease("b", 2, "sb", 1)}}}
		f := NewRefresher(store, "n", retry.CallTimeout, func() []registry.Lease { return nil })
		first, leave := context.WithCancel(t.Context())
		go f.Refresh(first, n)
		synctest.Wait()
		leave()
		f.Refresh(t.Context(), n)
		if snap := f.Newest(); len(snap.Set.Leases) != 1 || snap.Index != 1 {
			t.Errorf("got %+v, %v", snap, f.Err())
		}
		time.Sleep(RefreshEvery)
		go f.Refresh(t.Context(), n)
		synctest.Wait()
		time.Sleep(time.Millisecond)
		f.Learn(registry.LeaseSet{}, 9)
		f.Refresh(t.Context(), n)
		if snap := f.Newest(); snap.Index != 9 || len(snap.Set.Leases) != 0 {
			t.Errorf("got %+v", snap)
		}
	})
}
