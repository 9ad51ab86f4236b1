package replica

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/waiting"
)

var errStore = errors.New("the store failed")

// counter is a store that contains a number.
type counter struct {
	*Replica[int]
	stored  atomic.Int64
	reads   atomic.Int64
	changes chan error // an error ends following, nil announces a change
}

func newCounter(t *testing.T, idle time.Duration) *counter {
	c := &counter{changes: make(chan error)}
	c.Replica = New[int](Options{
		Refresh: func(ctx context.Context) error {
			c.reads.Add(1)
			return c.apply(ctx)
		},
		Follow: func(ctx context.Context) error {
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case err := <-c.changes:
					if err == nil {
						err = c.apply(ctx)
					}
					if err != nil {
						return err
					}
				}
			}
		},
		Idle:       idle,
		Undetected: time.Minute,
	})
	t.Cleanup(c.Stop)
	return c
}

func (c *counter) apply(ctx context.Context) error {
	if err := c.Lock(ctx); err != nil {
		return err
	}
	defer c.Unlock()
	n := int(c.stored.Load())
	c.Set(&n)
	return nil
}

// await waits until the copy is at least n.
func (c *counter) await(ctx context.Context, fresh bool, n int) error {
	return c.Await(ctx, fresh, func(got *int) (bool, time.Time) { return *got >= n, time.Time{} })
}

// users returns how many callers keep the copy up to date.
func (c *counter) users() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting
}

func isDone(done <-chan error) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

