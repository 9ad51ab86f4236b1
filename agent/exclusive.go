package agent

import (
	"net/http"
	"sync"
	"time"

	"github.com/lenonet/leno/api"
)

// exclusive allows one run for each subject at a time, such as one probe of a network. The zero value is ready for use.
type exclusive struct {
	mu    sync.Mutex
	since map[string]time.Time // when the runs in progress began, by subject
}

// start begins a run, which lasts until end is called, unless another one about the same subject is in progress. That
// is a conflict, whose message calls the run what.
func (e *exclusive) start(subject, what string) (end func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if since, busy := e.since[subject]; busy {
		return nil, api.Errorf(http.StatusConflict, "%s is running since %s: try again when it is done",
			what, time.Since(since).Round(time.Second))
	}
	if e.since == nil {
		e.since = map[string]time.Time{}
	}
	e.since[subject] = time.Now()
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.since, subject)
	}, nil
}
