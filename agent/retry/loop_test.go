package retry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// maxJitter is the largest jitter.
const maxJitter = 1 - 1e-9

// failure is an error of a class.
type failure Class

func (f failure) Error() string { return fmt.Sprintf("failure of class %d", Class(f)) }

var (
	unavailable error = failure(Unavailable)
	denied      error = failure(Denied)
)

// newDetector returns an OutageDetector for errors of type failure. The store is f, or has no probe if f is nil.
func newDetector(f *flaky) *OutageDetector {
	var probe func(context.Context) error
	if f != nil {
		probe = f.Probe
	}
	return NewOutageDetector(probe, func(err error) Class { return Class(err.(failure)) })
}

func TestPauses(t *testing.T) {
	const s = time.Second
	long := func() *Backoff { r := newDetector(nil).NewLoop(); return &r.backoff }
	short := func() *Backoff { r := newDetector(nil).NewLoop().Within(5 * s); return &r.backoff }
	for _, tt := range []struct {
		name  string
		pause *Backoff
		limit time.Duration
		most  []time.Duration
		part  time.Duration
	}{
		{"this host", NewBackoff(), longestPause, []time.Duration{s / 5, 2 * s / 5, 4 * s / 5, 8 * s / 5, 16 * s / 5, 6 * s, 6 * s}, 2},
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
				if d := high.draw(now, tt.limit, maxJitter); most-d > time.Millisecond || d > most {
					t.Errorf("pause %d is at most %s, want %s", i, d, most)
				}
			}
			// Not before it went well for a while are they short again.
			end := high.end
			if d := high.draw(end.Add(calmAfter), tt.limit, maxJitter); d < tt.most[1] {
				t.Errorf("%s after %s without a failure", d, calmAfter)
			}
			if d := high.draw(high.end.Add(calmAfter+1), tt.limit, maxJitter); d > tt.most[0] {
				t.Errorf("%s after more than %s without a failure", d, calmAfter)
			}
			high.draw(now, tt.limit, 0)
			high.Reset()
			if d := high.draw(now, tt.limit, maxJitter); d > tt.most[0] {
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
		p := Backoff{first: time.Second, last: time.Second, divisor: tenths}
		d := p.Next()
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
func waitedFor(t *testing.T, r *Loop, err error, wake <-chan struct{}) time.Duration {
	t.Helper()
	began := time.Now()
	if err := r.Wait(t.Context(), err, wake); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}

func TestRetryLimits(t *testing.T) {
	p := DefaultPolicy()
	for _, tt := range []struct {
		name string
		err  error
		most time.Duration
	}{
		{"unavailable", unavailable, p.Last},
		{"denied", denied, p.Last},
		{"needs an operator", failure(NeedsOperator), p.Last},
		{"transient", failure(Transient), p.Soon},
		{"no error", nil, p.Soon},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newDetector(nil).NewLoop()
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
		r := newDetector(nil).NewLoop()
		for range 10 { // so that pauses are long
			waitedFor(t, r, unavailable, nil)
		}
		wake := make(chan struct{})
		go func() {
			time.Sleep(time.Second)
			close(wake)
		}()
		if d := waitedFor(t, r, unavailable, wake); d != time.Second {
			t.Errorf("woken after %s", d)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Wait(ctx, unavailable, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// flaky answers probes as it is told and keeps when.
type flaky struct {
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

// probing runs a detector in a bubble.
func probing(t *testing.T, f *flaky) *OutageDetector {
	c := newDetector(f)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
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
		f := &flaky{err: unavailable}
		c := probing(t, f)
		const loops = 100
		ended := make(chan time.Time, 2*loops)
		for i := range 2 * loops {
			go func() {
				r := c.NewLoop()
				for {
					ok := f.answers()
					if i%2 == 0 { // an attempt that hangs
						time.Sleep(c.Policy.ProbeMost)
					}
					if ok {
						break
					}
					waitedFor(t, r, unavailable, nil)
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
		if last := waits[len(waits)-1]; last > 2*c.Policy.ProbeMost+c.Policy.Spread {
			t.Errorf("the last loop went on after %s", last)
		}
		if middle := waits[3*len(waits)/4] - waits[len(waits)/4]; middle < c.Policy.Spread/4 {
			t.Errorf("half of the loops went on within %s", middle)
		}
		probes := f.probes()
		for i, at := range probes[1:] {
			if gap := at.Sub(probes[i]); gap < c.Policy.ProbeLeast || gap > c.Policy.ProbeMost {
				t.Errorf("probes are %s apart", gap)
			}
		}
		time.Sleep(time.Hour)
		if more := len(f.probes()) - len(probes); more > 2 {
			t.Errorf("%d probes of a store that answers", more)
		}
	})
}

// TestPartsOfTheStoreReturnLater: a loop whose request still fails when the store has come back, because a part of the
// store has not, repeats it soon, however long its pauses had become.
func TestPartsOfTheStoreReturnLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{}
		c := probing(t, f)
		for range 100 {
			l := c.NewLoop()
			f.answer(unavailable)
			began := time.Now()
			for time.Since(began) < 10*time.Minute {
				waitedFor(t, l, unavailable, nil)
			}
			returned := c.Returned()
			f.answer(nil)
			for back := false; !back; {
				waitedFor(t, l, unavailable, nil)
				select {
				case <-returned:
					back = true
				default: // the pause was over before the probe
				}
			}
			if waited := waitedFor(t, l, unavailable, nil); waited > c.Policy.First {
				t.Errorf("the next attempt came %s after one that failed when the store had returned", waited)
			}
		}
	})
}

// TestHiccup: a store that answers the probe is not away, whatever else fails:
// pauses grow.
func TestHiccup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{}
		c := probing(t, f)
		r := c.NewLoop()
		began, n := time.Now(), 0
		for time.Since(began) < time.Hour {
			waitedFor(t, r, unavailable, nil)
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
		}{{unavailable, true}, {denied, false}} {
			c := probing(t, &flaky{})
			longest := time.Duration(0)
			for range 100 {
				r := c.NewLoop()
				for range 10 {
					r.backoff.Next()
				}
				longest = max(longest, waitedFor(t, r, tt.err, nil))
			}
			if soon := longest <= c.Policy.ProbeMost+c.Policy.Spread; soon != tt.soon {
				t.Errorf("%v: the next attempt is up to %s later", tt.err, longest)
			}
		}
	})
}

// TestProbeThatMayNot: a token that may do everything but what the probe does
// must not be probed with for ever.
func TestProbeThatMayNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{err: denied}
		c := probing(t, f)
		r := c.NewLoop()
		for range 5 {
			waitedFor(t, r, unavailable, nil)
		}
		time.Sleep(3*c.Policy.Last + 2*c.Policy.ProbeMost) // a failure may have been reported during the last probes
		probes := len(f.probes())
		time.Sleep(time.Hour)
		if more := len(f.probes()) - probes; more != 0 || probes == 0 {
			t.Errorf("%d probes, then %d, though no loop fails", probes, more)
		}
	})
}
