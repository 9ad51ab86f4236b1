package peers

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

// expiring counts reads and expiries, and answers each expiry with err.
type expiring struct {
	registry.Registry
	leases  []registry.Lease
	unread  error
	reads   int
	err     error
	expired []string

	restored []string
	held     time.Duration // for how long a restored lease is kept
	then     func()        // called by Restore, if set
}

func (e *expiring) Restore(_ context.Context, _ registry.Network, l registry.Lease, hold time.Duration) error {
	e.restored, e.held = append(e.restored, l.Node), hold
	if e.then != nil {
		e.then()
	}
	return e.err
}

func (e *expiring) WatchLeases(context.Context, registry.Network, uint64) (registry.LeaseSet, uint64, error) {
	e.reads++
	return registry.LeaseSet{Leases: e.leases}, 1, e.unread
}

func (e *expiring) Expire(_ context.Context, l registry.Lease) error {
	e.expired = append(e.expired, l.Node)
	return e.err
}

func TestExpireOnce(t *testing.T) {
	const hold = time.Hour
	lapsed := func(slot uint64, since time.Duration) registry.Lease {
		l := agenttest.Lease(fmt.Sprintf("h%d", slot), slot, "", 1)
		l.Lapsed = since
		return l
	}
	var many []registry.Lease
	for slot := range uint64(20) {
		many = append(many, lapsed(slot+1, 2*hold))
	}
	type leases = []registry.Lease
	for _, tt := range []struct {
		name   string
		leases leases
		read   time.Duration // how long ago the leases were read
		now    leases        // what is in the store; nil for the same
		unread error
		err    error
		reads  int
		want   int
	}{
		{name: "none"},
		{name: "held", leases: leases{agenttest.Lease("b", 2, "s", 1)}, read: 2 * hold},
		{name: "within hold", leases: leases{lapsed(2, hold/2)}},
		{name: "past hold", leases: leases{lapsed(2, hold), lapsed(3, hold/2)}, reads: 1, want: 1},
		{name: "past hold since it was read", leases: leases{lapsed(2, hold/2)}, read: hold / 2,
			now: leases{lapsed(2, hold)}, reads: 1, want: 1},
		{name: "its host came back", leases: leases{lapsed(2, hold)}, now: leases{agenttest.Lease("b", 2, "s", 1)}, reads: 1},
		{name: "its host came back and went", leases: leases{lapsed(2, hold)}, now: leases{lapsed(2, 0)}, reads: 1},
		{name: "gone", leases: leases{lapsed(2, hold)}, now: leases{}, reads: 1},
		{name: "more than was known", leases: leases{lapsed(2, hold)}, now: leases{lapsed(2, hold), lapsed(3, hold)},
			reads: 1, want: 2},
		{name: "not certain", leases: leases{lapsed(2, hold)}, unread: registry.ErrUncertain, reads: 1},
		{name: "only some at a time", leases: many, reads: 1, want: expireEach},
		{name: "others were faster", leases: many, err: fmt.Errorf("expire: %w", registry.ErrConflict), reads: 1,
			want: expireEach},
		{name: "store away", leases: many, err: registry.ErrUnavailable, reads: 1, want: 1},
		{name: "no rights", leases: many, err: registry.ErrDenied, reads: 1, want: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			store := &expiring{Registry: h.flaky, leases: tt.leases, unread: tt.unread, err: tt.err}
			if tt.now != nil {
				store.leases = tt.now
			}
			f := h.newFollower(store, t.TempDir())
			f.snapshot.Set(Snapshot{Set: registry.LeaseSet{Leases: tt.leases}, Index: 1, Read: time.Now().Add(-tt.read)})
			f.expireOnce(context.Background(), registry.Network{Name: "n"})
			if len(store.expired) != tt.want || store.reads != tt.reads {
				t.Errorf("%d reads, %d were tried: %v", store.reads, len(store.expired), store.expired)
			}
		})
	}
}

