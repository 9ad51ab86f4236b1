// Package query answers blocking queries: reads of a list or an object that return when its content has changed.
//
// It knows indexes, readers and followers, and neither HTTP nor what the content means.
package query

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"reflect"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/registry"
)

// A Query is a list or an object that clients can wait for. One follower serves all readers that wait for the same
// query, for as long as there are any: another reader costs the store nothing and the agent little.
//
// The content comes either from the agent's memory (Read, Changes) or from the store (ReadStore).
type Query struct {
	Name string // such as "leases of default"; two queries of one name have the same content

	// Read returns the content now. It does not block.
	Read func() (Content, error)
	// Changes returns channels of which one is closed when Read may return something else. It is called before Read.
	Changes func() []<-chan struct{}
	// Refresh, if not nil, brings the agent's memory up to date for a reader that does not wait.
	Refresh func(ctx context.Context)
	// KeepFresh, if not nil, does so until ctx ends, for readers that wait.
	KeepFresh func(ctx context.Context)
	// Since, if not nil, returns what a reader gets instead of the content, given the index that it has (0 for none).
	Since func(index uint64) Content

	// ReadStore returns the content and the store's index of it. It blocks until the index differs from after, and
	// returns at once if after is 0.
	ReadStore func(ctx context.Context, after uint64) (out Content, index uint64, err error)
}

// Content is what a query returned.
type Content struct {
	Body  any    // encodes to JSON
	Basis any    // the part of Body that makes a new index when it changes; nil for all of it
	Index uint64 // for content that has an index of its own, otherwise 0
}

// An Answer is content as all readers of a query get it.
type Answer struct {
	Index uint64
	Plain []byte        // the body as JSON
	Gzip  func() []byte // the compressed body; compresses at the first call
}

// ErrTooManyReaders is returned when no more readers may wait.
var ErrTooManyReaders = errors.New("reads already wait for changes, which is the limit: ask without index")

// A follower reads a query again when a change has settled, and no more often than once in followPause. It outlives its
// last reader by followLinger, because a client that reads in a loop is away for a moment after each answer.
const (
	followSettle = 20 * time.Millisecond
	followPause  = 200 * time.Millisecond
	followLinger = 10 * time.Second
	maxEntries   = 10_000
)

// Cache keeps the content of queries under an index that grows whenever the content changes. It is safe for
// concurrent use.
//
// An index is the time in microseconds at which the content was first seen, or one more than the last index if that is
// not earlier. So it also grows over restarts, unless the clock goes back, and no two contents share one.
type Cache struct {
	linger     time.Duration
	maxReaders int
	newLoop    func() *retry.Loop
	seed       maphash.Seed
	closing    chan struct{} // closed when all readers have to end

	mu        sync.Mutex
	waiting   int // readers
	entries   map[string]*entry
	followers sync.WaitGroup
}

// An entry is what the cache knows of a query.
type entry struct {
	mu       sync.Mutex // also held while memory is read, so that what was read later is published later
	index    uint64     // 0 before the first content
	sum      uint64     // of the content's basis
	at       uint64     // the store's index of the content
	count    uint64     // how often content was published
	follower *follower  // nil while no reader waits; changed with the cache's mutex held as well
}

// A follower keeps the latest answer to a query while readers wait for it. Its other fields are guarded by the mutex of
// the cache.
type follower struct {
	latest  *watch.Value[result]
	readers int
	cancel  context.CancelFunc
	idle    *time.Timer // ends the follower, nil while there are readers
}

// result is an answer or why there is none.
type result struct {
	Answer
	err error
}

// New returns a cache for which so many readers may wait at once. newLoop paces reads of the store that fail.
func New(newLoop func() *retry.Loop, maxReaders int) *Cache {
	return &Cache{
		linger:     followLinger,
		maxReaders: maxReaders,
		newLoop:    newLoop,
		seed:       maphash.MakeSeed(),
		closing:    make(chan struct{}),
		entries:    map[string]*entry{},
	}
}

// Close ends all readers and followers. Later readers are refused.
func (c *Cache) Close() {
	c.mu.Lock()
	select {
	case <-c.closing:
	default:
		close(c.closing)
	}
	for _, e := range c.entries {
		if e.follower != nil {
			e.follower.cancel()
		}
	}
	c.mu.Unlock()
	c.followers.Wait()
}

