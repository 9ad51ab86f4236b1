package consul

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/seed"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/changelog"
)

// never prevents audits during a test, and the removal of entries, however long it takes on a busy machine.
func never(c *Config) { c.Audit, c.Recent = time.Hour, time.Hour }

// recent makes audits frequent and entries short-lived.
func recent(d time.Duration) func(*Config) {
	return func(c *Config) { c.Audit, c.Recent = 20*time.Millisecond, d }
}

// requests counts a client's requests by kind.
type requests struct {
	mu    sync.Mutex
	count map[string]int
}

func (q *requests) add(r *http.Request) {
	kind := "other"
	switch _, keys := r.URL.Query()["keys"]; {
	case strings.Contains(r.URL.Path, "/changes/"):
		kind = "changes"
	case strings.Contains(r.URL.Path, "/leases/") && r.URL.Query().Has("recurse"):
		kind = "list"
	case keys:
		kind = "names"
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count[kind]++
}

func (q *requests) of(kind string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count[kind]
}

func counted(t *testing.T, s *store) (*requests, func(*Config)) {
	q := &requests{count: map[string]int{}}
	addr := proxy(t, s.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		q.add(r)
		pass.ServeHTTP(w, r)
	})
	return q, func(c *Config) { c.Address = addr }
}

// TestFollowedWithoutLists: changes by other hosts reach a watcher through their entries alone, whether there are few
// or many. The list of leases is read once.
func TestFollowedWithoutLists(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	q, through := counted(t, s)
	watcher, n, leases, index := watched(t, s, through, never)
	want := []uint64{10, 20, 30}
	c := s.open(t, never)
	for i := range 2 * fewEntries { // more than are read with their values
		l := acquire(t, c, n, 50+i)
		want = append(want, l.Slot)
		slices.Sort(want)
		_, index = follow(t, watcher, n, index, want, nil)
	}
	if err := c.Release(testContext(t), leases[0]); err != nil {
		t.Fatal(err)
	}
	want = slices.DeleteFunc(want, func(slot uint64) bool { return slot == 10 })
	follow(t, watcher, n, index, want, nil)
	if got := q.of("list"); got != 1 {
		t.Errorf("%d lists of leases, want one", got)
	}
}

// TestLapsesAreNoNews: sessions that end, and hosts that return unchanged, wake no watcher.
func TestLapsesAreNoNews(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	q, through := counted(t, s)
	watcher, n, leases, index := watched(t, s, through, never)
	before := q.of("changes")
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	go func() {
		_, _, err := watcher.WatchLeases(ctx, n, index)
		done <- err
	}()
	eventually(t, "the watch to ask", func() bool { return q.of("changes") > before })
	for _, l := range leases {
		s.EndSession(t, l.Session)
	}
	eventually(t, "leases lapse", func() bool {
		set, _, err := s.open(t).WatchLeases(testContext(t), n, 0)
		return err == nil && !slices.ContainsFunc(set.Leases, registry.Lease.Held)
	})
	c0 := claim(0)
	c0.Prefer = leases[0].Subnet()
	if l, err := s.open(t).Acquire(testContext(t), n, c0); err != nil || l.Slot != 10 {
		t.Fatal(l, err)
	}
	// The watch still waits for the answer to its first query, so the next change ends it.
	l := acquire(t, s.open(t), n, 7)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	cancel()
	if got := q.of("changes") - before; got > 2 {
		t.Errorf("the watcher asked %d times", got)
	}
	set, _, err := watcher.WatchLeases(testContext(t), n, 1)
	if err != nil || !slices.Contains(slots(set), l.Slot) {
		t.Fatal(slots(set), err)
	}
}

