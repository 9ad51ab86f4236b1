// Package replica keeps a client's copy of what a store contains, for stores that are followed with one watch.
package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lenonet/leno/registry"
)

// ErrClosed is the error of calls after Stop.
var ErrClosed = errors.New("the client is closed")

// errIdle ends the following of changes for which no call waits.
var errIdle = fmt.Errorf("%w: nothing was waited for", registry.ErrUnavailable)

// Replica is the copy. While calls wait for changes, one goroutine follows them; it ends when the store fails, which
// all waiting calls are told, or when no call has waited for Options.Idle. The next call that waits starts it again,
// and reads everything again then. Replica is safe for concurrent use.
type Replica[T any] struct {
	Options

	reading chan struct{} // holds a value while the copy is read or changed

	mu        sync.Mutex
	copy      *T            // nil before the first reading
	confirmed time.Time     // when the store last confirmed the copy
	lost      bool          // the connection was lost after that
	changed   chan struct{} // closed and replaced with each copy, and when following ends
	err       error         // why following ended last, nil while it goes on
	cancel    context.CancelCauseFunc
	waiting   int
	idle      *time.Timer // ends following, nil before the first time
	closed    bool
	running   sync.WaitGroup // the goroutine that follows the changes
}

// Options are what a Replica needs to know of its store.
type Options struct {
	// Refresh reads everything and sets the copy.
	Refresh func(ctx context.Context) error
	// Follow applies changes until the store fails or ctx ends.
	Follow func(ctx context.Context) error
	// Idle is how long changes are followed while no call waits for them. With 0, following ends with the last call.
	Idle time.Duration
	// Undetected is how long a connection may have been dead when its loss is noticed.
	Undetected time.Duration
}

// New returns a replica that has no copy yet.
func New[T any](o Options) *Replica[T] {
	return &Replica[T]{Options: o, reading: make(chan struct{}, 1), changed: make(chan struct{})}
}

// Lock makes the caller the only one to read or change the copy, so that copies follow one another, until Unlock. It
// returns the error of ctx if that ends first.
func (r *Replica[T]) Lock(ctx context.Context) error {
	select {
	case r.reading <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unlock ends what Lock began.
func (r *Replica[T]) Unlock() { <-r.reading }

// Current returns the copy, nil if there is none, and a channel that is closed when it changes or following ends.
func (r *Replica[T]) Current() (*T, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.copy, r.changed
}

// Set makes t the copy, as confirmed by the store now. The caller has called Lock.
func (r *Replica[T]) Set(t *T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.confirmed, r.lost = time.Now(), false
	if t == r.copy {
		return
	}
	r.copy = t
	r.wakeLocked()
}

func (r *Replica[T]) wakeLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Await returns when ready returns true for the copy. It asks again with each new copy, and at the time that ready
// returns, if that is not zero. It begins with a copy that was read after the call if fresh is true, if there is none
// yet, or if the store has failed since.
func (r *Replica[T]) Await(ctx context.Context, fresh bool, ready func(*T) (done bool, again time.Time)) error {
	if fresh || r.Followed() == nil {
		if err := r.Refresh(ctx); err != nil {
			return err
		}
	}
	release, err := r.Use()
	if err != nil {
		return err
	}
	defer release()
	for {
		r.mu.Lock()
		if r.err == errIdle && !r.closed { // it ended when this call was about to wait
			r.startLocked()
		}
		t, changed, err := r.copy, r.changed, r.err
		r.mu.Unlock()
		done, again := ready(t)
		if done {
			return nil
		}
		if err != nil {
			return err
		}
		var due <-chan time.Time
		if !again.IsZero() {
			due = time.After(time.Until(again))
		}
		select {
		case <-changed:
		case <-due:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Use keeps the copy up to date until release is called.
func (r *Replica[T]) Use() (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	r.waiting++
	if r.idle != nil {
		r.idle.Stop() // if it is too late for that, Await starts again
	}
	if r.cancel == nil {
		r.startLocked()
	}
	return r.release, nil
}

func (r *Replica[T]) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting--
	switch cancel := r.cancel; {
	case r.waiting > 0 || cancel == nil:
	case r.Idle == 0:
		cancel(errIdle)
	default:
		r.idle = time.AfterFunc(r.Idle, func() { cancel(errIdle) })
	}
}

func (r *Replica[T]) startLocked() {
	ctx, cancel := context.WithCancelCause(context.Background())
	r.cancel, r.err = cancel, nil
	r.running.Go(func() {
		err := r.Follow(ctx)
		if reason := context.Cause(ctx); reason != nil {
			err = reason
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.cancel, r.err = nil, err
		cancel(nil)
		r.noteDisconnectLocked()
		r.wakeLocked()
	})
}

// NoteDisconnect makes LastConfirmed stand still until Set is called, for Options.Follow.
func (r *Replica[T]) NoteDisconnect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteDisconnectLocked()
}

func (r *Replica[T]) noteDisconnectLocked() {
	if proven := time.Now().Add(-r.Undetected); !r.lost && r.Undetected > 0 && proven.After(r.confirmed) {
		r.confirmed = proven
	}
	r.lost = true
}

// Followed returns the copy if it is kept up to date, nil otherwise.
func (r *Replica[T]) Followed() *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancel == nil {
		return nil
	}
	return r.copy
}

// LastConfirmed returns when the store last said that the copy is current, zero for never.
func (r *Replica[T]) LastConfirmed() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancel != nil && r.copy != nil && !r.lost {
		return time.Now() // the connection is checked all the time
	}
	return r.confirmed
}

// Stop ends following for good, and blocks until it has ended.
func (r *Replica[T]) Stop() {
	r.mu.Lock()
	r.closed = true
	if r.cancel != nil {
		r.cancel(ErrClosed)
	}
	r.mu.Unlock()
	r.running.Wait()
}