// Waiting returns how many readers wait.
func (c *Cache) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting
}

// Now returns the content of a query without waiting for a change. index is what the reader has, 0 for none.
func (c *Cache) Now(ctx context.Context, q Query, index uint64) (Answer, error) {
	if q.Since != nil {
		out := q.Since(index)
		data, err := encode(out.Body)
		return newAnswer(out.Index, data), err
	}
	e := c.entry(q.Name)
	if q.ReadStore == nil {
		if q.Refresh != nil {
			q.Refresh(ctx)
		}
		return c.update(e, q)
	}
	const tries = 3
	for range tries {
		began := e.published()
		out, at, err := q.ReadStore(ctx, 0)
		if err != nil {
			return Answer{}, err
		}
		if out, ok := c.offer(e, out, at, began); ok {
			return out, nil
		}
	}
	return Answer{}, fmt.Errorf("%s: %w: it changes faster than it is read", q.Name, registry.ErrUncertain)
}

// Next blocks until the query has other content than the reader has, which is that with the given index, or until wait
// is over. again says that the query has to be made again and read with Now.
func (c *Cache) Next(ctx context.Context, q Query, index uint64, wait time.Duration) (
	out Answer, again bool, err error) {
	e, f, err := c.join(q)
	if err != nil {
		return Answer{}, false, err
	}
	defer c.leave(e, f)
	over := time.After(wait)
	for {
		last, known, changed := f.latest.Get()
		switch {
		case known && last.err != nil:
			return Answer{}, true, nil
		case known && last.Index != index:
			return last.Answer, q.Since != nil, nil
		}
		select {
		case <-changed:
			continue
		case <-over:
		case <-c.closing:
		case <-ctx.Done():
			return Answer{}, false, ctx.Err()
		}
		switch {
		case q.Since != nil:
			return Answer{}, true, nil
		case q.ReadStore == nil:
			out, err = c.update(e, q) // the parts of the body that make no new index may have changed
		case known:
			out = last.Answer
		default:
			err = fmt.Errorf("%s: %w: not read yet", q.Name, registry.ErrUnavailable)
		}
		return out, false, err
	}
}

// entry returns the entry of a query.
func (c *Cache) entry(name string) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entryLocked(name)
}

func (c *Cache) entryLocked(name string) *entry {
	e := c.entries[name]
	if e == nil {
		if len(c.entries) >= maxEntries {
			c.evictLocked()
		}
		e = &entry{}
		c.entries[name] = e
	}
	return e
}

// evictLocked drops the entries for which no reader waits. A reader that has one of their indexes is answered at once.
func (c *Cache) evictLocked() {
	for name, e := range c.entries {
		if e.follower == nil {
			delete(c.entries, name)
		}
	}
}

// join adds a reader to those that wait for a query. The first one starts a follower.
func (c *Cache) join(q Query) (*entry, *follower, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting >= c.maxReaders {
		return nil, nil, fmt.Errorf("%d %w", c.waiting, ErrTooManyReaders)
	}
	select {
	case <-c.closing:
		return nil, nil, fmt.Errorf("%w: the agent is being stopped", registry.ErrUnavailable)
	default:
	}
	e := c.entryLocked(q.Name)
	f := e.follower
	if f == nil {
		ctx, cancel := context.WithCancel(context.Background())
		f = &follower{latest: watch.New[result](), cancel: cancel}
		e.follow(f)
		c.followers.Go(func() { c.run(ctx, e, q) })
	}
	if f.idle != nil {
		f.idle.Stop()
		f.idle = nil
	}
	c.waiting++
	f.readers++
	return e, f, nil
}

// leave removes a reader. The last one ends the follower, after a while.
func (c *Cache) leave(e *entry, f *follower) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting--
	if f.readers--; f.readers > 0 {
		return
	}
	f.idle = time.AfterFunc(c.linger, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if f.readers == 0 && e.follower == f {
			e.follow(nil)
			f.cancel()
		}
	})
}