// TestRestoreLost: leases that the store has lost are restored at once if they had lapsed, and in the next pass if their
// hosts have not written them again.
func TestRestoreLost(t *testing.T) {
	lost := func(node string, slot uint64, session string) registry.Lease {
		l := agenttest.Lease(node, slot, session, 1)
		l.Missing, l.Lost = true, true
		return l
	}
	missing, foreign := lost("missing", 5, ""), lost("flannel", 6, registry.UnknownSession)
	missing.Lost, foreign.Foreign = false, true
	set := []registry.Lease{lost("a", 1, "sa"), agenttest.Lease("held", 2, "s", 1), lost("running", 3, "s"), lost("away", 4, ""), missing, foreign,
		lost("earlier", 7, ""), agenttest.Lease("earlier", 8, "s", 1)}
	for _, tt := range []struct {
		name string
		err  error
		want [3][]string // of three passes
	}{
		{"by all", nil, [3][]string{{"away"}, {"away", "flannel", "running"}, {"away", "flannel", "running"}}},
		{"others were faster", fmt.Errorf("restore: %w", registry.ErrConflict), [3][]string{{"away"}, {"away", "flannel", "running"}, {"away", "flannel", "running"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t) // which is a
			store := &expiring{Registry: h.flaky, err: tt.err}
			f := h.newFollower(store, t.TempDir())
			f.snapshot.Set(Snapshot{Set: registry.LeaseSet{Leases: set}, Index: 1, Read: time.Now()})
			var found map[netip.Prefix]bool
			for i, want := range tt.want {
				store.restored = nil
				found = f.restoreLost(t.Context(), registry.Network{Name: "n"}, found)
				slices.Sort(store.restored)
				if !slices.Equal(store.restored, want) || store.held != f.o.Settings.Hold {
					t.Errorf("pass %d restored %v for %v, want %v", i, store.restored, store.held, want)
				}
			}
		})
	}
	h := newHost(t)
	store := &expiring{Registry: h.flaky, err: registry.ErrUnavailable}
	f := h.newFollower(store, t.TempDir())
	f.snapshot.Set(Snapshot{Set: registry.LeaseSet{Leases: []registry.Lease{lost("b", 2, ""), lost("c", 3, "")}}, Index: 1, Read: time.Now()})
	f.restoreLost(t.Context(), registry.Network{Name: "n"}, nil)
	if len(store.restored) != 1 {
		t.Errorf("a store that is away was asked %d times", len(store.restored))
	}
}

// TestRestoreShare: hosts share the lost leases, and leave those alone that others have restored.
func TestRestoreShare(t *testing.T) {
	for _, tt := range []struct{ away, hosts, want int }{
		{100, 0, restoreEach},
		{20, 7, 20},
		{20, 39, 5},
		{20, 230, 1},
	} {
		t.Run(fmt.Sprint(tt.hosts), func(t *testing.T) {
			var leases []registry.Lease
			for slot := range tt.away + tt.hosts {
				l := agenttest.Lease(fmt.Sprintf("h%d", slot), uint64(slot+1), "", 1)
				if l.Missing, l.Lost = slot < tt.away, slot < tt.away; !l.Lost {
					l.Session = "s"
				}
				leases = append(leases, l)
			}
			h := newHost(t)
			store := &expiring{Registry: h.flaky}
			f := h.newFollower(store, t.TempDir())
			show := func(leases []registry.Lease) {
				f.snapshot.Set(Snapshot{Set: registry.LeaseSet{Leases: leases}, Index: 1, Read: time.Now()})
			}
			show(leases)
			f.restoreLost(t.Context(), registry.Network{Name: "n"}, nil)
			if len(store.restored) != tt.want {
				t.Errorf("%d restored, want %d", len(store.restored), tt.want)
			}
			store.restored, store.then = nil, func() { show(leases[tt.away:]) }
			f.restoreLost(t.Context(), registry.Network{Name: "n"}, nil)
			if len(store.restored) != 1 {
				t.Errorf("%d restored, although the first was the last that was lost", len(store.restored))
			}
		})
	}
}

func TestExpireBeginsAnywhere(t *testing.T) {
	h := newHost(t)
	store := &expiring{Registry: h.flaky, err: registry.ErrUnavailable}
	f := h.newFollower(store, t.TempDir())
	var leases []registry.Lease
	for slot := range uint64(20) {
		l := agenttest.Lease(fmt.Sprintf("h%d", slot), slot+1, "", 1)
		l.Lapsed = 2 * f.o.Settings.Hold
		leases = append(leases, l)
	}
	store.leases = leases
	f.snapshot.Set(Snapshot{Set: registry.LeaseSet{Leases: leases}, Index: 1, Read: time.Now()})
	seen := map[string]bool{}
	for range 200 { // all begin with the same host with probability 20^-199
		f.expireOnce(context.Background(), registry.Network{Name: "n"})
	}
	for _, node := range store.expired {
		seen[node] = true
	}
	if len(seen) < 2 {
		t.Errorf("every host begins with %v", seen)
	}
}

// TestLapsedLeaseIsRemoved: a record goes after it has been lapsed for hold, although nothing in the store changes
// then.
func TestLapsedLeaseIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		b := h.join("b", 2)
		h.start()
		h.store.EndSession(b.Session)
		time.Sleep(h.o.Settings.Hold - time.Second)
		h.wantView("10.5.1.0/24 <- b@10.5.2.0/24")
		time.Sleep(2 * expireEvery)
		h.wantView("10.5.1.0/24 <- ")
		if n := len(h.log.With("lapsed lease removed")); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}
