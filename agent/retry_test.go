package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/registry"
)

// almost is the greatest luck.
const almost = 1 - 1e-9

func TestPauses(t *testing.T) {
	const s = time.Second
	long := func() *pause { r := newContact(nil).retry(); return &r.own }
	short := func() *pause { r := newContact(nil).retry().within(5 * s); return &r.own }
	for _, tt := range []struct {
		name  string
		pause *pause
		limit time.Duration
		most  []time.Duration
		part  time.Duration
	}{
		{"this host", newPause(), localLast, []time.Duration{s / 5, 2 * s / 5, 4 * s / 5, 8 * s / 5, 16 * s / 5, 6 * s, 6 * s}, 2},
		{"the store", long(), 30 * s, []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s}, 10},
		{"soon", long(), 6 * s, []time.Duration{s, 2 * s, 4 * s, 6 * s, 6 * s}, 10},
		{"within", short(), 30 * s, []time.Duration{s, 2 * s, 4 * s, 5 * s, 5 * s}, 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := time.Now()
			low, high := *tt.pause, *tt.pause
			for i, most := range tt.most {
				if d := low.draw(now, tt.limit, 0); d != most/tt.part {
					t.Errorf("pause %d is at least %s, want %s", i, d, most/tt.part)
				}
				if d := high.draw(now, tt.limit, almost); most-d > time.Millisecond || d > most {
					t.Errorf("pause %d is at most %s, want %s", i, d, most)
				}
			}
			// Not before it went well for a while are they short again.
			end := high.ends
			if d := high.draw(end.Add(calm), tt.limit, almost); d < tt.most[1] {
				t.Errorf("%s after %s without a failure", d, calm)
			}
			if d := high.draw(high.ends.Add(calm+1), tt.limit, almost); d > tt.most[0] {
				t.Errorf("%s after more than %s without a failure", d, calm)
			}
			high.draw(now, tt.limit, 0)
			high.reset()
			if d := high.draw(now, tt.limit, almost); d > tt.most[0] {
				t.Errorf("%s after a reset", d)
			}
		})
	}
}

// TestPausesSpread: luck is spread evenly, so that pauses are.
func TestPausesSpread(t *testing.T) {
	const n, tenths = 10000, 10
	var count [tenths]int
	for range n {
		p := pause{first: time.Second, last: time.Second, part: tenths}
		d := p.next()
		if d < time.Second/tenths || d > time.Second {
			t.Fatalf("paused %s", d)
		}
		count[min(int((d-time.Second/tenths)*tenths/(time.Second-time.Second/tenths)), tenths-1)]++
	}
	for i, c := range count {
		if c < n/tenths/2 || c > 2*n/tenths { // 16 standard deviations
			t.Errorf("%d of %d pauses are in tenth %d", c, n, i)
		}
	}
}

// waited is how long the loop waits.
func waitedFor(t *testing.T, r *retry, err error, wake <-chan struct{}) time.Duration {
	t.Helper()
	began := time.Now()
	if err := r.wait(t.Context(), err, wake); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}

func TestRetryLimits(t *testing.T) {
	p := defaultPace()
	for _, tt := range []struct {
		name string
		err  error
		most time.Duration
	}{
		{"store away", fmt.Errorf("renew: %w", registry.ErrUnavailable), p.last},
		{"no rights", fmt.Errorf("%w: %w", registry.ErrUncertain, registry.ErrDenied), p.last},
		{"network full", registry.ErrNetworkFull, p.last},
		{"no definition", registry.ErrNetworkNotFound, p.last},
		{"bad definition", registry.ErrInvalid, p.last},
		{"our name", registry.ErrDuplicateNode, p.last},
		{"our address", registry.ErrDuplicateAddress, p.last},
		{"not certain", registry.ErrUncertain, p.soon},
		{"others were faster", registry.ErrConflict, p.soon},
		{"something else", errors.New("no such device"), p.soon},
		{"lost again", nil, p.soon},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newContact(nil).retry()
				longest := time.Duration(0)
				for i := range 60 {
					d := waitedFor(t, r, tt.err, nil)
					if i >= 5 && d < tt.most/10 {
						t.Errorf("paused %s only", d)
					}
					longest = max(longest, d)
				}
				if longest > tt.most || longest < 3*tt.most/4 {
					t.Errorf("paused up to %s, want %s", longest, tt.most)
				}
			})
		})
	}
}

func TestRetryWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newContact(nil).retry()
		for range 10 { // so that pauses are long
			waitedFor(t, r, registry.ErrUnavailable, nil)
		}
		wake := make(chan struct{})
		go func() {
			time.Sleep(time.Second)
			close(wake)
		}()
		if d := waitedFor(t, r, registry.ErrUnavailable, wake); d != time.Second {
			t.Errorf("woken after %s", d)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.wait(ctx, registry.ErrUnavailable, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// flaky answers probes as it is told and keeps when.
type flaky struct {
	registry.Registry
	mu  sync.Mutex
	err error
	at  []time.Time
}

func (f *flaky) Probe(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = append(f.at, time.Now())
	return f.err
}

func (f *flaky) answer(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// answers says whether the store can be used.
func (f *flaky) answers() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err == nil
}

func (f *flaky) probes() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.at)
}

// probing runs a contact in a bubble.
func probing(t *testing.T, f *flaky) *contact {
	c := newContact(f)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	return c
}

// TestReturnWakesAll: when the store is back, every loop goes on soon, at a time
// of its own, and those that were in the middle of an attempt do not wait long
// either.
func TestReturnWakesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{err: registry.ErrUnavailable}
		c := probing(t, f)
		const loops = 100
		ended := make(chan time.Time, 2*loops)
		for i := range 2 * loops {
			go func() {
				r := c.retry()
				for {
					ok := f.answers()
					if i%2 == 0 { // an attempt that hangs
						time.Sleep(c.pace.probeMost)
					}
					if ok {
						break
					}
					waitedFor(t, r, registry.ErrUnavailable, nil)
				}
				ended <- time.Now()
			}()
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		f.answer(nil)
		returned := time.Now()
		var waits []time.Duration
		for range 2 * loops {
			waits = append(waits, (<-ended).Sub(returned))
		}
		slices.Sort(waits)
		if last := waits[len(waits)-1]; last > 2*c.pace.probeMost+c.pace.spread {
			t.Errorf("the last loop went on after %s", last)
		}
		if middle := waits[3*len(waits)/4] - waits[len(waits)/4]; middle < c.pace.spread/4 {
			t.Errorf("half of the loops went on within %s", middle)
		}
		probes := f.probes()
		for i, at := range probes[1:] {
			if gap := at.Sub(probes[i]); gap < c.pace.probeLeast || gap > c.pace.probeMost {
				t.Errorf("probes are %s apart", gap)
			}
		}
		time.Sleep(time.Hour)
		if more := len(f.probes()) - len(probes); more > 2 {
			t.Errorf("%d probes of a store that answers", more)
		}
	})
}

// TestHiccup: a store that answers the probe is not away, whatever else fails:
// pauses grow.
func TestHiccup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{}
		c := probing(t, f)
		r := c.retry()
		began, n := time.Now(), 0
		for time.Since(began) < time.Hour {
			waitedFor(t, r, registry.ErrUnavailable, nil)
			n++
		}
		if n > 300 { // 16.5 s each in the mean
			t.Errorf("%d attempts an hour", n)
		}
		if probes := len(f.probes()); probes > n+1 {
			t.Errorf("%d probes for %d failures", probes, n)
		}
	})
}

// TestAttemptAtTheEndOfAnOutage: a loop whose pauses have grown and whose attempt began in an outage, to fail when the
// store was back, does not wait for the rest of its pause. One that has no right to what it asks for does.
func TestAttemptAtTheEndOfAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			err  error
			soon bool
		}{{registry.ErrUnavailable, true}, {registry.ErrDenied, false}} {
			c := probing(t, &flaky{})
			longest := time.Duration(0)
			for range 100 {
				r := c.retry()
				for range 10 {
					r.own.next()
				}
				longest = max(longest, waitedFor(t, r, tt.err, nil))
			}
			if soon := longest <= c.pace.probeMost+c.pace.spread; soon != tt.soon {
				t.Errorf("%v: the next attempt is up to %s later", tt.err, longest)
			}
		}
	})
}

// TestProbeThatMayNot: a token that may do everything but what the probe does
// must not be probed with for ever.
func TestProbeThatMayNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{err: registry.ErrDenied}
		c := probing(t, f)
		r := c.retry()
		for range 5 {
			waitedFor(t, r, registry.ErrUnavailable, nil)
		}
		time.Sleep(3*c.pace.last + 2*c.pace.probeMost) // a failure may have been told during the last probes
		probes := len(f.probes())
		time.Sleep(time.Hour)
		if more := len(f.probes()) - probes; more != 0 || probes == 0 {
			t.Errorf("%d probes, then %d, though no loop fails", probes, more)
		}
	})
}