func TestAwaitFollowsChanges(t *testing.T) {
	t.Parallel()
	c := newCounter(t, time.Minute)
	done := make(chan error, 1)
	go func() { done <- c.await(t.Context(), true, 2) }()
	for n := int64(1); n <= 2; n++ {
		if isDone(done) {
			t.Fatalf("Await returned before %d was stored", n)
		}
		c.stored.Store(n)
		c.changes <- nil
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := c.await(t.Context(), false, 2); err != nil || c.reads.Load() != 1 {
		t.Errorf("Await while changes are followed: %v, after %d reads, want 1", err, c.reads.Load())
	}
	before := time.Now()
	if err := c.await(t.Context(), true, 2); err != nil || c.reads.Load() != 2 {
		t.Errorf("Await of a fresh copy: %v, after %d reads, want 2", err, c.reads.Load())
	}
	if at := c.LastConfirmed(); at.Before(before) {
		t.Errorf("the copy was last confirmed %v before it was read", before.Sub(at))
	}
}

// TestFailure checks that all callers learn of a failure, that it leaves the copy, and that the next caller reads again.
func TestFailure(t *testing.T) {
	t.Parallel()
	c := newCounter(t, time.Minute)
	done := make(chan error, 2)
	for range 2 {
		go func() { done <- c.await(t.Context(), true, 1) }()
	}
	release, err := c.Use()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for c.users() < 3 {
		time.Sleep(time.Millisecond)
	}
	c.changes <- errStore
	for range 2 {
		if err := <-done; err != errStore {
			t.Errorf("Await returned %v", err)
		}
	}
	if got, _ := c.Current(); got == nil || *got != 0 || c.Followed() != nil {
		t.Errorf("the copy is %v, and followed %v", got, c.Followed())
	}
	c.stored.Store(1)
	if err := c.await(t.Context(), false, 1); err != nil || c.reads.Load() != 3 || c.Followed() == nil {
		t.Errorf("Await after a failure: %v, after %d reads, want 3; followed: %v", err, c.reads.Load(), c.Followed())
	}
}

// TestDisconnect checks that a copy is not confirmed from the loss of the connection until the store is heard again.
func TestDisconnect(t *testing.T) {
	t.Parallel()
	c := newCounter(t, time.Minute)
	if err := c.await(t.Context(), true, 0); err != nil {
		t.Fatal(err)
	}
	lost := time.Now()
	for range 2 {
		if c.NoteDisconnect(); c.LastConfirmed().After(lost) {
			t.Error("the copy is confirmed without a connection")
		}
	}
	c.stored.Store(1)
	c.changes <- nil
	if err := c.await(t.Context(), false, 1); err != nil || c.LastConfirmed().Before(lost) {
		t.Errorf("Await: %v, confirmed %v before the connection was lost", err, lost.Sub(c.LastConfirmed()))
	}
}

// TestIdle checks that changes are no longer followed when no call has waited for the idle time, and that a copy is
// confirmed no later than the connection is known to have worked.
func TestIdle(t *testing.T) {
	t.Parallel()
	c := newCounter(t, 20*time.Millisecond)
	began := time.Now()
	if err := c.await(t.Context(), true, 0); err != nil {
		t.Fatal(err)
	}
	waiting.Until(t, "changes are no longer followed", func() bool { return c.Followed() == nil })
	if confirmed := c.LastConfirmed(); confirmed.Before(began) || confirmed.After(time.Now()) {
		t.Errorf("the copy was confirmed at %v", confirmed)
	}
	c.stored.Store(1)
	if err := c.await(t.Context(), false, 1); err != nil {
		t.Errorf("Await after the idle time: %v", err)
	}
}

// TestAgain checks that the condition is asked again at the time it returned, although nothing has changed.
func TestAgain(t *testing.T) {
	t.Parallel()
	c := newCounter(t, time.Minute)
	asked := 0
	err := c.Await(t.Context(), true, func(*int) (bool, time.Time) {
		asked++
		return asked == 3, time.Now().Add(time.Millisecond)
	})
	if err != nil || asked != 3 {
		t.Errorf("Await: %v, asked %d times", err, asked)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	c := newCounter(t, time.Minute)
	done := make(chan error, 1)
	go func() { done <- c.await(t.Context(), true, 1) }()
	for c.reads.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	c.Stop()
	if err := <-done; err != ErrClosed {
		t.Errorf("Await returned %v when the client was closed", err)
	}
	if err := c.await(t.Context(), false, 0); err != ErrClosed {
		t.Errorf("Await of a closed client returned %v", err)
	}
}

func TestCallerGivesUp(t *testing.T) {
	t.Parallel()
	c := newCounter(t, time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := c.await(ctx, true, 1); err != context.DeadlineExceeded {
		t.Errorf("Await returned %v", err)
	}
	if err := c.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer c.Unlock()
	if err := c.Lock(ctx); err != context.DeadlineExceeded {
		t.Errorf("Lock returned %v", err)
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	type call struct {
		after uint64
		err   error
		at    int64
	}
	for name, test := range map[string]struct {
		calls   []call
		owed    bool
		certain time.Time // at the time 100
	}{
		"no call":                      {nil, false, time.Time{}},
		"never answered":               {[]call{{0, errStore, 1}, {5, errStore, 2}}, true, time.Time{}},
		"answered":                     {[]call{{0, nil, 1}}, false, at(100)},
		"failed":                       {[]call{{0, nil, 1}, {5, errStore, 2}, {5, errStore, 3}}, true, at(2)},
		"answered to another caller":   {[]call{{0, nil, 1}, {5, errStore, 2}, {0, nil, 3}}, true, at(100)},
		"answered to the watcher":      {[]call{{0, nil, 1}, {5, errStore, 2}, {5, nil, 3}}, false, at(100)},
		"failed twice, with an answer": {[]call{{0, nil, 1}, {5, errStore, 2}, {0, nil, 3}, {0, errStore, 4}}, true, at(4)},
	} {
		t.Run(name, func(t *testing.T) {
			var a Answers
			for _, c := range test.calls {
				a.Ended(c.after, c.err, at(c.at))
			}
			if owed, certain := a.Owed(), a.LastCertain(at(100)); owed != test.owed || certain != test.certain {
				t.Errorf("owed %v, certain at %v; want %v, %v", owed, certain, test.owed, test.certain)
			}
		})
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	var v Versions
	for i, tt := range []struct {
		name, content string
		latest, want  uint64
	}{
		{"a", "", 0, 1},   // nothing is something that a call can wait for
		{"a", "x", 7, 7},  // the store's index
		{"a", "x", 9, 7},  // nothing has changed
		{"a", "y", 3, 8},  // the store was set back
		{"b", "y", 3, 3},  // something else
		{"a", "x", 7, 9},  // the content of before, under another index
		{"a", "z", 9, 10}, // an index that was given already
		{"a", "x", 1 << 40, 1 << 40},
	} {
		if got := v.Index(tt.name, tt.content, tt.latest); got != tt.want {
			t.Errorf("%d: index %d, want %d", i, got, tt.want)
		}
	}
}