// run follows a query until ctx ends.
func (c *Cache) run(ctx context.Context, e *entry, q Query) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if q.KeepFresh != nil {
		wg.Go(func() { q.KeepFresh(ctx) })
	}
	if q.ReadStore != nil {
		c.followStore(ctx, e, q)
	} else {
		c.followMemory(ctx, e, q)
	}
}

func (c *Cache) followMemory(ctx context.Context, e *entry, q Query) {
	for {
		changes := q.Changes()
		_, _ = c.update(e, q) // the readers get the error from the follower
		if !anyClosed(ctx, changes) || retry.Sleep(ctx, followSettle) != nil {
			return
		}
		if retry.Sleep(ctx, followPause-followSettle) != nil {
			return
		}
	}
}

func (c *Cache) followStore(ctx context.Context, e *entry, q Query) {
	var after uint64
	backoff := c.newLoop()
	for {
		began := e.published()
		out, at, err := q.ReadStore(ctx, after)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			e.fail(err)
			if backoff.Wait(ctx, err, nil) != nil {
				return
			}
			after = 0
			continue
		}
		after = at
		if _, ok := c.offer(e, out, at, began); !ok {
			after = 0 // a reader has got something newer since
		}
		if retry.Sleep(ctx, followPause) != nil {
			return
		}
	}
}

// anyClosed blocks until one of the channels is closed. It returns false when ctx ends first.
func anyClosed(ctx context.Context, changes []<-chan struct{}) bool {
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())}}
	for _, c := range changes {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)})
	}
	chosen, _, _ := reflect.Select(cases)
	return chosen > 0
}

// update reads memory and publishes what it says.
func (c *Cache) update(e *entry, q Query) (Answer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	out, err := q.Read()
	if err != nil {
		e.failLocked(err)
		return Answer{}, err
	}
	return e.publishLocked(c.seed, out)
}

// offer publishes what the store said, unless something newer was published since it was asked.
func (c *Cache) offer(e *entry, out Content, at, began uint64) (Answer, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.count != began && at < e.at {
		return Answer{}, false
	}
	r, err := e.publishLocked(c.seed, out)
	if err == nil {
		e.at = at
		if e.follower != nil { // what makes no new index, such as an age, may have changed
			e.follower.latest.Set(result{Answer: r})
		}
	}
	return r, err == nil
}

// published returns how often content was published.
func (e *entry) published() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.count
}

func (e *entry) follow(f *follower) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.follower = f
}

// publishLocked gives content its index and wakes the readers if it is new to them.
func (e *entry) publishLocked(seed maphash.Seed, out Content) (Answer, error) {
	data, err := encode(out.Body)
	basis := data
	if err == nil && out.Basis != nil {
		basis, err = encode(out.Basis)
	}
	if err != nil {
		e.failLocked(err)
		return Answer{}, err
	}
	before := e.index
	switch sum := maphash.Bytes(seed, basis); {
	case out.Index > 0:
		e.index = out.Index
	case e.index == 0 || e.sum != sum:
		e.sum = sum
		e.index = max(e.index+1, uint64(time.Now().UnixMicro()))
	}
	e.count++
	answer := newAnswer(e.index, data)
	if f := e.follower; f != nil {
		if _, known, _ := f.latest.Get(); !known || e.index != before {
			f.latest.Set(result{Answer: answer})
		}
	}
	return answer, nil
}

func (e *entry) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failLocked(err)
}

// failLocked makes the readers read for themselves, unless the error only means that nothing newer is known.
func (e *entry) failLocked(err error) {
	if e.follower == nil {
		return
	}
	last, known, _ := e.follower.latest.Get()
	away := errors.Is(err, registry.ErrUnavailable) || errors.Is(err, registry.ErrUncertain)
	if known && (away || last.err != nil) {
		return
	}
	e.index = cmp.Or(e.index, 1) + 1 // what comes next has another index
	e.sum = 0
	e.count++
	e.follower.latest.Set(result{err: err})
}

func newAnswer(index uint64, data []byte) Answer {
	return Answer{Index: index, Plain: data, Gzip: sync.OnceValue(func() []byte { return compress(data) })}
}

// encode returns a body as JSON, on a line of its own.
func encode(body any) ([]byte, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return append(data, '\n'), nil
}

// compress returns data with gzip.
func compress(data []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(data) // a buffer takes everything
	_ = w.Close()
	return out.Bytes()
}
