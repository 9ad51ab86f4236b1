package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// A Class is what an error of a request to the store means for the next attempt.
type Class int

const (
	Transient     Class = iota // the store answered; the request can succeed soon
	NeedsOperator              // the store answered; the request fails until an operator changes something
	Denied                     // the store refused the request for lack of rights
	Unavailable                // the store did not answer
)

// A Loop computes the pauses of one loop of requests to the store. It must be used by one goroutine.
type Loop struct {
	detector *OutageDetector
	backoff  Backoff
	seen     uint64    // the store's returns when the previous pause ended
	early    time.Time // the last early attempt
}

// NewLoop returns a Loop that waits as the detector's policy says.
func (d *OutageDetector) NewLoop() *Loop {
	return &Loop{detector: d, backoff: Backoff{first: d.Policy.First, last: d.Policy.Last, divisor: 10}}
}

// Within limits the loop's pauses, but not to less than those it begins with. It returns the loop.
func (l *Loop) Within(limit time.Duration) *Loop {
	l.backoff.last = min(l.backoff.last, max(limit, l.backoff.first))
	return l
}

// Wait blocks after a request failed with err until it is time for another attempt: when the loop's pause is over,
// when wake is closed, or shortly after the store can be used again if err says that it could not. err may be nil.
// Wait returns ctx's error if ctx ends first.
func (l *Loop) Wait(ctx context.Context, err error, wake <-chan struct{}) error {
	class, policy := Transient, l.detector.Policy
	if err != nil {
		class = l.detector.classify(err)
	}
	lost := class == Unavailable || class == Denied
	limit := policy.Soon
	if class != Transient {
		limit = l.backoff.last
	}
	pause := l.backoff.draw(time.Now(), limit, rand.Float64())
	due := time.Now().Add(pause)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	hurry := func() { // to a random time within Spread
		if at := time.Now().Add(rand.N(policy.Spread)); at.Before(due) {
			due = at
			timer.Reset(time.Until(at))
		}
	}
	seen, _, returned := l.detector.returns.Get()
	defer func() { l.seen = seen }()
	var answered <-chan struct{}
	if class == Unavailable && time.Since(l.early) > policy.Early {
		_, _, answered = l.detector.answered.Get()
	}
	if lost {
		if seen != l.seen {
			l.backoff.Reset()
			hurry() // a request that began before the store came back says nothing about the store since
		}
		l.detector.report()
	} else {
		returned = nil
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case <-wake:
			return nil
		case <-returned:
			seen, _, returned = l.detector.returns.Get()
			l.backoff.Reset() // the store may return in parts: requests that still fail are repeated soon
			hurry()
		case <-answered:
			l.early, answered = time.Now(), nil
			hurry()
		}
	}
}
