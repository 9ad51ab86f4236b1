package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/registry"
)

// A watch sees what hosts write. No host writes a record when another one falls silent, so the leases are also read on
// request, at most once in freshEvery. If a watch knows them as well, a request waits no longer than freshTimeout.
const (
	freshEvery   = 5 * time.Second
	freshTimeout = 2 * time.Second
)

// A refresher reads all leases of a network on request, once for all callers. It is safe for concurrent use.
type refresher struct {
	registry registry.Registry
	network  string
	timeout  time.Duration           // of one reading
	known    func() []registry.Lease // returns the leases that the datapath uses, nil for none

	mu     sync.Mutex
	begun  time.Time     // when the last reading began
	flight chan struct{} // closed when the reading in progress has ended, nil if there is none
	last   snapshot
	err    error                  // of the last reading
	news   *watch.Value[struct{}] // set after each reading
}

func newRefresher(reg registry.Registry, network string, timeout time.Duration, known func() []registry.Lease) *refresher {
	return &refresher{registry: reg, network: network, timeout: timeout, known: known, news: watch.New[struct{}]()}
}

// refresh reads the leases, unless the last reading began less than freshEvery ago. It blocks until they are read or
// ctx ends. Callers share a reading, so it goes on when one of them gives up.
func (f *refresher) refresh(ctx context.Context, n registry.Network) {
	f.mu.Lock()
	if f.flight == nil {
		if time.Since(f.begun) < freshEvery {
			f.mu.Unlock()
			return
		}
		f.flight, f.begun = make(chan struct{}), time.Now()
		go f.read(n, f.flight, f.begun)
	}
	ended := f.flight
	f.mu.Unlock()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// read makes one reading, which began at began, and closes ended.
func (f *refresher) read(n registry.Network, ended chan struct{}, began time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	set, index, err := f.registry.WatchLeases(ctx, n, 0)
	f.mu.Lock()
	defer f.mu.Unlock()
	defer close(ended)
	defer f.news.Set(struct{}{})
	f.flight, f.err = nil, err
	if err == nil && !f.last.read.After(began) {
		f.last = snapshot{set: keepKnown(n.Name, set, f.known()), index: index, read: time.Now()}
	}
}

// learn stores what was read in another way.
func (f *refresher) learn(set registry.LeaseSet, index uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.last = nil, snapshot{set: set, index: index, read: time.Now()}
}

// newest returns the last reading. Its field read is zero if there is none.
func (f *refresher) newest() snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// refreshError returns why no leases are known.
func (f *refresher) refreshError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	return fmt.Errorf("leases of network %s: %w: not read yet", f.network, registry.ErrUnavailable)
}

// invalidate makes the next refresh read the leases. It is called after a change through this agent, so that the caller
// sees the change.
func (f *refresher) invalidate() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun = time.Time{}
}

// idle reports whether no reading is in progress and none began within d.
func (f *refresher) idle(d time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flight == nil && time.Since(f.begun) > d
}

// aged returns a copy of the snapshot in which the time since it was read counts as time that leases have been lapsed.
func (s snapshot) aged() snapshot {
	s.set.Leases = slices.Clone(s.set.Leases)
	for i := range s.set.Leases {
		if l := &s.set.Leases[i]; !l.Held() {
			l.Lapsed += time.Since(s.read)
		}
	}
	return s
}

// leasesNow returns all leases as they are now or, if the store does not answer, as they were last known. It returns
// false if they were never known.
func (r *runner) leasesNow(ctx context.Context, n registry.Network) (snapshot, bool) {
	r.fresh.refresh(ctx, n)
	return r.leasesKnown()
}

// leases returns all leases without asking the store: those that were read last or, if watched is true, those that the
// watch read last. The error says why none are known.
func (r *runner) leases(watched bool) (registry.LeaseSet, error) {
	read := r.leasesKnown
	if watched {
		read = r.leasesInMemory
	}
	snap, known := read()
	if !known {
		return registry.LeaseSet{}, r.fresh.refreshError()
	}
	return snap.set, nil
}

// leasesChanged returns channels, one of which is closed when leases may return something else.
func (r *runner) leasesChanged() []<-chan struct{} {
	_, _, watched := r.snapshot.Get()
	_, _, refreshed := r.fresh.news.Get()
	return []<-chan struct{}{watched, refreshed}
}

