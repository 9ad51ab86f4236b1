package agent

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// The pause between attempts grows from firstPause to lastPause with jitter. The
// last is short enough that an agent is back within 10 s of its store.
const (
	firstPause = 200 * time.Millisecond
	lastPause  = 6 * time.Second
)

// pause is a growing, jittered delay between attempts.
type pause struct{ policy *backoff.ExponentialBackOff }

func newPause() *pause {
	return &pause{&backoff.ExponentialBackOff{
		InitialInterval: firstPause, MaxInterval: lastPause, Multiplier: 2, RandomizationFactor: 0.5,
	}}
}

// next is how long to wait after another failure.
func (p *pause) next() time.Duration { return p.policy.NextBackOff() }

// wait blocks that long, or until ctx ends, which it returns as an error.
func (p *pause) wait(ctx context.Context) error { return sleep(ctx, p.next()) }

// reset starts over after a success.
func (p *pause) reset() { p.policy.Reset() }

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
