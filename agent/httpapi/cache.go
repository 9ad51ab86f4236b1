package httpapi

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

// A query is a list or an object that clients can wait for. One follower serves all readers that wait for the same
// query, for as long as there are any: another reader costs the store nothing and the agent little.
//
// The content comes either from the agent's memory (read, changes) or from the store (readStore).
type query struct {
	name string // such as "leases of default"; two queries of one name have the same content

	// read returns the content now. It does not block.
	read func() (content, error)
	// changes returns channels of which one is closed when read may return something else. It is called before read.
	changes func() []<-chan struct{}
	// refresh, if not nil, brings the agent's memory up to date for a reader that does not wait.
	refresh func(ctx context.Context)
	// keepFresh, if not nil, does so until ctx ends, for readers that wait.
	keepFresh func(ctx context.Context)
	// since, if not nil, returns what a reader gets instead of the content, from the index that it has (0 for none).
	since func(index uint64) (reply, error)

	// readStore returns the content and the store's index of it. It blocks until the index differs from after, and
	// returns at once if after is 0.
	readStore func(ctx context.Context, after uint64) (out content, index uint64, err error)
}

// content is what a query returned.
type content struct {
	body  any
	basis any    // the part of body that makes a new index when it changes; nil for all of it
	index uint64 // for content that has an index of its own, otherwise 0
}

// errMoved says that the network of a query is no longer where the query looks for it, so that the query has to be made
// again.
var errMoved = errors.New("this host joins or leaves the network just now: ask again")

// A follower reads a query again when a change has settled, and no more often than once in followPause. It outlives its
// last reader by followLinger, because a client that reads in a loop is away for a moment after each answer.
const (
	followSettle = 20 * time.Millisecond
	followPause  = 200 * time.Millisecond
	followLinger = 10 * time.Second
	maxEntries   = 10_000
)

// queryCache keeps the content of queries under an index that grows whenever the content changes. It is safe for
// concurrent use.
//
// An index is the time in microseconds at which the content was first seen, or one more than the last index if that is
// not earlier. So it also grows over restarts, unless the clock goes back, and no two contents share one.
type queryCache struct {
	linger     time.Duration
	maxReaders int
	newLoop    func() *retry.Loop
	seed       maphash.Seed
	closing    chan struct{} // closed when all readers have to end

	mu        sync.Mutex
	waiting   int // readers
	entries   map[string]*cacheEntry
	followers sync.WaitGroup
}

// A cacheEntry is what the cache knows of a query.
type cacheEntry struct {
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
	latest  *watch.Value[answer]
	readers int
	cancel  context.CancelFunc
	idle    *time.Timer // ends the follower, nil while there are readers
}

// answer is what all readers of a query get.
type answer struct {
	reply
	err error
}

func newQueryCache(newLoop func() *retry.Loop, l Limits) *queryCache {
	return &queryCache{
		linger:     followLinger,
		maxReaders: l.Readers,
		newLoop:    newLoop,
		seed:       maphash.MakeSeed(),
		closing:    make(chan struct{}),
		entries:    map[string]*cacheEntry{},
	}
}

// close ends all readers and followers.
func (c *queryCache) close() {
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

// now returns the content of a query and does not wait for a change.
func (c *queryCache) now(ctx context.Context, q query) (reply, error) {
	e := c.entry(q.name)
	if q.readStore == nil {
		if q.refresh != nil {
			q.refresh(ctx)
		}
		return c.update(e, q)
	}
	const tries = 3
	for range tries {
		began := e.published()
		out, at, err := q.readStore(ctx, 0)
		if err != nil {
			return reply{}, err
		}
		if out, ok := c.offer(e, out, at, began); ok {
			return out, nil
		}
	}
	return reply{}, fmt.Errorf("%s: %w: it changes faster than it is read", q.name, registry.ErrUncertain)
}

// next blocks until the query has other content than the reader has. again says that the query has to be made again.
func (c *queryCache) next(ctx context.Context, q query, o blockingOptions) (out reply, again bool, err error) {
	e, f, err := c.join(q)
	if err != nil {
		return reply{}, false, err
	}
	defer c.leave(e, f)
	timer := time.NewTimer(o.wait)
	defer timer.Stop()
	for {
		last, known, changed := f.latest.Get()
		switch {
		case known && last.err != nil:
			return reply{}, true, nil
		case known && last.index != o.index:
			return last.reply, false, nil
		}
		select {
		case <-changed:
			continue
		case <-timer.C:
		case <-c.closing:
		case <-ctx.Done():
			return reply{}, false, ctx.Err()
		}
		switch {
		case q.readStore == nil:
			out, err = c.update(e, q) // the parts of the body that make no new index may have changed
		case known:
			out = last.reply
		default:
			err = fmt.Errorf("%s: %w: not read yet", q.name, registry.ErrUnavailable)
		}
		return out, false, err
	}
}

// entry returns the entry of a query.
func (c *queryCache) entry(name string) *cacheEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entryLocked(name)
}

