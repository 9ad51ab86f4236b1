package replica

import (
	"hash/maphash"
	"sync"
	"time"
)

// Answers notes how calls that watch the same thing ended, or that only read it. The zero value is ready to use.
// Answers is safe for concurrent use.
type Answers struct {
	mu      sync.Mutex
	owed    bool      // a call failed, and no call that watches has been answered since
	failed  bool      // the last call failed
	certain time.Time // if failed, when the thing was last known with certainty; otherwise zero before the first answer
}

// Ended notes how a call with an index ended, unless its caller ended it. confirmed is when the store last confirmed
// what it said.
func (a *Answers) Ended(after uint64, err error, confirmed time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil || !a.failed && !a.certain.IsZero() {
		a.certain = confirmed
	}
	// A read for another caller tells the one that watches nothing.
	a.failed, a.owed = err != nil, err != nil || a.owed && after == 0
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

var seed = maphash.MakeSeed()

// Versions gives indexes to what calls watch. An index is never reused for other content, whatever a restore does to
// the revision of the store. The zero value is ready to use. Versions is safe for concurrent use.
type Versions struct {
	mu     sync.Mutex
	byName map[string]version
}

type version struct{ index, content uint64 }

// Index returns the index of what has a name and now the given content. latest is the index of its last change.
func (v *Versions) Index(name, content string, latest uint64) uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.byName[name]
	if sum := maphash.String(seed, content); now.index == 0 || sum != now.content {
		now = version{max(latest, now.index+1), sum}
		if v.byName == nil {
			v.byName = map[string]version{}
		}
		v.byName[name] = now
	}
	return now.index
}
