package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/registry"
)

// A size is the number of leases in one network and the number of hosts that watch them.
type size struct{ leases, watchers int }

// aims are the maximum values by size and event.
var aims = map[size]map[string]aim{
	{1000, 500}: {
		"100 changes at once": {seen: 600 * time.Millisecond, bytes: 50e6},
	},
	{10000, 100}: {
		"one change": {seen: 100 * time.Millisecond, each: 2000},
	},
}

// A measurement is one run of all requested parts.
type measurement struct {
	kind    string // lab.StoreConsul or lab.StoreEtcd
	store   store
	result  *result
	rounds  int
	burst   int           // changes in a burst, and in a spread
	spread  time.Duration // duration over which changes are spread
	minute  time.Duration // length of the minute at rest, which a short run reduces
	layouts []layout
	log     func(format string, args ...any)
}

// watching measures one size with each layout in turn.
func (m *measurement) watching(ctx context.Context, s size, rest bool) error {
	for i, how := range m.layouts {
		name := fmt.Sprintf("scale-%d-%d", s.leases, i)
		w, err := newWorld(ctx, m.store, name, s.leases, m.share(rest))
		if err != nil {
			return fmt.Errorf("write %d leases: %w", s.leases, err)
		}
		if err := m.layout(ctx, w, how, s, rest); err != nil {
			return fmt.Errorf("%d leases, %d watchers, %s: %w", s.leases, s.watchers, how.name, err)
		}
	}
	return nil
}

// share returns how many leases share a session. It returns 1 if they are to lapse: destroying one
// session for many leases would be too easy.
func (m *measurement) share(rest bool) int {
	if rest {
		return 1
	}
	return 100
}

func (m *measurement) layout(ctx context.Context, w *world, how layout, s size, rest bool) error {
	m.log("%d leases, %d watchers, %s: first read", s.leases, s.watchers, m.store.label(how.name))
	f, first, err := launch(ctx, w, how, s.watchers)
	if err != nil {
		return err
	}
	defer f.close()
	m.took(s, "first read", how, first)
	run := &run{measurement: m, world: w, fleet: f, how: how, size: s, mtu: 1300}
	rounds := m.rounds
	if how.name != leno.name {
		rounds = 1 // it takes long, and precise values are not needed
	}
	for range rounds {
		if err := run.changes(ctx, "one change", 1, 0); err != nil {
			return err
		}
	}
	for range rounds {
		if err := run.changes(ctx, fmt.Sprintf("%d changes at once", m.burst), m.burst, 0); err != nil {
			return err
		}
	}
	if err := run.changes(ctx, fmt.Sprintf("%d changes in %s", m.burst, m.spread), m.burst, m.spread); err != nil {
		return err
	}
	if rest {
		if err := run.atRest(ctx); err != nil {
			return err
		}
	}
	truth, err := w.store.truth(ctx, w.network)
	if err != nil {
		return err
	}
	return f.verify(truth)
}

// A run is one layout at one size.
type run struct {
	*measurement
	world *world
	fleet *fleet
	how   layout
	size  size
	mtu   int // different for each event
}

func (r *run) event(ctx context.Context, name string, met func([]registry.Lease) bool, do func(context.Context) error) error {
	r.log("%d leases, %d watchers, %s: %s", r.size.leases, r.size.watchers, r.store.label(r.how.name), name)
	s, err := r.fleet.observe(ctx, met, do)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	r.took(r.size, name, r.how, s)
	return nil
}

// took records a sample and logs its failures.
func (m *measurement) took(s size, event string, how layout, got sample) {
	if got.failures > 0 {
		m.log("%s: %d reads failed and were made again", event, got.failures)
	}
	m.result.row(s, event, m.store.label(how.name), got)
}

// changes makes n changes, all at once or spread evenly.
func (r *run) changes(ctx context.Context, name string, n int, over time.Duration) error {
	r.mtu++
	mtu := r.mtu
	return r.event(ctx, name, withMTU(n, mtu), func(ctx context.Context) error {
		var group errgroup.Group
		for i := range n {
			group.Go(func() error {
				if err := lab.Sleep(ctx, over*time.Duration(i)/time.Duration(n)); err != nil {
					return err
				}
				return r.world.change(ctx, i, mtu)
			})
		}
		return group.Wait()
	})
}

// atRest measures what happens without changes by hosts: old entries of the directory are deleted,
// all hosts fall silent at once, a record is edited by hand.
func (r *run) atRest(ctx context.Context) error {
	if r.how.name == leno.name {
		err := r.event(ctx, "the minute after that", nil, func(ctx context.Context) error { return lab.Sleep(ctx, r.minute) })
		if err != nil {
			return err
		}
	}
	if err := r.lapses(ctx); err != nil {
		return err
	}
	r.mtu++
	want := len(r.world.records) - 1
	changed := withMTU(1, r.mtu)
	return r.event(ctx, "edit by hand", func(leases []registry.Lease) bool {
		return len(leases) == want && changed(leases)
	}, func(ctx context.Context) error { return r.world.byHand(ctx, r.mtu) })
}

// lapses ends all sessions. leno need not report that, so the consequences are awaited; a plain
// watch is done when all watchers have seen it.
func (r *run) lapses(ctx context.Context) error {
	met := func(leases []registry.Lease) bool { return !slices.ContainsFunc(leases, registry.Lease.Held) }
	var wait time.Duration
	if r.how.name == leno.name {
		met, wait = nil, r.minute
	}
	return r.event(ctx, fmt.Sprintf("%d leases lapse", len(r.world.records)), met, func(ctx context.Context) error {
		if err := r.world.lapse(ctx); err != nil {
			return err
		}
		return lab.Sleep(ctx, wait)
	})
}
