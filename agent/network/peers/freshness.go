package peers

import (
	"fmt"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// staleAfter is the age at which the known leases of the other hosts count as old even if no request has failed. A
// store without changes confirms that at least every two minutes, even if a request hangs.
const staleAfter = 3 * time.Minute

// snapshotPasses is the reason of the check while the leases can be read.
const snapshotPasses = "the leases of all hosts are followed"

// Followed returns when the store last said with certainty which leases there are, or that none has changed; zero for
// never. For a store that cannot tell, that is now as long as no read fails.
func (f *Follower) Followed() time.Time {
	snap, _ := f.Snapshot()
	last := snap.Read
	if followed := f.o.Registry.Abilities().Followed; followed != nil {
		if at := followed(f.o.Network); at.After(last) {
			last = at
		}
	} else if _, isFailing, _ := f.failure.Get(); !isFailing && !last.IsZero() {
		last = time.Now()
	}
	return last
}

// checkSnapshot sets the check of the snapshot: whether the leases can be read and, as the store confirms the leases of
// a quiet network now and then, whether they were confirmed. Only the publisher calls it. before is its last result,
// and it returns true if the check warns.
func (f *Follower) checkSnapshot(before bool) (warns bool) {
	err, isFailing, _ := f.failure.Get()
	last, log := f.Followed(), f.o.Report.Log()
	switch {
	case isFailing:
		if f.o.Report.Check(health.Snapshot, api.Warning, fmt.Sprintf("%s: %v", staleReason(last), registry.Brief(err))) {
			log.Warn("leases could not be read, peers keep their routes", "error", err)
		}
		return true
	case last.IsZero():
		return before
	case time.Since(last) >= staleAfter:
		if f.o.Report.Check(health.Snapshot, api.Warning, staleReason(last)) {
			log.Warn("leases have not been confirmed for a long time, peers keep their routes",
				"since", last.UTC().Format(time.RFC3339))
		}
		return true
	case f.o.Report.Check(health.Snapshot, api.Passing, snapshotPasses) && before:
		log.Info("leases are read again")
	}
	return false
}

// staleReason returns the reason of the check for leases that were last confirmed at that time.
func staleReason(last time.Time) string {
	at := "never"
	if !last.IsZero() {
		at = last.UTC().Format(time.RFC3339)
	}
	return "the leases of the other hosts were last confirmed " + at + ", peers keep their routes"
}
