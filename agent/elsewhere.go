package agent

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/registry"
)

// callTimeout bounds one short request to the store.
const callTimeout = retry.CallTimeout

// elsewhere reads the leases of networks in which this host takes no part. It is safe for concurrent use.
type elsewhere struct {
	registry registry.Registry

	mu      sync.Mutex
	known   map[string]*peers.Refresher
	forgets *time.Timer // runs forget
}

// idleElsewhere is how long the refresher of such a network is kept without being used.
const idleElsewhere = 10 * time.Minute

// of returns the refresher of a network and creates it if necessary.
func (e *elsewhere) of(network string) *peers.Refresher {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.forgets == nil {
		e.forgets = time.AfterFunc(idleElsewhere, e.forget)
	}
	f := e.known[network]
	if f == nil {
		f = peers.NewRefresher(e.registry, network, callTimeout, func() []registry.Lease { return nil })
		if e.known == nil {
			e.known = map[string]*peers.Refresher{}
		}
		e.known[network] = f
	}
	return f
}

// forget drops the elsewhere that were not used for idleElsewhere. It schedules itself again if others remain.
func (e *elsewhere) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.known, func(_ string, f *peers.Refresher) bool { return f.Idle(idleElsewhere) })
	if len(e.known) == 0 {
		e.forgets = nil
		return
	}
	e.forgets.Reset(idleElsewhere)
}

// leases returns the leases of a network in which this host takes no part. If after is 0, they were read no
// longer than peers.RefreshEvery ago. Otherwise it blocks until the store has another index than after.
func (e *elsewhere) leases(ctx context.Context, n registry.Network, after uint64) (
	registry.LeaseSet, uint64, error) {
	if after == 0 {
		snap, err := e.read(ctx, n)
		return snap.Set, snap.Index, err
	}
	set, index, err := e.registry.WatchLeases(ctx, n, after)
	if err == nil {
		e.of(n.Name).Learn(set, index) // otherwise the next reader would get an older answer
	}
	return set, index, err
}

func (e *elsewhere) read(ctx context.Context, n registry.Network) (peers.Snapshot, error) {
	f := e.of(n.Name)
	f.Refresh(ctx, n)
	if err := ctx.Err(); err != nil {
		return peers.Snapshot{}, err
	}
	snap := f.Newest()
	if snap.Read.IsZero() || time.Since(snap.Read) > peers.RefreshEvery+callTimeout {
		return peers.Snapshot{}, f.Err()
	}
	return snap.Aged(), nil
}
