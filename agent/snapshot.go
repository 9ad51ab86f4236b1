package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// staleAfter is the age at which the known leases of the other hosts count as old even if no request has failed. A
// store without changes confirms that at least every two minutes, even if a request hangs.
const staleAfter = 3 * time.Minute

// followed returns when the store last said with certainty which leases there are, or that none has changed; zero for
// never. For a store that cannot tell, that is now as long as no read fails.
func (r *runner) followed() time.Time {
	snap, _, _ := r.snapshot.Get()
	last := snap.read
	if follower, ok := r.env.registry.(registry.Follower); ok {
		if at := follower.Followed(r.local.Name); at.After(last) {
			last = at
		}
	} else if !r.unfollowed.Load() && !last.IsZero() {
		last = time.Now()
	}
	return last
}

// checkAge updates the check of the snapshot while no read has failed. The store confirms the leases of a quiet network
// now and then; without any confirmation the leases may be out of date.
func (r *runner) checkAge() {
	last := r.followed()
	r.following.Lock()
	defer r.following.Unlock()
	if r.unfollowed.Load() || last.IsZero() {
		return
	}
	if time.Since(last) < staleAfter {
		r.report.Check(health.Snapshot, api.Passing, snapshotPasses)
		return
	}
	if r.report.Check(health.Snapshot, api.Warning, old(last)) {
		r.log.Warn("nothing was heard of the leases for long, peers keep their routes", "since", last.UTC().Format(time.RFC3339))
	}
}

// stopFollowing reports that the leases could not be read.
func (r *runner) stopFollowing(err error) {
	last := old(r.followed())
	r.following.Lock()
	defer r.following.Unlock()
	r.unfollowed.Store(true)
	if r.report.Check(health.Snapshot, api.Warning, fmt.Sprintf("%s: %v", last, err)) {
		r.log.Warn("leases could not be read, peers keep their routes", "error", err)
	}
}

const snapshotPasses = "the leases of all hosts are followed"

// old returns the reason of the check for a snapshot that was last confirmed at that time.
func old(last time.Time) string {
	at := "never"
	if !last.IsZero() {
		at = last.UTC().Format(time.RFC3339)
	}
	return "the leases of the other hosts were last confirmed " + at + ", peers keep their routes"
}

// keepAge checks the age of the snapshot regularly until ctx ends.
func (r *runner) keepAge(ctx context.Context) error {
	for {
		if err := retry.Sleep(ctx, slowTick); err != nil {
			return err
		}
		r.checkAge()
	}
}

// watchLeases keeps the snapshot of all leases up to date. It keeps the previous snapshot after an uncertain answer.
func (r *runner) watchLeases(ctx context.Context, n registry.Network) error {
	backoff := r.env.outage.NewLoop()
	index := registry.Known // the claim has just read them
	failed := false
	for {
		set, next, err := r.env.registry.WatchLeases(ctx, n, index)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.report.Used(report.Leases, err)
		if err != nil {
			r.report.Count(telemetry.WatchFailures, 1)
			r.stopFollowing(err)
			failed = true
			if err := backoff.Wait(ctx, err, nil); err != nil {
				return err
			}
			continue
		}
		r.unfollowed.Store(false)
		r.report.Count(telemetry.WatchReads, 1)
		index = next
		before, known, _ := r.snapshot.Get()
		if known && set.SetBack > before.set.SetBack {
			r.log.Warn("the store was emptied or set back to an older state")
			r.report.Event(api.EventStore, api.Warning, "the store was emptied or set back to an older state", nil)
			r.env.setBack.Set(struct{}{})
		}
		set = keepKnown(n.Name, set, before.set.Leases)
		now := snapshot{set: set, index: next, read: time.Now()}
		r.snapshot.Set(now)
		r.reportPeers(before, now, known)
		r.settled()
		if r.report.Check(health.Snapshot, api.Passing, snapshotPasses) && failed {
			r.log.Info("leases are read again")
		}
		failed = false
		r.records.set("lease list", set.Bad)
	}
}
