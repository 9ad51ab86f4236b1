package peers

import (
	"fmt"
	"sync"
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

// freshness says whether the leases can be read.
type freshness struct {
	mu      sync.Mutex // also held while the check is set, which must not pass after a failure
	failing bool       // the last read of the leases failed
}

func (s *freshness) setFailing(failing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = failing
}

func (s *freshness) isFailing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failing
}

// Followed returns when the store last said with certainty which leases there are, or that none has changed; zero for
// never. For a store that cannot tell, that is now as long as no read fails.
func (f *Follower) Followed() time.Time {
	snap, _ := f.Snapshot()
	last := snap.Read
	if follower, ok := f.o.Registry.(registry.Follower); ok {
		if at := follower.Followed(f.o.Network); at.After(last) {
			last = at
		}
	} else if !f.freshness.isFailing() && !last.IsZero() {
		last = time.Now()
	}
	return last
}

// checkAge updates the check of the snapshot while no read has failed. The store confirms the leases of a quiet network
// now and then; without any confirmation the leases may be out of date.
func (f *Follower) checkAge() {
	last := f.Followed()
	f.freshness.mu.Lock()
	defer f.freshness.mu.Unlock()
	if f.freshness.failing || last.IsZero() {
		return
	}
	if time.Since(last) < staleAfter {
		f.o.Report.Check(health.Snapshot, api.Passing, snapshotPasses)
		return
	}
	if f.o.Report.Check(health.Snapshot, api.Warning, staleReason(last)) {
		f.o.Report.Log().Warn("leases have not been confirmed for a long time, peers keep their routes",
			"since", last.UTC().Format(time.RFC3339))
	}
}

// reportFailure reports that the leases could not be read.
func (f *Follower) reportFailure(err error) {
	reason := staleReason(f.Followed())
	f.freshness.mu.Lock()
	defer f.freshness.mu.Unlock()
	f.freshness.failing = true
	if f.o.Report.Check(health.Snapshot, api.Warning, fmt.Sprintf("%s: %v", reason, err)) {
		f.o.Report.Log().Warn("leases could not be read, peers keep their routes", "error", err)
	}
}

// staleReason returns the reason of the check for leases that were last confirmed at that time.
func staleReason(last time.Time) string {
	at := "never"
	if !last.IsZero() {
		at = last.UTC().Format(time.RFC3339)
	}
	return "the leases of the other hosts were last confirmed " + at + ", peers keep their routes"
}
