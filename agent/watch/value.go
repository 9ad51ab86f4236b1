// Package watch shares the latest value of something between goroutines.
package watch

import (
	"context"
	"sync"
)

// A Value holds the latest value that one goroutine has set and others wait for. Create one with New. It is safe
// for concurrent use. The value itself is shared: readers must not change what it refers to.
type Value[T any] struct {
	mu    sync.Mutex
	value T
	set   bool

	unchanged context.Context // ends at the next change
	end       context.CancelFunc
}

// New returns a Value that has not been set.
func New[T any]() *Value[T] {
	v := &Value[T]{}
	v.unchanged, v.end = context.WithCancel(context.Background())
	return v
}

// Set replaces the value and wakes every reader that waits for a change, also when the new value equals the old one.
func (v *Value[T]) Set(value T) { v.replace(value, true) }

// Update changes the value, or the zero value if there is none, and wakes every reader that waits for a change. No
// other change comes between. change must not use the Value.
func (v *Value[T]) Update(change func(*T)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change(&v.value)
	v.set = true
	v.wake()
}

// Clear removes the value and wakes every reader that waits for a change. Get then reports that there is no value,
// as before the first Set.
func (v *Value[T]) Clear() {
	var none T
	v.replace(none, false)
}

func (v *Value[T]) replace(value T, set bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.value, v.set = value, set
	v.wake()
}

// wake wakes the readers. The caller holds mu.
func (v *Value[T]) wake() {
	v.end()
	v.unchanged, v.end = context.WithCancel(context.Background())
}

// Get returns the value, whether there is one, and a channel that is closed by the next Set or Clear.
func (v *Value[T]) Get() (value T, ok bool, changed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.value, v.set, v.unchanged.Done()
}

// Until returns a context that ends with ctx, and when changed is closed, which Get has returned. The caller must call
// cancel.
func (v *Value[T]) Until(ctx context.Context, changed <-chan struct{}) (_ context.Context, cancel func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	ctx, end := context.WithCancel(ctx)
	if changed != v.unchanged.Done() {
		end()
		return ctx, end
	}
	stop := context.AfterFunc(v.unchanged, end)
	return ctx, func() {
		stop()
		end()
	}
}
