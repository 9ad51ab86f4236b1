package consul

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/transport"
)

// leaseAt acquires a lease for host i on a free slot.
func leaseAt(t *testing.T, s *store, n registry.Network, i int, slot uint64) registry.Lease {
	t.Helper()
	c := claim(i)
	c.Prefer = n.Plan.Subnets(slot)[0]
	l, err := s.open(t).Acquire(testContext(t), n, c)
	if err != nil || l.Slot != slot {
		t.Errorf("slot %d: got %+v, %v", slot, l, err)
	}
	return l
}

// claimAgain makes a host claim a lease again that the store has lost.
func claimAgain(t *testing.T, s *store, n registry.Network, i int, lost registry.Lease) registry.Lease {
	t.Helper()
	c := claim(i)
	c.Prefer, c.Session = lost.Subnet(), lost.Session
	l, err := s.open(t).Acquire(testContext(t), n, c)
	if err != nil || l.Slot != lost.Slot {
		t.Errorf("slot %d: got %+v, %v", lost.Slot, l, err)
	}
	return l
}

// savedStore returns a store on its own server with leases on slots 10 and 20, a snapshot of it, and another lease on
// slot 30 after the snapshot. overtaken restores the snapshot, and another host takes slot 40 at once, so that no index
// reveals the restore any more.
func savedStore(t *testing.T) (s *store, n registry.Network, restore, overtaken func()) {
	t.Helper()
	server := newServer(t, "")
	s = &store{server: server, prefix: "leno"}
	n = putNetwork(t, s, "default", "10.5.0.0/16")
	leaseAt(t, s, n, 0, 10)
	leaseAt(t, s, n, 1, 20)
	data := snapshotOf(t, s)
	leaseAt(t, s, n, 3, 30)
	restore = func() {
		if err := server.admin.Snapshot().Restore(nil, bytes.NewReader(data)); err != nil {
			t.Error(err)
		}
	}
	return s, n, restore, func() { restore(); leaseAt(t, s, n, 4, 40) }
}

