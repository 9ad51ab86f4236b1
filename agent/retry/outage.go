package retry

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/watch"
)

// An OutageDetector knows whether the store can be reached. Loops that cannot use the store report that to it. While
// some do, one goroutine, Run, probes the store and wakes all of them when it is back. It is safe for concurrent use.
type OutageDetector struct {
	// Policy is DefaultPolicy unless it is replaced before the first use.
	Policy Policy

	probe    func(context.Context) error
	classify func(error) Class
	returns  *watch.Value[uint64]   // how often the store came back
	answered *watch.Value[struct{}] // set when the store answers the first probe after a failure
	reported chan struct{}          // has room for one report

	mu          sync.Mutex
	lastFailure time.Time
}

// NewOutageDetector returns an OutageDetector that probes the store with probe, or not at all if probe is nil.
// classify says what the error of a failed request means.
func NewOutageDetector(probe func(context.Context) error, classify func(error) Class) *OutageDetector {
	return &OutageDetector{
		Policy:   DefaultPolicy(),
		probe:    probe,
		classify: classify,
		returns:  watch.New[uint64](),
		answered: watch.New[struct{}](),
		reported: make(chan struct{}, 1),
	}
}

// Returned returns a channel that is closed the next time the store comes back.
func (d *OutageDetector) Returned() <-chan struct{} {
	_, _, changed := d.returns.Get()
	return changed
}

// Wake makes the loops that could not use the store ask again soon, for example because an operator may have removed
// the obstacle.
func (d *OutageDetector) Wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, _, _ := d.returns.Get()
	d.returns.Set(n + 1)
}

// Run probes the store whenever loops fail. It returns ctx's error when ctx ends.
func (d *OutageDetector) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.reported:
		}
		if d.probe == nil {
			continue
		}
		if err := d.awaitAnswer(ctx); err != nil {
			return err
		}
	}
}

// awaitAnswer probes until the store answers or no loop needs it. A store that answers the first probe was not away:
// the loop failed for another reason, and its pauses must grow. But the store may also have come back just before the
// probe, so a loop whose request was not answered makes one early attempt.
func (d *OutageDetector) awaitAnswer(ctx context.Context) error {
	for away := false; ; away = true {
		if err := Sleep(ctx, d.Policy.ProbeLeast+rand.N(d.Policy.ProbeMost-d.Policy.ProbeLeast)); err != nil {
			return err
		}
		probe, cancel := context.WithTimeout(ctx, d.Policy.Ask)
		err := d.probe(probe)
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && away:
			d.Wake()
			return nil
		case err == nil:
			d.answered.Set(struct{}{})
			return nil
		case !d.isNeeded():
			return nil
		}
	}
}

// report records that a loop could not use the store.
func (d *OutageDetector) report() {
	d.mu.Lock()
	d.lastFailure = time.Now()
	d.mu.Unlock()
	select {
	case d.reported <- struct{}{}:
	default:
	}
}

// isNeeded reports whether any loop has failed recently. Each one that still fails does so again within its pauses.
func (d *OutageDetector) isNeeded() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.lastFailure) < 3*d.Policy.Last
}
