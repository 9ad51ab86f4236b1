package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/probe"
	"github.com/lenonet/leno/registry"
)

// patience bounds every wait of a measurement; only a failure takes that long.
const patience = 10 * time.Minute

// still is how long no watcher may receive anything before a measurement ends. It is longer than
// any pause of a watcher between two reads.
const still = 600 * time.Millisecond

// A fleet is many watchers of one network, spread over the servers.
type fleet struct {
	store    store
	network  registry.Network
	watchers []*watcher
	goal     atomic.Pointer[goal]

	stop    context.CancelFunc
	running sync.WaitGroup
}

// A sample is the cost of one event for all watchers, until the traffic has stopped again.
type sample struct {
	seen             time.Duration // from the first write until the last watcher has seen it
	bytes            int64
	reads            int64
	failures         int64         // reads that failed and were repeated
	servers, clients time.Duration // CPU time; the clients' includes decoding
}

// launch starts n watchers and waits until each has all leases of the world.
func launch(ctx context.Context, w *world, how layout, n int) (*fleet, sample, error) {
	f := &fleet{store: w.store, network: w.network}
	for i := range n {
		one := &watcher{}
		follow, err := how.open(w.store, i, w.network, &one.meter)
		if err != nil {
			return nil, sample{}, err
		}
		one.follow = follow
		f.watchers = append(f.watchers, one)
	}
	running, stop := context.WithCancel(ctx)
	f.stop = stop
	all := len(w.records)
	s, err := f.observe(ctx, func(leases []registry.Lease) bool { return len(leases) == all }, func(context.Context) error {
		for _, one := range f.watchers {
			f.running.Go(func() { one.run(running, &f.goal) })
		}
		return nil
	})
	if err != nil {
		f.close()
		return nil, s, err
	}
	return f, s, nil
}

// observe runs do and measures its cost until all watchers have met the goal and the traffic has
// stopped. Without a goal it only waits for the traffic to stop.
func (f *fleet) observe(ctx context.Context, met func([]registry.Lease) bool, do func(context.Context) error) (s sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var g *goal
	if met != nil {
		g = newGoal(len(f.watchers), met)
		f.goal.Store(g)
	}
	before, err := f.usage()
	if err != nil {
		return s, err
	}
	start := time.Now()
	if err := do(ctx); err != nil {
		return s, err
	}
	if g != nil {
		select {
		case <-g.done:
			s.seen = g.last.Sub(start)
		case <-ctx.Done():
			return s, fmt.Errorf("%d of %d watchers have not seen it after %s: %w%s",
				g.left.Load(), len(f.watchers), time.Since(start).Round(time.Second), ctx.Err(), f.troubles())
		}
	}
	if err := f.quiet(ctx); err != nil {
		return s, err
	}
	after, err := f.usage()
	s.bytes, s.reads, s.failures = after.bytes-before.bytes, after.reads-before.reads, after.failures-before.failures
	s.servers, s.clients = after.servers-before.servers, after.clients-before.clients
	return s, err
}

// quiet blocks until no watcher has received anything for a while.
func (f *fleet) quiet(ctx context.Context) error {
	last, since := int64(-1), time.Now()
	for time.Since(since) < still {
		if bytes := f.received(); bytes != last {
			last, since = bytes, time.Now()
		}
		if err := lab.Sleep(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("wait until the watchers are quiet: %w%s", err, f.troubles())
		}
	}
	return nil
}

func (f *fleet) received() (sum int64) {
	for _, w := range f.watchers {
		sum += w.received.Load()
	}
	return sum
}

// usage returns the totals so far, without seen.
func (f *fleet) usage() (s sample, err error) {
	s.bytes = f.received()
	for _, w := range f.watchers {
		s.reads += w.reads.Load()
		s.failures += w.failures.Load()
	}
	if s.servers, err = f.store.cpu(); err != nil {
		return s, err
	}
	s.clients, err = probe.CPUTime(os.Getpid())
	return s, err
}

// troubles returns the errors of the watchers' reads, for error messages.
func (f *fleet) troubles() string {
	var count int64
	var last error
	for _, w := range f.watchers {
		count += w.failures.Load()
		if err := w.failure.Load(); err != nil {
			last = *err
		}
	}
	if count == 0 {
		return ""
	}
	return fmt.Sprintf("; %d reads failed, the last: %v", count, last)
}

// close ends the watchers.
func (f *fleet) close() {
	f.stop()
	f.running.Wait()
}

// verify ends the watchers and compares the view of each with a consistent read.
func (f *fleet) verify(truth []registry.Lease) error {
	f.close()
	for i, w := range f.watchers {
		if d := difference(w.view, truth); d != "" {
			return fmt.Errorf("watcher %d of network %s sees %s%s", i, f.network.Name, d, f.troubles())
		}
	}
	return nil
}