func snapshotOf(t *testing.T, s *store) []byte {
	t.Helper()
	snapshot, _, err := s.admin.Snapshot().Save(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Close()
	data, err := io.ReadAll(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func wantSlot(t *testing.T, set registry.LeaseSet, slot uint64) {
	t.Helper()
	if !slices.Contains(slots(set), slot) {
		t.Errorf("slot %d of a living host is out of view: %v", slot, slots(set))
	}
}

// TestLostSlotsAreGivenUp: a host without a lease follows no leases, and gets a subnet whose lease the store has lost
// when Settle is over.
func TestLostSlotsAreGivenUp(t *testing.T) {
	t.Parallel()
	for _, overtaken := range []bool{false, true} {
		t.Run(fmt.Sprintf("overtaken %t", overtaken), func(t *testing.T) {
			t.Parallel()
			server := newServer(t, "")
			s := &store{server: server, prefix: "leno"}
			n := putNetwork(t, s, "default", "10.5.0.0/22")
			newcomer := s.open(t, settle(2*time.Second))
			data := snapshotOf(t, s)
			for i := range 3 {
				leaseAt(t, s, n, i, uint64(i+1))
			}
			follow(t, newcomer, n, 0, []uint64{1, 2, 3}, nil)
			if err := server.admin.Snapshot().Restore(nil, bytes.NewReader(data)); err != nil {
				t.Fatal(err)
			}
			if overtaken {
				leaseAt(t, s, n, 0, 1)
				leaseAt(t, s, n, 1, 2)
			}
			ctx := testContext(t)
			for _, err := newcomer.Acquire(ctx, n, claim(9)); err != nil; _, err = newcomer.Acquire(ctx, n, claim(9)) {
				if registry.Sleep(ctx, 50*time.Millisecond) != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestRestoreOvertakenForAnyReader: after a restore that another host's write hides, the known leases stay, whichever
// reader comes first.
func TestRestoreOvertakenForAnyReader(t *testing.T) {
	t.Parallel()
	names := func(r *http.Request) bool {
		return r.URL.Query().Has("keys") && strings.HasSuffix(r.URL.Path, "/leases/default")
	}
	list := func(r *http.Request) bool {
		return r.URL.Query().Has("recurse") && strings.HasSuffix(r.URL.Path, "/leases/default/")
	}
	t.Run("a reading of everything", func(t *testing.T) {
		t.Parallel()
		s, n, _, overtaken := savedStore(t)
		watcher := s.open(t, settle(time.Hour), never)
		_, index := follow(t, watcher, n, 0, []uint64{10, 20, 30}, nil)
		overtaken()
		set, _, err := watcher.WatchLeases(testContext(t), n, 0)
		if err != nil {
			t.Fatal(err)
		}
		wantSlot(t, set, 30)
		follow(t, watcher, n, index, []uint64{10, 20, 30, 40}, []uint64{30})
	})
	t.Run("one while the watch waits for its turn to read everything", func(t *testing.T) {
		t.Parallel()
		s, n, _, overtaken := savedStore(t)
		watcher := s.open(t, settle(time.Hour), never)
		follow(t, watcher, n, 0, []uint64{10, 20, 30}, nil)
		overtaken()
		ctx, f := testContext(t), followerOf(watcher, n.Name)
		next := round{index: f.cursor.Index(), due: time.Now().Add(time.Hour)}
		r, err := watcher.kv.readDirectory(ctx, f.cursor.Prefix(), transport.Read{}, false)
		if err != nil {
			t.Fatal(err)
		}
		reason, err := f.applyReading(ctx, watcher.kv, next, r)
		if reason == "" || err != nil {
			t.Fatalf("got %q, %v", reason, err)
		}
		follow(t, watcher, n, 0, []uint64{10, 20, 30, 40}, []uint64{30})
		if err := f.readAllAfter(ctx, watcher.kv, 0, next, reason); err != nil {
			t.Fatal(err)
		}
		set, _, err := watcher.WatchLeases(ctx, n, registry.Known)
		if err != nil {
			t.Fatal(err)
		}
		wantSlot(t, set, 30)
	})
	t.Run("an audit", func(t *testing.T) {
		t.Parallel()
		s, n, _, overtaken := savedStore(t)
		var armed atomic.Bool
		addr := proxy(t, s.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			if names(r) && armed.CompareAndSwap(true, false) {
				overtaken()
			}
			pass.ServeHTTP(w, r)
		})
		watcher := s.open(t, settle(time.Hour), func(c *Config) { c.Address = addr; c.Audit = 100 * time.Millisecond })
		_, index := follow(t, watcher, n, 0, []uint64{10, 20, 30}, nil)
		armed.Store(true)
		follow(t, watcher, n, index, []uint64{10, 20, 30, 40}, []uint64{30})
	})
	t.Run("an audit that reads twice", func(t *testing.T) {
		t.Parallel()
		s, n, restore, _ := savedStore(t)
		var armed, wrote atomic.Bool
		addr := proxy(t, s.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			if names(r) && armed.Load() && !wrote.Load() {
				restore()
			}
			pass.ServeHTTP(w, r)
			if list(r) && armed.Load() && wrote.CompareAndSwap(false, true) {
				leaseAt(t, s, n, 4, 40)
			}
		})
		watcher := s.open(t, settle(time.Hour), func(c *Config) { c.Address = addr; c.Audit = 100 * time.Millisecond })
		_, index := follow(t, watcher, n, 0, []uint64{10, 20, 30}, nil)
		armed.Store(true)
		follow(t, watcher, n, index, []uint64{10, 20, 30, 40}, []uint64{30})
	})
}

// TestRestoreInterrupted: a watch that ends while it reads all leases after a restore does not lose sight of the
// restore: the next one finds it, although it begins with what is known.
func TestRestoreInterrupted(t *testing.T) {
	t.Parallel()
	s, n, restore, _ := savedStore(t)
	ctx, cancel := context.WithCancel(testContext(t))
	var waits, armed atomic.Bool
	addr := proxy(t, s.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.URL.Query().Has("wait") {
			waits.Store(true)
		}
		if armed.Load() && r.URL.Query().Has("recurse") && strings.HasSuffix(r.URL.Path, "/leases/default/") {
			armed.Store(false)
			cancel()
			<-r.Context().Done()
			return
		}
		pass.ServeHTTP(w, r)
	})
	watcher := s.open(t, settle(time.Hour), never, func(c *Config) { c.Address = addr })
	before, index := follow(t, watcher, n, 0, []uint64{10, 20, 30}, nil)
	done := make(chan error, 1)
	go func() {
		_, _, err := watcher.WatchLeases(ctx, n, index)
		done <- err
	}()
	eventually(t, "the watch to wait for changes", waits.Load)
	armed.Store(true)
	restore()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	_, index, err := watcher.WatchLeases(testContext(t), n, registry.Known)
	if err != nil {
		t.Fatal(err)
	}
	set, _, err := watcher.WatchLeases(testContext(t), n, index)
	if err != nil || set.SetBack == before.SetBack {
		t.Errorf("the restore is not seen: %+v, %v", set, err)
	}
}

// TestRestoreUnderManyEntries: a host that has just started knows only the keys of most entries and cannot tell that a
// restore removed some. It must not tell other hosts that leases are gone.
func TestRestoreUnderManyEntries(t *testing.T) {
	t.Parallel()
	server := newServer(t, "")
	s := &store{server: server, prefix: "leno"}
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	for i := range fewEntries + 2 {
		leaseAt(t, s, n, i, uint64(100+i))
	}
	data := snapshotOf(t, s)
	keeper := s.open(t, settle(time.Hour), never)
	_, index, err := keeper.WatchLeases(testContext(t), n, 0)
	if err != nil {
		t.Fatal(err)
	}
	leaseAt(t, s, n, 60, 30)
	set, index, err := keeper.WatchLeases(testContext(t), n, index)
	if err != nil {
		t.Fatal(err)
	}
	wantSlot(t, set, 30)
	auditor := s.open(t, settle(time.Hour), func(c *Config) { c.Audit = 30 * time.Millisecond })
	_, aindex, err := auditor.WatchLeases(testContext(t), n, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.admin.Snapshot().Restore(nil, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	leaseAt(t, s, n, 61, 40)

	ctx, stop := context.WithCancel(testContext(t))
	var wait sync.WaitGroup
	defer wait.Wait()
	defer stop()
	wait.Go(func() {
		for ctx.Err() == nil {
			if set, next, err := auditor.WatchLeases(ctx, n, aindex); err == nil {
				aindex = next
				if !slices.Contains(slots(set), 30) {
					t.Errorf("the auditor dropped slot 30: %v", slots(set))
					return
				}
			}
		}
	})
	eventually(t, "the auditor has looked", func() bool {
		f := followerOf(auditor, n.Name)
		if f.mu.Acquire(ctx, 1) != nil {
			return false
		}
		defer f.mu.Release(1)
		return !f.belief.Due().IsZero() && !f.cursor.HasVanishedUnread()
	})
	for i := range 3 { // a few reads later
		leaseAt(t, s, n, 70+i, uint64(70+i))
		if set, index, err = keeper.WatchLeases(testContext(t), n, index); err != nil {
			t.Fatal(err)
		}
		wantSlot(t, set, 30)
	}
}

// TestMissingIsMarked: a set marks each record that the store has lost as missing.
func TestMissingIsMarked(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	watcher, n, leases, index := watched(t, s, settle(time.Hour), never)
	for _, tree := range []string{"/leases/", "/changes/"} {
		if _, err := s.admin.KV().DeleteTree(s.prefix+tree, nil); err != nil {
			t.Fatal(err)
		}
	}
	back := claimAgain(t, s, n, 0, leases[0])
	set, index, err := watcher.WatchLeases(testContext(t), n, index)
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Leases) != len(leases) {
		t.Errorf("the set has slots %v", slots(set))
	}
	for _, l := range set.Leases {
		if isBack := l.Slot == back.Slot; l.Missing == isBack || l.Lost == isBack {
			t.Errorf("slot %d: missing %t, lost %t", l.Slot, l.Missing, l.Lost)
		}
	}
	if err := watcher.Restore(testContext(t), n, leases[1], time.Hour); err != nil {
		t.Fatal(err)
	}
	if set, _, err = watcher.WatchLeases(testContext(t), n, index); err != nil {
		t.Fatal(err)
	}
	for _, l := range set.Leases {
		if isLost := l.Slot == leases[2].Slot; l.Lost != isLost || l.Slot == leases[1].Slot && l.Held() {
			t.Errorf("after a restoration, slot %d: lost %t, held %t", l.Slot, l.Lost, l.Held())
		}
	}
}

// TestCopiesElsewhere: a copy of a record in a folder of its own is not a lease, neither when it appears nor when it is
// deleted.
func TestCopiesElsewhere(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	watcher, n, _, index := watched(t, s, func(c *Config) { c.Audit = 20 * time.Millisecond })
	key := watcher.kv.keys.Leases(n.Name) + "backup/10.5.20.0-24"
	for _, change := range []func(){func() { s.Put(t, key, []byte(`{"version":1}`)) }, func() { s.Delete(t, key) }} {
		change()
		set, next, err := watcher.WatchLeases(testContext(t), n, index)
		if err != nil {
			t.Fatal(err)
		}
		index = next
		wantSlot(t, set, 20)
	}
	for _, key := range s.Keys(t, watcher.kv.keys.Changes(n.Name)) {
		if value, _, _ := s.Get(t, key); strings.HasSuffix(key, "_10.5.20.0-24") && string(value) == `{"version":1}` {
			t.Errorf("%s tells of the copy", key)
		}
	}
}

// TestTrimMovesTheIndex: every part of a trim changes the index, even when the watermark stays the same. Otherwise the
// directory's index would fall when Consul forgets the deletions.
func TestTrimMovesTheIndex(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	acquire(t, s.open(t), n, 1)
	w := s.open(t, recent(100*time.Millisecond))
	prefix := w.kv.keys.Changes(n.Name)
	for i := range transport.MaxGets + 30 {
		s.Put(t, fmt.Sprintf("%s%024x_10.5.%d.0-24", prefix, i, i+1), []byte("v"))
	}
	_, index, err := w.WatchLeases(testContext(t), n, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(testContext(t))
	var wait sync.WaitGroup
	defer wait.Wait()
	defer stop()
	wait.Go(func() {
		for ctx.Err() == nil {
			if _, next, err := w.WatchLeases(ctx, n, index); err == nil {
				index = next
			}
		}
	})
	eventually(t, "the entries are deleted", func() bool { return len(s.Keys(t, prefix)) == 1 })
	pairs, meta, err := s.admin.KV().List(prefix, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(pairs) != 1 || pairs[0].ModifyIndex != meta.LastIndex {
		t.Errorf("the directory is at %d, its watermark was written at %d", meta.LastIndex, pairs[0].ModifyIndex)
	}
}

// TestSetBackBeforeTheTreeWasLost: the tree was emptied, its hosts wrote it again and changed their leases, and then the
// store was set back to a time before all of that. The later records stay until their hosts write them again, or until
// they count as given up.
func TestSetBackBeforeTheTreeWasLost(t *testing.T) {
	t.Parallel()
	for _, hold := range []time.Duration{time.Hour, 2 * time.Second} {
		t.Run(hold.String(), func(t *testing.T) {
			t.Parallel()
			server := newServer(t, "")
			s := &store{server: server, prefix: "leno"}
			n := putNetwork(t, s, "default", "10.5.0.0/16")
			leases := []registry.Lease{leaseAt(t, s, n, 0, 10), leaseAt(t, s, n, 1, 20)}
			data := snapshotOf(t, s)
			if _, err := s.admin.KV().DeleteTree("leno/", nil); err != nil {
				t.Fatal(err)
			}
			n = putNetwork(t, s, "default", "10.5.0.0/16")
			again := func(i int) {
				t.Helper()
				c := claim(i)
				c.Prefer, c.Session, c.MTU, c.Running = leases[i].Subnet(), leases[i].Session, 1300, true
				l, err := s.open(t).Acquire(testContext(t), n, c)
				if err != nil || l.Slot != leases[i].Slot || l.MTU != c.MTU {
					t.Errorf("got %+v, %v", l, err)
				}
				leases[i] = l
			}
			again(0)
			again(1)
			// Consul does not end blocking queries when it restores a snapshot.
			watcher := s.open(t, settle(hold), never, func(c *Config) { c.Wait = time.Second })
			set, index := follow(t, watcher, n, 0, []uint64{10, 20}, nil)
			mtus := func() (out []int) {
				for _, l := range set.Leases {
					out = append(out, l.MTU)
				}
				return out
			}
			if got := mtus(); !slices.Equal(got, []int{1300, 1300}) {
				t.Fatalf("MTUs %d", got)
			}
			if err := server.admin.Snapshot().Restore(nil, bytes.NewReader(data)); err != nil {
				t.Fatal(err)
			}
			if hold == time.Hour {
				again(0) // the other one has not noticed yet
			}
			for set.SetBack == 0 || hold != time.Hour && !slices.Equal(mtus(), []int{1450, 1450}) {
				next, at, err := watcher.WatchLeases(testContext(t), n, index)
				if errors.Is(err, registry.ErrUncertain) || errors.Is(err, registry.ErrUnavailable) {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				before := mtus()
				set, index = next, at
				if now := mtus(); hold == time.Hour && !slices.Equal(now, []int{1300, 1300}) {
					t.Fatalf("MTUs %d, before %d", now, before)
				}
			}
			if hold == time.Hour {
				return
			}
			again(1)
			for !slices.Equal(mtus(), []int{1450, 1300}) {
				var err error
				if set, index, err = watcher.WatchLeases(testContext(t), n, index); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
