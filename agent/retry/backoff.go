// Package retry decides when a failed operation is tried again.
//
// There are two ways to wait:
//
//   - A Backoff is for operations on this host, for example on an interface without an address. They burden no
//     other host, so the pauses are short.
//   - A Loop, created by an OutageDetector, is for requests to the store, which all hosts share. Its pauses are longer
//     and jittered, and end early when the store comes back.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// FirstPause is the limit of a Backoff's first pause.
	FirstPause   = 200 * time.Millisecond
	longestPause = 6 * time.Second

	// calmAfter is how long a loop must go without a failure before its pauses are short again. It is less than the
	// time between two outages, so that the second one does not begin with the longest pauses of the first. It
	// limits how often a loop that fails now and then asks.
	calmAfter = 5 * time.Second
)

// A Backoff computes the growing, jittered pauses of one loop. It must be used by one goroutine.
type Backoff struct {
	first, last time.Duration // limits of the first pause and of the longest ones
	divisor     time.Duration // a pause is at least its limit divided by this

	limit time.Duration // of the previous pause, 0 before the first
	end   time.Time     // of the previous pause
}

// NewBackoff returns a Backoff for operations on this host. The first pause is at most 200 ms, and the limit doubles
// up to 6 s. Each pause is at least half its limit.
func NewBackoff() *Backoff { return &Backoff{first: FirstPause, last: longestPause, divisor: 2} }

// Next returns how long to pause after another failure.
func (b *Backoff) Next() time.Duration { return b.draw(time.Now(), b.last, rand.Float64()) }

// Wait pauses after another failure. It returns ctx's error if ctx ends first.
func (b *Backoff) Wait(ctx context.Context) error { return Sleep(ctx, b.Next()) }

// Reset makes the next pause a first one.
func (b *Backoff) Reset() { b.limit = 0 }

// draw returns how long to pause after a failure at now, and at most most. jitter is in [0,1).
func (b *Backoff) draw(now time.Time, most time.Duration, jitter float64) time.Duration {
	if b.limit == 0 || now.Sub(b.end) > calmAfter {
		b.limit = b.first
	} else {
		b.limit = min(2*b.limit, b.last)
	}
	most = min(b.limit, most)
	least := most / b.divisor
	d := least + time.Duration(jitter*float64(most-least))
	b.end = now.Add(d)
	return d
}

// Sleep blocks for d. It returns ctx's error if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
