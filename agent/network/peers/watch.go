package peers

import (
	"context"
	"time"

	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// leaseList is the command that lists the leases, for the check of records that cannot be used.
const leaseList = "lease list"

// watchLeases keeps the snapshot of all leases up to date until ctx ends. It keeps the previous snapshot after an
// uncertain answer. With another definition it goes on from the same index.
func (f *Follower) watchLeases(ctx context.Context, definition *watch.Value[registry.Network]) error {
	backoff := f.o.Outage.NewLoop()
	index := registry.Known // the claim has just read them
	for {
		n, _, redefined := definition.Get()
		call, cancel := definition.Until(ctx, redefined)
		set, next, err := f.o.Registry.WatchLeases(call, n, index)
		isOver := err != nil && call.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case isOver:
			continue
		}
		f.o.Report.Used(report.Leases, err)
		if err != nil {
			f.o.Report.Count(telemetry.WatchFailures, 1)
			f.failure.Set(err)
			if err := backoff.Wait(ctx, err, nil); err != nil {
				return err
			}
			continue
		}
		if _, isFailing, _ := f.failure.Get(); isFailing {
			f.failure.Clear()
		}
		f.o.Report.Count(telemetry.WatchReads, 1)
		index = next
		f.takeOver(n, set, next)
	}
}

// takeOver makes a set of leases that the watch has read the snapshot, and reports what has changed.
func (f *Follower) takeOver(n registry.Network, set registry.LeaseSet, index uint64) {
	before, known := f.Snapshot()
	if known && set.SetBack > before.Set.SetBack {
		f.o.Report.Log().Warn("the store was emptied or set back to an older state")
		f.o.Report.Event(api.EventStore, api.Warning, "the store was emptied or set back to an older state", nil)
		f.o.SetBack.Set(struct{}{})
	}
	set = keepKnown(n.Name, set, before.Set.Leases)
	now := Snapshot{Set: set, Index: index, Read: time.Now()}
	f.snapshot.Set(now)
	f.reportPeers(before, now, known)
	f.o.Answered()
	f.records.Set(leaseList, set.Bad)
}
