package peers

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/registry"
)

// RefreshEvery is the least time between two readings of a Refresher. A watch sees what hosts write, but no host writes
// a record when another one falls silent. That is why the leases are also read on request.
const RefreshEvery = 5 * time.Second

// refreshTimeout is how long a request waits for leases that a watch knows as well.
const refreshTimeout = 2 * time.Second

// A Refresher reads all leases of a network on request, once for all callers. It is safe for concurrent use.
type Refresher struct {
	registry registry.Registry
	network  string
	timeout  time.Duration
	known    func() []registry.Lease

	reading singleflight.Group
	begun   atomic.Pointer[time.Time] // when the last reading began, nil if the next one is due
	last    *watch.Value[reading]
}

// A reading is the result of reading all leases.
type reading struct {
	Snapshot       // of the last reading that did not fail
	err      error // of the last one
}

// NewRefresher returns a Refresher of a network's leases. timeout bounds one reading. known returns the leases that the
// datapath uses, or nil: those whose records cannot be used stay in the result.
func NewRefresher(
	reg registry.Registry, network string, timeout time.Duration, known func() []registry.Lease,
) *Refresher {
	return &Refresher{
		registry: reg,
		network:  network,
		timeout:  timeout,
		known:    known,
		last:     watch.New[reading](),
	}
}

// Refresh reads the leases, unless the last reading began less than RefreshEvery ago. It blocks until they are read or
// ctx ends. Callers share a reading, so it goes on when one of them gives up.
func (r *Refresher) Refresh(ctx context.Context, n registry.Network) {
	ended := r.reading.DoChan("", func() (any, error) {
		r.read(n)
		return nil, nil
	})
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// read makes one reading if it is due.
func (r *Refresher) read(n registry.Network) {
	began := time.Now()
	if before := r.begun.Load(); before != nil && began.Sub(*before) < RefreshEvery {
		return
	}
	r.begun.Store(&began)
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	set, index, err := r.registry.WatchLeases(ctx, n, 0)
	now := Snapshot{Set: keepKnown(n.Name, set, r.known()), Index: index, Read: time.Now()}
	r.last.Update(func(last *reading) {
		if last.err = err; err == nil && !last.Read.After(began) {
			last.Snapshot = now
		}
	})
}

// Learn stores what was read in another way.
func (r *Refresher) Learn(set registry.LeaseSet, index uint64) {
	r.last.Set(reading{Snapshot: Snapshot{Set: set, Index: index, Read: time.Now()}})
}

// Clear forgets what was read. The next Refresh reads the leases.
func (r *Refresher) Clear() {
	r.last.Clear()
	r.Invalidate()
}

// Newest returns the last reading. Its field Read is zero if there is none.
func (r *Refresher) Newest() Snapshot {
	last, _, _ := r.last.Get()
	return last.Snapshot
}

// Err returns why no leases are known.
func (r *Refresher) Err() error {
	if last, _, _ := r.last.Get(); last.err != nil {
		return last.err
	}
	return fmt.Errorf("leases of network %s: %w: not read yet", r.network, registry.ErrUnavailable)
}

// Invalidate makes the next Refresh read the leases. It is called after a change through this agent, so that the caller
// sees the change.
func (r *Refresher) Invalidate() { r.begun.Store(nil) }

// Idle reports whether no reading began within d, which is longer than one may take.
func (r *Refresher) Idle(d time.Duration) bool {
	begun := r.begun.Load()
	return begun == nil || time.Since(*begun) > d
}

// Changed returns a channel that is closed when the next reading has ended.
func (r *Refresher) Changed() <-chan struct{} {
	_, _, changed := r.last.Get()
	return changed
}