// TestEditsByHand: a host that never audits learns of edits from one that does.
func TestEditsByHand(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	watcher, n, leases, index := watched(t, s, never)
	auditor := s.open(t, func(c *Config) { c.Audit = 50 * time.Millisecond })
	follow(t, auditor, n, 0, []uint64{10, 20, 30}, nil)
	auditing, stop := context.WithCancel(testContext(t))
	var wait sync.WaitGroup
	wait.Go(func() {
		_, index, _ := auditor.WatchLeases(auditing, n, 1)
		for auditing.Err() == nil {
			if _, next, err := auditor.WatchLeases(auditing, n, index); err == nil {
				index = next
			}
		}
	})
	defer wait.Wait()
	defer stop()

	s.Delete(t, watcher.kv.keys.Lease(n.Name, leases[1].Subnet()))
	_, index = follow(t, watcher, n, index, []uint64{10, 30}, []uint64{10, 30})
	value, _, _ := s.Get(t, watcher.kv.keys.Lease(n.Name, leases[0].Subnet()))
	moved := strings.NewReplacer("10.5.10.0/24", "10.5.40.0/24", "host-0", "by-hand", "id-0", "id-9", "192.0.2.1", "192.0.2.99")
	s.Put(t, watcher.kv.keys.Leases(n.Name)+"10.5.40.0-24", []byte(moved.Replace(string(value))))
	set, index := follow(t, watcher, n, index, []uint64{10, 30, 40}, []uint64{10, 30})
	if l := set.Leases[2]; l.Held() || l.Node != "by-hand" {
		t.Errorf("got %+v: a record put by hand is not held", l)
	}
	// A record that becomes unusable is named.
	s.Put(t, watcher.kv.keys.Leases(n.Name)+"10.5.40.0-24", []byte(`{"version":1}`))
	set, _ = follow(t, watcher, n, index, []uint64{10, 30}, []uint64{10, 30})
	if len(set.Bad) != 1 || !strings.HasSuffix(set.Bad[0].Key, "10.5.40.0-24") {
		t.Errorf("got %+v", set.Bad)
	}
}

// TestTrimmed: entries are deleted after their time, by any host, and a host that was away for longer reads all leases.
func TestTrimmed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	sleeper, n, _, index := watched(t, s, never, recent(50*time.Millisecond))
	watcher := s.open(t, recent(50*time.Millisecond))
	_, windex := follow(t, watcher, n, 0, []uint64{10, 20, 30}, nil)
	c := s.open(t, never)
	want := []uint64{10, 20, 30}
	for i := range 3 {
		l := acquire(t, c, n, 50+i)
		want = append(want, l.Slot)
	}
	slices.Sort(want)
	follow(t, watcher, n, windex, want, []uint64{10, 20, 30})
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, index, _ := watcher.WatchLeases(ctx, n, 0)
		for ctx.Err() == nil {
			_, index, _ = watcher.WatchLeases(ctx, n, index)
		}
	}()
	eventually(t, "the entries are deleted", func() bool { return len(s.Keys(t, watcher.kv.keys.Changes(n.Name))) == 1 })
	cancel()
	<-done
	follow(t, sleeper, n, index, want, []uint64{10, 20, 30})
}

