package peers

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/registry"
)

// expireEvery is how often each host tries to remove records, on average.
const expireEvery = 20 * time.Second

// expireEach bounds how many records one host removes at a time: each attempt is a write in the store, and every host
// makes them.
const expireEach = 8

// expireLapsed removes, until ctx ends, records that have been lapsed for longer than hold, counted from when this
// agent first saw them lapsed. Every host tries. The first one succeeds, and the others fail because of the record's
// index.
func (f *Follower) expireLapsed(ctx context.Context, n registry.Network) error {
	for {
		if err := retry.Sleep(ctx, expireEvery/2+rand.N(expireEvery)); err != nil {
			return err
		}
		f.expireOnce(ctx, n)
	}
}

// expireOnce makes one pass. The snapshot may be late to show hosts that have come back, so it only decides whether the
// leases are read again.
func (f *Follower) expireOnce(ctx context.Context, n registry.Network) {
	log := f.o.Report.Log()
	snap, _ := f.Snapshot()
	if len(f.expired(snap.Set.Leases, time.Since(snap.Read))) == 0 {
		return
	}
	call, cancel := context.WithTimeout(ctx, retry.CallTimeout)
	now, _, err := f.o.Registry.WatchLeases(call, n, 0)
	cancel()
	if err != nil {
		log.Debug("lapsed leases could not be read", "error", err)
		return
	}
	leases := f.expired(now.Leases, 0)
	rand.Shuffle(len(leases), func(i, j int) { leases[i], leases[j] = leases[j], leases[i] })
	for _, l := range leases[:min(len(leases), expireEach)] {
		call, cancel := context.WithTimeout(ctx, retry.CallTimeout)
		err := f.o.Registry.Expire(call, l)
		cancel()
		switch {
		case err == nil:
			log.Info("lapsed lease removed", "subnet", l.Subnet(), "host", l.Node)
		case !errors.Is(err, registry.ErrConflict):
			log.Debug("lapsed lease could not be removed", "subnet", l.Subnet(), "host", l.Node, "error", err)
			return
		}
	}
}

// expired returns the leases that have been lapsed for at least hold. ago is the time since they were read.
func (f *Follower) expired(leases []registry.Lease, ago time.Duration) (out []registry.Lease) {
	for _, l := range leases {
		if !l.Held() && l.Lapsed+ago >= f.o.Settings.Hold {
			out = append(out, l)
		}
	}
	return out
}