func (c *queryCache) entryLocked(name string) *cacheEntry {
	e := c.entries[name]
	if e == nil {
		if len(c.entries) >= maxEntries {
			c.evictLocked()
		}
		e = &cacheEntry{}
		c.entries[name] = e
	}
	return e
}

// evictLocked drops the entries for which no reader waits. A reader that has one of their indexes is answered at once.
func (c *queryCache) evictLocked() {
	for name, e := range c.entries {
		if e.follower == nil {
			delete(c.entries, name)
		}
	}
}

// join adds a reader to those that wait for a query. The first one starts a follower.
func (c *queryCache) join(q query) (*cacheEntry, *follower, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting >= c.maxReaders {
		return nil, nil, tooManyReaders(c.waiting)
	}
	select {
	case <-c.closing:
		return nil, nil, fmt.Errorf("%w: the agent is being stopped", registry.ErrUnavailable)
	default:
	}
	e := c.entryLocked(q.name)
	f := e.follower
	if f == nil {
		ctx, cancel := context.WithCancel(context.Background())
		f = &follower{latest: watch.New[answer](), cancel: cancel}
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
func (c *queryCache) leave(e *cacheEntry, f *follower) {
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
func (c *queryCache) run(ctx context.Context, e *cacheEntry, q query) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if q.keepFresh != nil {
		wg.Go(func() { q.keepFresh(ctx) })
	}
	if q.readStore != nil {
		c.followStore(ctx, e, q)
	} else {
		c.followMemory(ctx, e, q)
	}
}

func (c *queryCache) followMemory(ctx context.Context, e *cacheEntry, q query) {
	for {
		changes := q.changes()
		_, _ = c.update(e, q) // the readers get the error from the follower
		if !anyClosed(ctx, changes) || retry.Sleep(ctx, followSettle) != nil {
			return
		}
		if retry.Sleep(ctx, followPause-followSettle) != nil {
			return
		}
	}
}

func (c *queryCache) followStore(ctx context.Context, e *cacheEntry, q query) {
	var after uint64
	backoff := c.newLoop()
	for {
		began := e.published()
		out, at, err := q.readStore(ctx, after)
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
func (c *queryCache) update(e *cacheEntry, q query) (reply, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	out, err := q.read()
	if err != nil {
		e.failLocked(err)
		return reply{}, err
	}
	return e.publishLocked(c.seed, out)
}

// offer publishes what the store said, unless something newer was published since it was asked.
func (c *queryCache) offer(e *cacheEntry, out content, at, began uint64) (reply, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.count != began && at < e.at {
		return reply{}, false
	}
	r, err := e.publishLocked(c.seed, out)
	if err == nil {
		e.at = at
	}
	return r, err == nil
}

// published returns how often content was published.
func (e *cacheEntry) published() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.count
}

func (e *cacheEntry) follow(f *follower) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.follower = f
}

// publishLocked gives content its index and wakes the readers if it is new to them.
func (e *cacheEntry) publishLocked(seed maphash.Seed, out content) (reply, error) {
	data, err := encode(out.body)
	basis := data
	if err == nil && out.basis != nil {
		basis, err = encode(out.basis)
	}
	if err != nil {
		e.failLocked(err)
		return reply{}, err
	}
	before := e.index
	switch sum := maphash.Bytes(seed, basis); {
	case out.index > 0:
		e.index = out.index
	case e.index == 0 || e.sum != sum:
		e.sum = sum
		e.index = max(e.index+1, uint64(time.Now().UnixMicro()))
	}
	e.count++
	body := &sharedBody{plain: data, gzip: sync.OnceValue(func() []byte { return compress(data) })}
	r := reply{index: e.index, shared: body}
	if f := e.follower; f != nil {
		if _, known, _ := f.latest.Get(); !known || e.index != before {
			f.latest.Set(answer{reply: r})
		}
	}
	return r, nil
}

func (e *cacheEntry) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failLocked(err)
}

// failLocked makes the readers read for themselves, unless the error only means that nothing newer is known.
func (e *cacheEntry) failLocked(err error) {
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
	e.follower.latest.Set(answer{err: err})
}

// encode returns a body as it is sent.
func encode(body any) ([]byte, error) {
	if body == nil {
		body = struct{}{}
	}
	var out bytes.Buffer
	if err := json.NewEncoder(&out).Encode(body); err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return out.Bytes(), nil
}

// compress returns data with gzip.
func compress(data []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(data) // a buffer takes everything
	_ = w.Close()
	return out.Bytes()
}
