package agent

import (
	"sync"
	"time"
)

// exclusive allows one run at a time. The zero value is ready for use.
type exclusive struct {
	mu    sync.Mutex
	since time.Time // zero while there is no run
}

// start begins a run, which lasts until end is called, unless another one is in progress. ok reports whether the run
// began. since is when the run in progress began.
func (e *exclusive) start() (since time.Time, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.since.IsZero() {
		return e.since, false
	}
	e.since = time.Now()
	return e.since, true
}

// end ends the run that start began.
func (e *exclusive) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.since = time.Time{}
}
