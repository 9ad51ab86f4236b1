package agent

import "sync"

// published is the latest value of something one goroutine makes and others
// wait for. Safe for concurrent use.
type published[T any] struct {
	mu      sync.Mutex
	value   T
	version uint64 // 0 before the first set
	changed chan struct{}
}

func newPublished[T any]() *published[T] {
	return &published[T]{changed: make(chan struct{})}
}

// set replaces the value and wakes everyone who waits.
func (p *published[T]) set(v T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.value = v
	p.version++
	close(p.changed)
	p.changed = make(chan struct{})
}

// get is the value, whether there is one yet, and a channel that closes at the
// next set.
func (p *published[T]) get() (v T, ok bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.value, p.version > 0, p.changed
}

// clear forgets the value, so that get answers as before the first set.
func (p *published[T]) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	var none T
	p.value, p.version = none, 0
	close(p.changed)
	p.changed = make(chan struct{})
}
