package agent

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/registry"
)

// contact knows whether this agent has contact with the store. Loops that cannot
// use it wait in retry.wait; while some do, one goroutine probes for the store
// and wakes them all when it is back.
type contact struct {
	pace     pace
	prober   registry.Prober        // nil when the store has no probe: own pauses have to do
	returns  *watch.Value[uint64]   // how often the store came back after a probe had failed
	answered *watch.Value[struct{}] // set when the first probe after a failure was answered
	lost     chan struct{}          // room for one: a loop could not use the store

	mu   sync.Mutex
	last time.Time // when that was
}

func newContact(reg registry.Registry) *contact {
	prober, _ := reg.(registry.Prober)
	return &contact{pace: defaultPace(), prober: prober, returns: watch.New[uint64](), answered: watch.New[struct{}](), lost: make(chan struct{}, 1)}
}

// failed is told by a loop that could not use the store.
func (c *contact) failed() {
	c.mu.Lock()
	c.last = time.Now()
	c.mu.Unlock()
	select {
	case c.lost <- struct{}{}:
	default:
	}
}

// ask has the loops that could not use the store ask again soon: what was in the
// way may have been mended by hand.
func (c *contact) ask() {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, _, _ := c.returns.Get()
	c.returns.Set(n + 1)
}

// wanted says whether loops still fail: each asks again within its own pauses.
func (c *contact) wanted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.last) < 3*c.pace.last
}

// run probes whenever loops fail, until ctx ends, which it returns as an error.
func (c *contact) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.lost:
		}
		if c.prober == nil {
			continue
		}
		if err := c.seek(ctx); err != nil {
			return err
		}
	}
}

// seek probes until the store answers, or all loops get on without that. A store
// that answers the first probe was not away: what a loop could not do has other
// reasons, and its own pauses shall grow. It may as well be back already, so a loop
// whose attempt had no answer tries once more soon.
func (c *contact) seek(ctx context.Context) error {
	for away := false; ; away = true {
		if err := sleep(ctx, c.pace.probeLeast+rand.N(c.pace.probeMost-c.pace.probeLeast)); err != nil {
			return err
		}
		ask, cancel := context.WithTimeout(ctx, c.pace.ask)
		err := c.prober.Probe(ask)
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && away:
			c.ask()
			return nil
		case err == nil:
			c.answered.Set(struct{}{})
			return nil
		case !c.wanted():
			return nil
		}
	}
}
