package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// watchLeases keeps the snapshot of all leases. An answer that is not certain
// leaves it as it is.
func (r *runner) watchLeases(ctx context.Context, n registry.Network) error {
	retry := r.env.contact.retry()
	index := registry.Known // the claim has just read them
	failed := false
	for {
		set, next, err := r.env.registry.WatchLeases(ctx, n, index)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.unfollowed.Store(err != nil)
		r.used(useLeases, err)
		if err != nil {
			r.env.telemetry.Count(telemetry.WatchFailures, 1, n.Name)
			last := "never"
			if s, ok, _ := r.snapshot.get(); ok {
				last = s.read.UTC().Format(time.RFC3339)
			}
			if r.env.health.set(r.local.Name, checkSnapshot, api.Warning,
				fmt.Sprintf("leases last read %s, peers keep their routes: %v", last, err)) {
				r.log.Warn("leases could not be read, peers keep their routes", "error", err)
			}
			failed = true
			if err := retry.wait(ctx, err, nil); err != nil {
				return err
			}
			continue
		}
		r.env.telemetry.Count(telemetry.WatchReads, 1, n.Name)
		index = next
		before, known, _ := r.snapshot.get()
		if known && before.set.SetBack != set.SetBack {
			r.log.Warn("the store was emptied or set back to an older state")
			r.event(api.EventStore, api.Warning, "the store was emptied or set back to an older state", nil)
			r.env.setBack.set(struct{}{})
			r.reassert(ctx, n)
		}
		set = keepKnown(n.Name, set, before.set.Leases)
		now := snapshot{set: set, index: next, read: time.Now()}
		r.snapshot.set(now)
		r.peersChanged(before, now, known)
		r.settled()
		if r.env.health.set(r.local.Name, checkSnapshot, api.Passing, "leases are followed") && failed {
			r.log.Info("leases are read again")
		}
		failed = false
		r.records.set("lease list", set.Bad)
	}
}
