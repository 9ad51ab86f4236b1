package peers

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
)

// checkEvery is how often the age of the snapshot is checked.
const checkEvery = 20 * time.Second

// A publisher is the loop of one Run that makes Views of the definition, this host's lease, the snapshot and the
// remembered peers.
// Requests to the store run beside the loop, so no View waits for one.
type publisher struct {
	follower   *Follower
	definition *watch.Value[registry.Network]
	own        *watch.Value[registry.Lease]
	cache      *peerCache
	saver      *saver
	ranked     *belief.Seniority

	view     *View           // as published last, nil for none
	snapshot Snapshot        // that view is made from
	ownSeen  <-chan struct{} // closed when the lease is written again after it was last looked at
	reread   Snapshot        // the leases as read when remembered peers might go, zero for not read

	settled  <-chan time.Time // fires when remembered peers that the store lacks may go
	doubted  <-chan time.Time // fires when another host that is taken for this one may have gone
	rereads  chan Snapshot    // what was read after settled fired
	rechecks chan Snapshot    // what was read after doubted fired
}

func newPublisher(
	f *Follower, definition *watch.Value[registry.Network], own *watch.Value[registry.Lease],
) *publisher {
	n, _, _ := definition.Get()
	cache := loadCache(f.o.DataDir, n, SettleTime(f.o.Settings))
	cache.Foreign = f.o.Foreign
	ranked := belief.NewSeniority(cache.Leases, cache.ranks)
	if f.cache != nil && slices.Equal(f.plan, n.Plan) { // otherwise the leases have other slots
		cache.Remembered = f.cache.Remembered
	}
	f.cache, f.plan = cache, n.Plan
	return &publisher{
		follower:   f,
		definition: definition,
		own:        own,
		cache:      cache,
		saver:      newSaver(cache, f.o.Report),
		ranked:     ranked,
		rereads:    make(chan Snapshot),
		rechecks:   make(chan Snapshot),
	}
}

// run publishes Views until ctx ends, and writes the peers file before it returns.
func (p *publisher) run(ctx context.Context) error {
	defer p.saver.finish()
	var requests sync.WaitGroup
	defer requests.Wait()
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for warned := false; ; {
		n, _, redefined := p.definition.Get()
		own, held, ownChanged := p.own.Get()
		snap, read, snapChanged := p.follower.snapshot.Get()
		_, _, failureChanged := p.follower.failure.Get()
		warned = p.follower.checkSnapshot(warned)
		switch {
		case !read:
			p.follower.o.Report.SetState("waiting for the leases of the other hosts")
		case held:
			if !p.update(n, own, snap) && ownChanged != p.ownSeen {
				// The host may have waited for the lease that it has got back unchanged: the datapath says when it runs.
				p.follower.views.Set(p.view)
			}
			p.ownSeen = ownChanged
			p.saver.save(p.view)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-redefined:
		case <-ownChanged:
		case <-snapChanged:
		case <-failureChanged:
		case <-p.saver.due:
		case <-p.settled:
			// The snapshot may be as old as the wait was long: the store did not answer, or this process was suspended.
			p.settled = nil
			p.request(ctx, n, &requests, p.rereads)
		case p.reread = <-p.rereads:
			if len(p.cache.Leases) > 0 {
				p.settled = time.After(RefreshEvery)
			}
		case <-p.doubted:
			p.doubted = nil
			p.request(ctx, n, &requests, p.rechecks)
		case now := <-p.rechecks:
			if now.Read.Before(p.snapshot.Read) {
				now = p.snapshot
			}
			p.judge(now.Set.Leases)
		case <-tick.C:
		}
	}
}

// request reads the leases beside the loop and sends them to answer.
func (p *publisher) request(
	ctx context.Context, n registry.Network, requests *sync.WaitGroup, answer chan<- Snapshot,
) {
	requests.Go(func() {
		now, _ := p.follower.now(ctx, n)
		select {
		case answer <- now:
		case <-ctx.Done():
		}
	})
}

// update publishes a View if the definition, this host's lease or the leases differ from those of the last View, and
// reports whether it did.
func (p *publisher) update(n registry.Network, own registry.Lease, snap Snapshot) bool {
	if p.reread.Read.After(snap.Read) {
		snap = p.reread
	}
	if v := p.view; v != nil && p.snapshot.isSame(snap) && reflect.DeepEqual(v.Own, own) &&
		reflect.DeepEqual(v.Network, n) {
		return false
	}
	p.snapshot = snap
	leases := p.merge(n)
	p.view = &View{Network: n, Own: own, Leases: leases, Seniority: p.ranked.Update(leases)}
	p.follower.views.Set(p.view)
	p.judge(snap.Set.Leases)
	return true
}

// merge returns the leases of the snapshot and those that are only remembered. If there are any of these, it sets the
// time at which the leases must be read again because the remembered ones may then be dropped.
func (p *publisher) merge(n registry.Network) []registry.Lease {
	first := p.cache.Since.IsZero()
	all, until := p.cache.Merge(n, p.snapshot.Set.Leases, p.snapshot.Read)
	if until.IsZero() {
		p.settled = nil
		return all
	}
	if first {
		p.follower.o.Report.Log().Info("peers missing from the store stay until it has settled",
			"until", until.UTC().Format(time.RFC3339))
	}
	p.settled = time.After(max(time.Until(until), RefreshEvery))
	return all
}

// judge reports the conflicts among leases. If there are any, it sets the time at which the leases should be read
// again: no host writes a record when another one falls silent.
func (p *publisher) judge(leases []registry.Lease) {
	found := conflicts(leases, p.view.Own)
	p.follower.o.Suspect(found)
	p.doubted = nil
	if found.Reason != "" {
		p.doubted = time.After(RefreshEvery)
	}
}