// TestDirectoryHarmed: whatever is deleted by hand, watchers continue, no lease is lost from sight, and the watermark
// is created again.
func TestDirectoryHarmed(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(t *testing.T, s *store, prefix string){
		"wiped": func(t *testing.T, s *store, prefix string) {
			if _, err := s.admin.KV().DeleteTree(prefix, nil); err != nil {
				t.Fatal(err)
			}
		},
		"watermark deleted": func(t *testing.T, s *store, prefix string) { s.Delete(t, prefix+changelog.WatermarkName) },
		"entry deleted": func(t *testing.T, s *store, prefix string) {
			keys := s.Keys(t, prefix)
			s.Delete(t, keys[len(keys)-1])
		},
		"garbage": func(t *testing.T, s *store, prefix string) {
			s.Put(t, prefix+"hello", []byte("world"))
			s.Put(t, prefix+changelog.WatermarkName, []byte("\x00\xff"))
			s.Put(t, prefix+"000000000000000000000000_10.5.20.0-24", []byte("{"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			watcher, n, _, index := watched(t, s)
			l := acquire(t, s.open(t), n, 7)
			want := []uint64{10, 20, 30, l.Slot}
			slices.Sort(want)
			_, index = follow(t, watcher, n, index, want, []uint64{10, 20, 30})
			harm(t, s, watcher.kv.keys.Changes(n.Name))
			if err := s.open(t).Release(testContext(t), l); err != nil {
				t.Fatal(err)
			}
			least := []uint64{10, 30} // according to the garbage, 20 is unusable until the next audit
			_, index = follow(t, watcher, n, index, []uint64{10, 20, 30}, least)
			l = acquire(t, s.open(t), n, 8)
			want = []uint64{10, 20, 30, l.Slot}
			slices.Sort(want)
			follow(t, watcher, n, index, want, least)
			eventually(t, "the watermark is there", func() bool {
				_, _, ok := s.Get(t, watcher.kv.keys.Changes(n.Name)+changelog.WatermarkName)
				return ok
			})
		})
	}
}

// TestDirectoryDenied: a host whose token may not write changes still watches, but cannot take a lease that other hosts
// would not learn of.
func TestDirectoryDenied(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	node := nodeOf(t, s)
	secret, _ := s.newToken(t, `
		key_prefix "`+s.prefix+`/leases/" { policy = "write" }
		key_prefix "`+s.prefix+`/" { policy = "read" }
		session "`+node+`" { policy = "write" }`)
	watcher, n, _, index := watched(t, s, func(c *Config) { c.Token = secret; c.Audit = 20 * time.Millisecond })
	wantIs(t, errOf2(watcher.Acquire(testContext(t), n, claim(7))), registry.ErrDenied)
	if _, err := s.admin.KV().DeleteTree(watcher.kv.keys.Changes(n.Name), nil); err != nil {
		t.Fatal(err)
	}
	c := s.open(t, never)
	value, _, _ := s.Get(t, watcher.kv.keys.Lease(n.Name, n.Plan.Subnets(10)[0]))
	s.Delete(t, watcher.kv.keys.Lease(n.Name, n.Plan.Subnets(10)[0]))
	_, index = follow(t, watcher, n, index, []uint64{20, 30}, []uint64{20, 30})
	s.Put(t, watcher.kv.keys.Lease(n.Name, n.Plan.Subnets(10)[0]), value)
	_, index = follow(t, watcher, n, index, []uint64{10, 20, 30}, []uint64{20, 30})
	l := acquire(t, c, n, 8)
	want := []uint64{10, 20, 30, l.Slot}
	slices.Sort(want)
	follow(t, watcher, n, index, want, []uint64{10, 20, 30})
}

// TestRestoreOvertaken: another host writes between a restore and our next read, so no index reveals the restore. A
// slot that changed hands since the snapshot stays with its current host.
func TestRestoreOvertaken(t *testing.T) {
	t.Parallel()
	server := newServer(t, "")
	s := &store{server: server, prefix: "leno"}
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	at := func(i int, slot uint64) registry.Lease {
		c := claim(i)
		c.Prefer = n.Plan.Subnets(slot)[0]
		l, err := s.open(t).Acquire(testContext(t), n, c)
		if err != nil || l.Slot != slot {
			t.Fatal(l, err)
		}
		return l
	}
	old := at(0, 10)
	kept := at(1, 20)
	snapshot, _, err := server.admin.Snapshot().Save(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Close()
	data, err := io.ReadAll(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.open(t).Release(testContext(t), old); err != nil {
		t.Fatal(err)
	}
	now := at(2, 10)
	late := at(3, 30)
	want := []uint64{10, kept.Slot, late.Slot}
	slices.Sort(want)
	watcher := s.open(t, settle(time.Hour), recent(time.Minute))
	_, index := follow(t, watcher, n, 0, want, nil)

	if err := server.admin.Snapshot().Restore(nil, strings.NewReader(string(data))); err != nil {
		t.Fatal(err)
	}
	last := at(4, 40)
	want = append(want, last.Slot)
	slices.Sort(want)
	set, index := follow(t, watcher, n, index, want, []uint64{10, kept.Slot, late.Slot})
	if l := set.Leases[slices.Index(want, 10)]; l.NodeID != now.NodeID {
		t.Errorf("slot 10 went back to %+v", l)
	}
	// Its host writes it again, over the restored record.
	s.EndSession(t, old.Session)
	s.Delete(t, watcher.kv.keys.Lease(n.Name, old.Subnet()))
	c := claim(2)
	c.Prefer, c.Session, c.MTU = now.Subnet(), now.Session, 1400
	if _, err := s.open(t).Acquire(testContext(t), n, c); err != nil {
		t.Fatal(err)
	}
	set, _ = follow(t, watcher, n, index, want, want)
	if l := set.Leases[slices.Index(want, 10)]; l.NodeID != now.NodeID || l.MTU != 1400 {
		t.Errorf("slot 10 is %+v", l)
	}
}

// TestWatchersConverge: many hosts come, change and go, entries are deleted under them, the directory is damaged and
// records are edited by hand. Untouched leases are always shown, and in the end every watcher shows the same as a
// consistent read.
func TestWatchersConverge(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	untouched := []uint64{201, 202, 203}
	for i, slot := range untouched {
		c := claim(100 + i)
		c.Prefer = n.Plan.Subnets(slot)[0]
		if _, err := s.open(t).Acquire(testContext(t), n, c); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context()) // the watchers' time does not end while the writers need longer
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	const watchers = 5
	var views [watchers]atomic.Pointer[registry.LeaseSet]
	for i := range watchers {
		watcher := s.open(t, recent(time.Duration(30+100*i)*time.Millisecond), settle(2*time.Second))
		wait.Go(func() {
			var index uint64
			for ctx.Err() == nil {
				set, next, err := watcher.WatchLeases(ctx, n, index)
				switch {
				case ctx.Err() != nil:
				case err != nil:
					if !errors.Is(err, registry.ErrUncertain) {
						t.Errorf("watcher %d: %v", i, err)
						return
					}
					_ = registry.Sleep(ctx, 10*time.Millisecond)
				default:
					index = next
					for _, slot := range untouched {
						if !slices.Contains(slots(set), slot) {
							t.Errorf("watcher %d lost slot %d: %v", i, slot, slots(set))
							return
						}
					}
					views[i].Store(&set)
				}
			}
		})
	}
	var writers sync.WaitGroup
	random := seed.Rand(t)
	for i := range 4 {
		rnd := rand.New(rand.NewPCG(random.Uint64(), 7)) // of each writer, because they run at the same time
		c := s.open(t, never)
		writers.Go(func() {
			for round := range 25 {
				mine := claim(10*i + rnd.IntN(3))
				mine.MTU = 1300 + round
				l, err := c.Acquire(ctx, n, mine)
				if err != nil {
					t.Errorf("writer %d: %v", i, err)
					return
				}
				if rnd.IntN(2) == 0 {
					if err := c.Release(ctx, l); err != nil {
						t.Errorf("writer %d: %v", i, err)
						return
					}
				}
			}
		})
	}
	prefix := s.prefix + "/changes/" + n.Name + "/"
	for _, harm := range []func(){
		func() { s.Delete(t, prefix+changelog.WatermarkName) },
		func() { _, _ = s.admin.KV().DeleteTree(prefix, nil) },
		func() { s.Put(t, s.prefix+"/leases/"+n.Name+"/10.5.250.0-24", []byte("{}")) },
		func() { s.Delete(t, s.prefix+"/leases/"+n.Name+"/10.5.250.0-24") },
	} {
		eventually(t, "the watermark is there", func() bool { _, _, ok := s.Get(t, prefix+changelog.WatermarkName); return ok })
		harm()
	}
	writers.Wait()
	truth, _, err := s.open(t).WatchLeases(testContext(t), n, 0)
	if err != nil {
		t.Fatal(err)
	}
	describe := func(set registry.LeaseSet) string {
		var out []string
		for _, l := range set.Leases {
			out = append(out, fmt.Sprint(l.Slot, l.Node, l.MTU, l.Held()))
		}
		return fmt.Sprintf("%s\n%d bad records", strings.Join(out, "\n"), len(set.Bad))
	}
	for i := range watchers {
		var last string
		defer func() {
			if t.Failed() {
				t.Logf("watcher %d shows\n%s\nand there is\n%s", i, last, describe(truth))
			}
		}()
		eventually(t, fmt.Sprintf("watcher %d shows what is there", i), func() bool {
			if set := views[i].Load(); set != nil {
				last = describe(*set)
			}
			return last == describe(truth)
		})
	}
}

// TestHungQuery: a blocking query that is never answered is not an outage if the next read is answered.
func TestHungQuery(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var hang atomic.Bool
	released := make(chan struct{})
	var once sync.Once
	addr := proxy(t, s.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if hang.Load() && r.URL.Query().Get("index") != "" {
			select {
			case <-r.Context().Done():
			case <-released:
			}
			return
		}
		pass.ServeHTTP(w, r)
	})
	t.Cleanup(func() { once.Do(func() { close(released) }) })
	hang.Store(true)
	watcher, n, leases, index := watched(t, s, func(c *Config) {
		c.Address, c.Wait, c.Timeout, c.Audit = addr, 300*time.Millisecond, 5*time.Second, time.Hour
	})
	networks, nindex, err := watcher.WatchNetworks(testContext(t), 0)
	if err != nil || len(networks.Networks) != 1 {
		t.Fatal(networks, err)
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		for begun := time.Now(); ; {
			l, next, err := watcher.WatchLease(testContext(t), n, leases[0].Subnet(), leases[0].ModifyIndex)
			if errors.Is(err, registry.ErrUnavailable) && time.Since(begun) < testPatience {
				continue // a read that does not block took longer than the short time limit
			}
			if err != nil {
				t.Errorf("one: %v", err)
				return
			}
			if next != leases[0].ModifyIndex && l.MTU == 1400 {
				return
			}
		}
	})
	wait.Go(func() {
		for begun := time.Now(); ; {
			set, _, err := watcher.WatchNetworks(testContext(t), nindex)
			if errors.Is(err, registry.ErrUnavailable) && time.Since(begun) < testPatience {
				continue // as above
			}
			if err != nil || len(set.Networks) != 2 {
				t.Errorf("networks: %v, %v", set, err)
			}
			return
		}
	})
	eventually(t, "queries hang", func() bool { return watcher.kv.Doubts.Has(watcher.kv.keys.Networks()) })
	putNetwork(t, s, "other", "10.6.0.0/16")
	c := claim(0)
	c.Session, c.Prefer, c.MTU = leases[0].Session, leases[0].Subnet(), 1400
	if _, err := s.open(t).Acquire(testContext(t), n, c); err != nil {
		t.Fatal(err)
	}
	l := leaseAt(t, s, n, 7, 40)
	set, _ := follow(t, watcher, n, index, []uint64{10, 20, 30, l.Slot}, []uint64{10, 20, 30})
	if set.Leases[0].MTU != 1400 {
		t.Errorf("got %+v", set.Leases[0])
	}
}

// TestFollowed: the time advances while nothing changes, and stands still while Consul is away.
func TestFollowed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var away atomic.Bool
	addr := proxy(t, s.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if away.Load() {
			http.Error(w, "rpc error: No cluster leader", http.StatusInternalServerError)
			return
		}
		pass.ServeHTTP(w, r)
	})
	watcher, n, _, index := watched(t, s, func(c *Config) { c.Address, c.Wait = addr, 50*time.Millisecond }, never)
	if at := watcher.Followed("unknown"); !at.IsZero() {
		t.Errorf("never looked at, followed at %s", at)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			_ = registry.Sleep(ctx, 5*time.Millisecond)
			_, _, _ = watcher.WatchLeases(ctx, n, index)
		}
	})
	defer watching.Wait()
	defer cancel()
	first := watcher.Followed(n.Name)
	eventually(t, "it moves on", func() bool { return watcher.Followed(n.Name).After(first) })
	away.Store(true)
	var last time.Time
	eventually(t, "it stands still", func() bool { // after the last requests in progress
		before := last
		last = watcher.Followed(n.Name)
		return before.Equal(last) && time.Since(last) > 200*time.Millisecond
	})
	away.Store(false)
	eventually(t, "it moves on again", func() bool { return watcher.Followed(n.Name).After(last) })
}
