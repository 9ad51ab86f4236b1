package consul

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/changelog"
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

// TestRestoreOvertakenForAnyReader: after a restore that another host's write hides, the known leases stay, whichever
// reader comes first.
func TestRestoreOvertakenForAnyReader(t *testing.T) {
	names := func(r *http.Request) bool {
		return r.URL.Query().Has("keys") && strings.HasSuffix(r.URL.Path, "/leases/default")
	}
	list := func(r *http.Request) bool {
		return r.URL.Query().Has("recurse") && strings.HasSuffix(r.URL.Path, "/leases/default/")
	}
	t.Run("a reading of everything", func(t *testing.T) {
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
		s, n, _, overtaken := savedStore(t)
		watcher := s.open(t, settle(time.Hour), never)
		follow(t, watcher, n, 0, []uint64{10, 20, 30}, nil)
		overtaken()
		ctx, f := testContext(t), followerOf(watcher, n.Name)
		next := round{index: f.cursor.Index(), due: time.Now().Add(time.Hour)}
		r, err := watcher.readDirectory(ctx, f.cursor.Prefix(), read{}, false)
		if err != nil {
			t.Fatal(err)
		}
		reason, err := f.applyReading(ctx, watcher, next, r)
		if reason == "" || err != nil {
			t.Fatalf("got %q, %v", reason, err)
		}
		follow(t, watcher, n, 0, []uint64{10, 20, 30, 40}, []uint64{30})
		if err := f.readAllSpread(ctx, watcher, next.index, reason); err != nil {
			t.Fatal(err)
		}
		set, _, err := watcher.WatchLeases(ctx, n, registry.Known)
		if err != nil {
			t.Fatal(err)
		}
		wantSlot(t, set, 30)
	})
	t.Run("an audit", func(t *testing.T) {
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

// TestRestoreUnderManyEntries: a host that has just started knows only the keys of most entries and cannot tell that a
// restore removed some. It must not tell other hosts that leases are gone.
func TestRestoreUnderManyEntries(t *testing.T) {
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
		if f.turn.lock(ctx) != nil {
			return false
		}
		defer f.turn.unlock()
		return len(f.belief.kept) == 1 && !f.cursor.HasVanishedUnread()
	})
	for i := range 3 { // a few reads later
		leaseAt(t, s, n, 70+i, uint64(70+i))
		if set, index, err = keeper.WatchLeases(testContext(t), n, index); err != nil {
			t.Fatal(err)
		}
		wantSlot(t, set, 30)
	}
}

// keptLease returns a follower that knows one lease, written at 10, which a list at 30 lacks.
func keptLease(t *testing.T, marker uint64, restored bool) (f *follower, key string) {
	t.Helper()
	f = newFollower(layout{"leno"}, "default")
	key = viewPrefix + "10.5.1.0-24"
	old := &api.KVPair{Key: key, Value: []byte("old"), CreateIndex: 10, ModifyIndex: 10}
	f.belief.accept(list{pairs: map[string]*api.KVPair{key: old}, marker: 2, index: 10}, time.Time{})
	f.belief.evidence.setBack = restored
	f.belief.accept(list{pairs: map[string]*api.KVPair{}, marker: marker, index: 30}, time.Now().Add(time.Hour))
	if f.belief.known[key] == nil {
		t.Fatal("the record was not kept")
	}
	return f, key
}

// TestKeptUntilTold checks which changes end the time in which a lost record is kept.
func TestKeptUntilTold(t *testing.T) {
	const subnet = "10.5.1.0-24"
	for _, tt := range []struct {
		name     string
		marker   uint64 // 2: the same tree
		restored bool
		news     changelog.Change
		want     string
	}{
		{"a removal told before the list was read", 20, false, changelog.Change{Subnet: subnet, Index: 28}, ""},
		{"a removal told after it", 20, false, changelog.Change{Subnet: subnet, Index: 31}, ""},
		{"a removal another host found", 2, true, changelog.Change{Subnet: subnet, Index: 40, Flags: changelog.FlagManual}, "old"},
		{"a record with a low index of a new cluster", 20, false, changelog.Change{Subnet: subnet, Index: 5, Value: []byte("new")}, "new"},
		{"a record in the same tree", 2, true, changelog.Change{Subnet: subnet, Index: 40, Value: []byte("new")}, "new"},
		{"an older entry of the same tree", 2, true, changelog.Change{Subnet: subnet, Index: 9, Value: []byte("new")}, "old"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, key := keptLease(t, tt.marker, tt.restored)
			f.belief.apply([]changelog.Change{tt.news})
			got := ""
			if pair := f.belief.known[key]; pair != nil {
				got = string(pair.Value)
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	t.Run("a list of a new cluster", func(t *testing.T) {
		f, key := keptLease(t, 20, false)
		now := &api.KVPair{Key: key, Value: []byte("new"), CreateIndex: 5, ModifyIndex: 5}
		f.belief.accept(list{pairs: map[string]*api.KVPair{key: now}, marker: 20, index: 35}, time.Now().Add(time.Hour))
		if got := string(f.belief.known[key].Value); got != "new" {
			t.Errorf("got %q", got)
		}
	})
}

// TestTheLatestOfAHostIsKept: when the store has lost several records of one host, in whatever way, the latest one is
// shown, until the host has written another. The host was on slot 2 before and is on slot 5 now.
func TestTheLatestOfAHostIsKept(t *testing.T) {
	n := network("default", "10.5.0.0/16")
	type state struct {
		marker   uint64
		restored bool
		records  map[uint64][2]uint64 // by slot: created, modified
		lapsed   uint64               // the slot whose record is not held
	}
	type records = map[uint64][2]uint64
	for _, tt := range []struct {
		name   string
		states []state
		want   []uint64 // slots
	}{
		{"emptied twice", []state{{marker: 1, records: records{2: {10, 10}}}, {marker: 30},
			{marker: 30, records: records{5: {40, 40}}}, {marker: 60}}, []uint64{5}},
		{"set back, then emptied", []state{{marker: 1, records: records{2: {10, 10}}}, {marker: 1, restored: true},
			{marker: 1, records: records{5: {40, 40}}}, {marker: 60}}, []uint64{5}},
		{"set back to where it was before, then emptied", []state{{marker: 1, records: records{5: {30, 30}}},
			{marker: 1, restored: true, records: records{2: {10, 10}}}, {marker: 60}}, []uint64{5}},
		{"both lost at once", []state{{marker: 1, records: records{2: {10, 10}, 5: {30, 30}}}, {marker: 60}}, []uint64{5}},
		{"both lost at once, one lapsed later", []state{{marker: 1, records: records{2: {10, 35}, 5: {30, 30}}, lapsed: 2}, {marker: 60}}, []uint64{5}},
		{"set back to where it was before", []state{{marker: 1, records: records{5: {30, 30}}},
			{marker: 1, restored: true, records: records{2: {10, 10}}}}, []uint64{2, 5}},
		{"set back to where it was before, and lapsed there", []state{{marker: 1, records: records{5: {30, 30}}},
			{marker: 1, restored: true, records: records{2: {10, 10}}}, {marker: 1, records: records{2: {10, 70}}, lapsed: 2}}, []uint64{2, 5}},
		{"the earlier is back in an emptied store", []state{{marker: 1, records: records{2: {10, 10}, 5: {30, 30}}}, {marker: 60},
			{marker: 60, records: records{2: {70, 70}}}}, []uint64{2}},
		{"went back, and lapsed there", []state{{marker: 1, records: records{5: {30, 30}}},
			{marker: 1, restored: true, records: records{2: {10, 10}}}, {marker: 1, records: records{2: {10, 70}}},
			{marker: 1, records: records{2: {10, 80}}, lapsed: 2}}, []uint64{2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFollower(layout{"leno"}, "default")
			var set registry.LeaseSet
			for i, s := range tt.states {
				l := list{pairs: map[string]*api.KVPair{}, marker: s.marker, index: uint64(20 * (i + 1))}
				for slot, indexes := range s.records {
					key := viewPrefix + registry.SubnetKey(n.Plan.Subnets(slot)[0])
					pair := &api.KVPair{Key: key, Value: leaseRecord(t, n, slot, 1), Session: "s", CreateIndex: indexes[0], ModifyIndex: indexes[1]}
					if slot == s.lapsed {
						pair.Session = ""
					}
					l.pairs[key] = pair
				}
				f.belief.evidence.setBack = s.restored
				f.belief.accept(l, time.Now().Add(time.Hour))
				set = f.view.leases(n, &f.belief)
			}
			if got := slots(set); !slices.Equal(got, tt.want) {
				t.Errorf("slots %v, want %v", got, tt.want)
			}
		})
	}
	t.Run("an earlier loss of another cluster", func(t *testing.T) {
		f, key := keptLease(t, 2, true)
		f.belief.accept(list{pairs: map[string]*api.KVPair{}, marker: 40, index: 50}, time.Now().Add(time.Hour))
		now := &api.KVPair{Key: key, Value: []byte("new"), CreateIndex: 5, ModifyIndex: 5}
		f.belief.accept(list{pairs: map[string]*api.KVPair{key: now}, marker: 40, index: 55}, time.Now().Add(time.Hour))
		if got := string(f.belief.known[key].Value); got != "new" {
			t.Errorf("got %q", got)
		}
	})
}

// TestSetBackIsCounted: only a certain set-back is counted; the index of a prefix falls by itself 15 minutes after a
// deletion.
func TestSetBackIsCounted(t *testing.T) {
	f := newFollower(layout{"leno"}, "default")
	for _, step := range []struct {
		marker, index uint64
		restored      bool
		want          uint64
	}{{2, 10, false, 0}, {2, 12, false, 0}, {2, 11, false, 0}, {2, 13, true, 1}, {20, 30, false, 2}} {
		f.belief.evidence.setBack = step.restored
		f.belief.accept(list{pairs: map[string]*api.KVPair{}, marker: step.marker, index: step.index}, time.Time{})
		if f.belief.setBack != step.want {
			t.Errorf("%+v: counted %d", step, f.belief.setBack)
		}
	}
}

// TestMadeAnewUnderManyEntries: in a re-created tree, a removal that the directory contains counts, however many other
// entries there are.
func TestMadeAnewUnderManyEntries(t *testing.T) {
	s := newStore(t)
	watcher, n, leases, index := watched(t, s, settle(time.Hour), never)
	for _, tree := range []string{"/leases/", "/changes/"} {
		if _, err := s.admin.KV().DeleteTree(s.prefix+tree, nil); err != nil {
			t.Fatal(err)
		}
	}
	var back []registry.Lease
	for i := range leases {
		back = append(back, claimAgain(t, s, n, i, leases[i]))
	}
	for i := range fewEntries + 2 {
		leaseAt(t, s, n, 50+i, uint64(50+i))
	}
	if err := s.open(t).Release(testContext(t), back[0]); err != nil {
		t.Fatal(err)
	}
	set, _, err := watcher.WatchLeases(testContext(t), n, index)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(slots(set), back[0].Slot) {
		t.Errorf("slot %d was removed, and is kept: %v", back[0].Slot, slots(set))
	}
	wantSlot(t, set, back[1].Slot)
}

// TestMissingIsMarked: a set marks each record that the store has lost as missing.
func TestMissingIsMarked(t *testing.T) {
	s := newStore(t)
	watcher, n, leases, index := watched(t, s, settle(time.Hour), never)
	for _, tree := range []string{"/leases/", "/changes/"} {
		if _, err := s.admin.KV().DeleteTree(s.prefix+tree, nil); err != nil {
			t.Fatal(err)
		}
	}
	back := claimAgain(t, s, n, 0, leases[0])
	set, _, err := watcher.WatchLeases(testContext(t), n, index)
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Leases) != len(leases) {
		t.Errorf("the set has slots %v", slots(set))
	}
	for _, l := range set.Leases {
		if l.Missing != (l.Slot != back.Slot) {
			t.Errorf("slot %d: missing %t", l.Slot, l.Missing)
		}
	}
}

// TestCopiesElsewhere: a copy of a record in a folder of its own is not a lease, neither when it appears nor when it is
// deleted.
func TestCopiesElsewhere(t *testing.T) {
	s := newStore(t)
	watcher, n, _, index := watched(t, s, func(c *Config) { c.Audit = 20 * time.Millisecond })
	key := watcher.layout.leases(n.Name) + "backup/10.5.20.0-24"
	for _, change := range []func(){func() { s.Put(t, key, []byte(`{"version":1}`)) }, func() { s.Delete(t, key) }} {
		change()
		set, next, err := watcher.WatchLeases(testContext(t), n, index)
		if err != nil {
			t.Fatal(err)
		}
		index = next
		wantSlot(t, set, 20)
	}
	for _, key := range s.Keys(t, watcher.layout.changes(n.Name)) {
		if value, _, _ := s.Get(t, key); strings.HasSuffix(key, "_10.5.20.0-24") && string(value) == `{"version":1}` {
			t.Errorf("%s tells of the copy", key)
		}
	}
}

// TestTrimMovesTheIndex: every part of a trim changes the index, even when the watermark stays the same. Otherwise the
// directory's index would fall when Consul forgets the deletions.
func TestTrimMovesTheIndex(t *testing.T) {
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	acquire(t, s.open(t), n, 1)
	w := s.open(t, recent(100*time.Millisecond))
	prefix := w.layout.changes(n.Name)
	for i := range txnGets + 30 {
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

// TestViewHoldsItsOwn: the parts of a record that a view keeps do not keep alive the list that the record came in.
func TestViewHoldsItsOwn(t *testing.T) {
	const leases, lists = 500, 100
	n := network("default", "10.0.0.0/8")
	values, keys := make([][]byte, leases), make([]string, leases)
	for i := range leases {
		slot := uint64(i + 10)
		values[i], keys[i] = leaseRecord(t, n, slot, i%200), viewPrefix+registry.SubnetKey(n.Plan.Subnets(slot)[0])
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	f := newFollower(layout{"leno"}, "default")
	size := len(bytes.Join(values, nil))
	modified := make([]uint64, leases)
	var before uint64
	for round := range lists {
		modified[round] = uint64(1000 + round) // one is locked again
		together := make([]byte, 0, size)
		l := list{pairs: map[string]*api.KVPair{}, marker: 1, index: uint64(1000 + round)}
		for i, value := range values {
			together = append(together, value...)
			l.pairs[keys[i]] = &api.KVPair{Key: keys[i], Value: together[len(together)-len(value):], CreateIndex: 1, ModifyIndex: max(1, modified[i]), Session: "x"}
		}
		f.belief.accept(l, time.Time{})
		f.view.leases(n, &f.belief)
		if round == 0 {
			before = heap()
		}
	}
	if after := heap(); after > before+uint64(10*size) {
		t.Errorf("the heap grew from %d to %d bytes over %d lists of %d bytes", before, after, lists, size)
	}
	runtime.KeepAlive(f)
}
