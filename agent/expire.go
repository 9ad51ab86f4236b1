package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/registry"
)

// expireEach bounds how many records one host removes in a slow tick: each attempt is a write in the store, and every
// host makes them.
const expireEach = 8

// expireLapsed removes, until ctx ends, records that have been lapsed for longer than hold, counted from when this
// agent first saw them lapsed. Every host tries. The first one succeeds, and the others fail because of the record's
// index.
func (r *runner) expireLapsed(ctx context.Context, n registry.Network) error {
	for {
		if err := retry.Sleep(ctx, slowTick/2+rand.N(slowTick)); err != nil {
			return err
		}
		r.expireOnce(ctx, n)
	}
}

// expireOnce makes one pass. The snapshot may be late to show hosts that have come back, so it only decides whether the
// leases are read again.
func (r *runner) expireOnce(ctx context.Context, n registry.Network) {
	snap, _, _ := r.snapshot.Get()
	if len(r.due(snap.set.Leases, time.Since(snap.read))) == 0 {
		return
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	now, _, err := r.env.registry.WatchLeases(call, n, 0)
	cancel()
	if err != nil {
		r.log.Debug("lapsed leases stay", "error", err)
		return
	}
	leases := r.due(now.Leases, 0)
	rand.Shuffle(len(leases), func(i, j int) { leases[i], leases[j] = leases[j], leases[i] })
	for _, l := range leases[:min(len(leases), expireEach)] {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := r.env.registry.Expire(call, l)
		cancel()
		switch {
		case err == nil:
			r.log.Info("lapsed lease removed", "subnet", l.Subnet(), "host", l.Node)
		case !errors.Is(err, registry.ErrConflict):
			r.log.Debug("lapsed lease stays", "subnet", l.Subnet(), "host", l.Node, "error", err)
			return
		}
	}
}

// due returns the leases that have been lapsed for at least hold. ago is the time since they were read.
func (r *runner) due(leases []registry.Lease, ago time.Duration) (out []registry.Lease) {
	for _, l := range leases {
		if !l.Held() && l.Lapsed+ago >= r.config.Lease.Hold {
			out = append(out, l)
		}
	}
	return out
}
