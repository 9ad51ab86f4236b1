package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lenonet/leno/registry"
)

// What fails is tried again, and how soon is decided in this file alone, by one
// of two policies:
//
//   - newPause is for what is on this host: an interface that has no address, a
//     table the kernel refused. Nobody else is troubled, so pauses are short.
//   - contact.retry is for whatever is asked of the store, which all hosts share.
//     Its pauses are longer and spread, and end early when the store comes back.
const (
	localFirst = 200 * time.Millisecond
	localLast  = 6 * time.Second

	// calm is how long a loop goes without failing before its pauses are short
	// again: less than between two outages, or the second would begin with the
	// longest pauses of the first. It bounds how often a loop asks that fails now
	// and then.
	calm = 5 * time.Second
)

// pause is the growing, jittered pauses of one loop. It is used by one goroutine.
type pause struct {
	first, last time.Duration // what the first and the last ones are at most
	part        time.Duration // each is at least that part of what it is at most

	most time.Duration // of the last one, 0 before the first
	ends time.Time     // when the last one was to end
}

// newPause is for what is on this host: at most 200 ms, then twice that each
// time up to 6 s, and half of it at least.
func newPause() *pause { return &pause{first: localFirst, last: localLast, part: 2} }

// draw is how long to wait after a failure at now, and no longer than limit.
// luck is in [0,1).
func (p *pause) draw(now time.Time, limit time.Duration, luck float64) time.Duration {
	if p.most == 0 || now.Sub(p.ends) > calm {
		p.most = p.first
	} else {
		p.most = min(2*p.most, p.last)
	}
	most := min(p.most, limit)
	least := most / p.part
	d := least + time.Duration(luck*float64(most-least))
	p.ends = now.Add(d)
	return d
}

// next is how long to wait after another failure.
func (p *pause) next() time.Duration { return p.draw(time.Now(), p.last, rand.Float64()) }

// wait blocks that long, or until ctx ends, which it returns as an error.
func (p *pause) wait(ctx context.Context) error { return sleep(ctx, p.next()) }

// reset starts over after a success that needs no time to be believed.
func (p *pause) reset() { p.most = 0 }

// pace is how patient an agent is with the store.
type pace struct {
	// A loop's own pauses have full jitter: each is a random time up to a limit
	// that doubles from first to last, and never less than a tenth of the limit,
	// so that no run of luck makes a loop hammer. Up to soon where the store
	// answers and is only not as it should be yet.
	first, last, soon time.Duration
	// While the store is away, one read at a time asks for it, for at most ask,
	// with a random pause between probeLeast and probeMost before each.
	probeLeast, probeMost, ask time.Duration
	// When it is back, each loop goes on at a random time within spread.
	spread time.Duration
	// So does a loop whose attempt had no answer while the store answers probes, once in early: the attempt may have
	// begun in an outage in which the loop's pauses have grown.
	early time.Duration
	// A host that has a network in use puts a definition that the store has lost back
	// after restoreInUse, and one that only remembers it after restoreRemembered, at
	// random up to twice as long.
	restoreInUse, restoreRemembered time.Duration
}

// defaultPace lets every loop ask again within probeMost + spread = 7 s of the
// store's return, so that all is as before within 10 s, while agents that lost
// it together come back spread over those 7 s.
//
// An agent has at most 2 loops that ask the store and 4 for each network. In an
// outage that lasts, each asks once in 16.5 s in the mean and never more than
// once in 3 s; where attempts hang for longer than calm, its pauses stay short
// and it asks as often as they end, each after 7 s and more. The probe asks once
// in 2.5 s in the mean and never more than once in 1 s.
// That is 0.8 requests a second of an agent in one network, at the very most 3,
// with the default lease.ttl; renewals under a shorter one are tried within a
// quarter of renew_margin each.
func defaultPace() pace {
	return pace{
		first: time.Second, last: 30 * time.Second, soon: 6 * time.Second,
		probeLeast: time.Second, probeMost: 4 * time.Second, ask: 3 * time.Second,
		spread: 3 * time.Second, early: 2 * time.Minute, restoreInUse: 500 * time.Millisecond, restoreRemembered: 5 * time.Second,
	}
}

// retry is how one loop that asks the store goes on after failures. It is used
// by one goroutine.
type retry struct {
	contact *contact
	own     pause
	seen    uint64    // the store's returns when the last pause ended
	early   time.Time // when a pause was last cut short because the store answered a probe
}

func (c *contact) retry() *retry {
	return &retry{contact: c, own: pause{first: c.pace.first, last: c.pace.last, part: 10}}
}

// within keeps the loop's own pauses at or below limit, though not below those
// it begins with.
func (r *retry) within(limit time.Duration) *retry {
	r.own.last = min(r.own.last, max(limit, r.own.first))
	return r
}

// wait blocks after a failure until it is time for another attempt, which is
// when the loop's own pause is over, wake is closed, or, if err says that the
// store could not be used, shortly after it can again. An error is ctx's end.
func (r *retry) wait(ctx context.Context, err error, wake <-chan struct{}) error {
	lost := errors.Is(err, registry.ErrUnavailable) || errors.Is(err, registry.ErrDenied)
	limit := r.contact.pace.soon
	if lost || waitsForPeople(err) {
		limit = r.own.last
	}
	pause := r.own.draw(time.Now(), limit, rand.Float64())
	due := time.Now().Add(pause)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	hurry := func() { // to a random time within spread
		if at := time.Now().Add(rand.N(r.contact.pace.spread)); at.Before(due) {
			due = at
			timer.Reset(time.Until(at))
		}
	}
	seen, _, back := r.contact.returns.Get()
	defer func() { r.seen = seen }()
	var answered <-chan struct{}
	if errors.Is(err, registry.ErrUnavailable) && time.Since(r.early) > r.contact.pace.early {
		_, _, answered = r.contact.answered.Get()
	}
	if lost {
		if seen != r.seen {
			hurry() // an attempt that began before the store came back says nothing about it since
		}
		r.contact.failed()
	} else {
		back = nil
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case <-wake:
			return nil
		case <-back:
			seen, _, back = r.contact.returns.Get()
			hurry()
		case <-answered:
			r.early, answered = time.Now(), nil
			hurry()
		}
	}
}

// waitsForPeople says of an error that it stays until somebody frees, defines or
// mends something.
func waitsForPeople(err error) bool {
	for _, is := range []error{registry.ErrNetworkFull, registry.ErrDuplicateNode, registry.ErrDuplicateAddress,
		registry.ErrNetworkNotFound, registry.ErrInvalid} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

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
