package agent

import (
	"sync"
	"time"
)

// exclusive allows one run for each subject at a time, such as one probe of a network. The zero value is ready for use.
type exclusive struct {
	mu    sync.Mutex
	since map[string]time.Time // when the runs in progress began, by subject
}

// start begins a run, which lasts until end is called, unless another one about the same subject is in progress. ok
// reports whether the run began. since is when the run in progress began.
func (e *exclusive) start(subject string) (since time.Time, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if since, busy := e.since[subject]; busy {
		return since, false
	}
	if e.since == nil {
		e.since = map[string]time.Time{}
	}
	e.since[subject] = time.Now()
	return e.since[subject], true
}

// end ends the run that start began.
func (e *exclusive) end(subject string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.since, subject)
}
