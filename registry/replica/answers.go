package replica

import (
	"sync"
	"time"
)

// Answers notes how calls that watch the same thing ended, or that only read it. The zero value is ready to use. Answers
// is safe for concurrent use.
type Answers struct {
	mu      sync.Mutex
	owed    bool      // a call failed, and no call that watches has been answered since
	failed  bool      // the last call failed
	certain time.Time // if failed, when the thing was last known with certainty; otherwise zero before the first answer
}

// Ended notes how a call with an index ended, unless its caller ended it. confirmed is when the store last confirmed what
// it said.
func (a *Answers) Ended(after uint64, err error, confirmed time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err == nil:
		a.failed, a.certain = false, confirmed
		a.owed = a.owed && after == 0 // a read for another caller tells the one that watches nothing
	case !a.failed && !a.certain.IsZero():
		a.failed, a.owed, a.certain = true, true, confirmed
	default:
		a.failed, a.owed = true, true
	}
}

// Owed reports whether a call that watches must return at once, even if nothing has changed: one has failed, and its
// caller has not yet been told that the store answers again.
func (a *Answers) Owed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.owed
}

// LastCertain returns when the thing was last known with certainty, zero for never. confirmed is as for Ended.
func (a *Answers) LastCertain(confirmed time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed || a.certain.IsZero() {
		return a.certain
	}
	return confirmed
}
