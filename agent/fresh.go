package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lenonet/leno/registry"
)

// The snapshot follows what hosts write. That a host fell silent is written by
// nobody, so who asks for leases has them read anew, no more often than this
// and for no longer.
const (
	freshEvery   = 5 * time.Second
	freshTimeout = 2 * time.Second
)

// fresh is the reading of all leases that the API asked for last.
type fresh struct {
	mu     sync.Mutex
	begun  time.Time     // when the last one began
	flight chan struct{} // closed when it has ended, nil when none is under way
	last   snapshot
	err    error                // why the last reading failed, nil when it did not
	news   *published[struct{}] // set at each reading
}

// leasesNow is all leases as they are now, or, when the store does not say, as
// they were known last; false when they never were.
func (r *runner) leasesNow(ctx context.Context, n registry.Network) (snapshot, bool) {
	r.refresh(ctx, n)
	return r.leasesKnown()
}

// leasesKnown is all leases as last read, by whomever; false when they never were.
func (r *runner) leasesKnown() (snapshot, bool) {
	r.fresh.mu.Lock()
	newest := r.fresh.last
	r.fresh.mu.Unlock()
	if snap, ok, _ := r.snapshot.get(); ok && !newest.read.After(snap.read) {
		newest = snap
	}
	return newest.aged(), !newest.read.IsZero()
}

// unread is why no leases are known.
func (r *runner) unread() error {
	r.fresh.mu.Lock()
	defer r.fresh.mu.Unlock()
	if r.fresh.err != nil {
		return r.fresh.err
	}
	return fmt.Errorf("leases of network %s: %w: not read yet", r.local.Name, registry.ErrUnavailable)
}

// aged is the snapshot with the time since it was read counted in.
func (s snapshot) aged() snapshot {
	s.set.Leases = slices.Clone(s.set.Leases)
	for i := range s.set.Leases {
		if l := &s.set.Leases[i]; !l.Held() {
			l.Lapsed += time.Since(s.read)
		}
	}
	return s
}

// refresh reads the leases unless that was just done. All who ask meanwhile wait
// for the one reading.
func (r *runner) refresh(ctx context.Context, n registry.Network) {
	f := &r.fresh
	f.mu.Lock()
	if f.flight != nil {
		ended := f.flight
		f.mu.Unlock()
		select {
		case <-ended:
		case <-ctx.Done():
		}
		return
	}
	if time.Since(f.begun) < freshEvery {
		f.mu.Unlock()
		return
	}
	ended := make(chan struct{})
	f.flight, f.begun = ended, time.Now()
	f.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	set, index, err := r.env.registry.WatchLeases(ctx, n, 0)
	f.mu.Lock()
	defer f.mu.Unlock()
	defer close(ended)
	defer f.news.set(struct{}{})
	f.flight, f.err = nil, err
	if err == nil {
		known, _, _ := r.snapshot.get()
		f.last = snapshot{set: keepKnown(n.Name, set, known.set.Leases), index: index, read: time.Now()}
	}
}

// outdated makes whoever asks next read anew: leases were changed through this
// agent, and who did that is to see it.
func (r *runner) outdated() {
	r.fresh.mu.Lock()
	defer r.fresh.mu.Unlock()
	r.fresh.begun = time.Time{}
}

// lapsePace is how long a lapse stays unseen by those who wait for news of so many
// leases. Nobody writes that a host fell silent: it takes a reading of all leases,
// which are about 400 bytes each.
func lapsePace(leases int) time.Duration {
	return 15*time.Second + time.Duration(leases)*5*time.Millisecond
}