// leasesKnown returns all leases as they were last read, by the watch or on request, or otherwise as an earlier process
// knew them. It returns false if nothing is known.
func (r *runner) leasesKnown() (snapshot, bool) {
	newest := r.fresh.newest()
	if snap, ok, _ := r.snapshot.Get(); ok && !newest.read.After(snap.read) {
		newest = snap
	}
	if newest.read.IsZero() {
		return r.leasesRemembered()
	}
	return newest.aged(), true
}

// leasesInMemory returns all leases as they were last read by the watch, or otherwise as an earlier process knew them.
// It returns false if nothing is known.
func (r *runner) leasesInMemory() (snapshot, bool) {
	snap, ok, _ := r.snapshot.Get()
	if !ok {
		return r.leasesRemembered()
	}
	return snap.aged(), true
}

// leasesRemembered returns the leases that a resumed datapath is made from, including this host's own as far as it is
// known. It returns false if no datapath was resumed.
func (r *runner) leasesRemembered() (snapshot, bool) {
	before, ok := r.carriedOn()
	if !ok {
		return snapshot{}, false
	}
	v := r.shown()
	own := before.Own
	own.Node, own.PublicIPs, own.MTU, own.Backend = r.config.NodeName, v.local.Underlay.Addresses, v.local.MTU, before.Network.Backend
	own.Session = registry.UnknownSession // the lease was held when the previous process ended
	select {
	case <-r.env.named:
		own.Node = r.env.id.Node
	default:
	}
	leases := slices.SortedFunc(slices.Values(append(slices.Clone(before.Leases), own)), func(a, b registry.Lease) int { return cmp.Compare(a.Slot, b.Slot) })
	return snapshot{set: registry.LeaseSet{Leases: leases}}, true
}

// refreshers holds the refreshers of networks in which this host takes no part. It is safe for concurrent use.
type refreshers struct {
	registry registry.Registry

	mu      sync.Mutex
	read    map[string]*refresher
	forgets *time.Timer // runs forget
}

// idleElsewhere is how long the refresher of such a network is kept without being used.
const idleElsewhere = 10 * time.Minute

// of returns the refresher of a network and creates it if necessary.
func (e *refreshers) of(network string) *refresher {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.forgets == nil {
		e.forgets = time.AfterFunc(idleElsewhere, e.forget)
	}
	f := e.read[network]
	if f == nil {
		f = newRefresher(e.registry, network, callTimeout, func() []registry.Lease { return nil })
		if e.read == nil {
			e.read = map[string]*refresher{}
		}
		e.read[network] = f
	}
	return f
}

// forget drops the refreshers that were not used for idleElsewhere. It schedules itself again if others remain.
func (e *refreshers) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.read, func(_ string, f *refresher) bool { return f.idle(idleElsewhere) })
	if len(e.read) == 0 {
		e.forgets = nil
		return
	}
	e.forgets.Reset(idleElsewhere)
}

// leasesElsewhere returns the leases of a network in which this host takes no part. If after is 0, they were read no
// longer than freshEvery ago. Otherwise it blocks until the store has another index than after.
func (a *Agent) leasesElsewhere(ctx context.Context, n registry.Network, after uint64) (
	registry.LeaseSet, uint64, error) {
	if after == 0 {
		snap, err := a.readElsewhere(ctx, n)
		return snap.set, snap.index, err
	}
	set, index, err := a.env.registry.WatchLeases(ctx, n, after)
	if err == nil {
		a.elsewhere.of(n.Name).learn(set, index) // otherwise the next reader would get an older answer
	}
	return set, index, err
}

func (a *Agent) readElsewhere(ctx context.Context, n registry.Network) (snapshot, error) {
	f := a.elsewhere.of(n.Name)
	f.refresh(ctx, n)
	if err := ctx.Err(); err != nil {
		return snapshot{}, err
	}
	snap := f.newest()
	if snap.read.IsZero() || time.Since(snap.read) > freshEvery+callTimeout {
		return snapshot{}, f.refreshError()
	}
	return snap.aged(), nil
}

// invalidateLeases makes the next reader of a network's leases see a change that was made through this agent.
func (a *Agent) invalidateLeases(network string) {
	if run, ok := a.runner(network); ok {
		run.fresh.invalidate()
		return
	}
	a.elsewhere.of(network).invalidate()
}
