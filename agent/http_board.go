package agent

import (
	"bytes"
	"cmp"
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

// shown is an answer that can be waited for. Everybody who waits for the same one
// is served by one goroutine, which there is as long as somebody waits: a reader
// more costs the store nothing and the agent little.
//
// An answer shows the agent's memory, or the store, which is asked.
type shown struct {
	// name tells the answer from others: two of one name are the same answer.
	name string

	// memory is what the answer is now; it does not block.
	memory func() (reply, error)
	// changes close when memory may answer something else. They are asked for
	// before memory is.
	changes func() []<-chan struct{}
	// fresh, if not nil, brings memory up to date for who does not wait.
	fresh func(ctx context.Context)
	// keep, if not nil, does so while somebody waits, until ctx ends.
	keep func(ctx context.Context)

	// since, if not nil, is what a reader is answered instead, who has the answer of
	// an index, 0 for none.
	since func(index uint64) (reply, error)

	// store, if not nil, is asked instead of memory. It blocks until it has
	// another index than after, and answers at once when that is 0.
	store func(ctx context.Context, after uint64) (out reply, index uint64, err error)
}

// errElsewhere is of an answer that has to be looked for anew: what it shows has
// become something else.
var errElsewhere = errors.New("this host joins or leaves the network just now: ask again")

// A follower looks again at a change once it has settled, and not more often than
// calmBoard. It outlives the last reader by lingerBoard: who reads in a loop is
// away for a moment after each answer.
const (
	settleBoard = 20 * time.Millisecond
	calmBoard   = 200 * time.Millisecond
	lingerBoard = 10 * time.Second
	mostViews   = 10_000
)

// board has the answers that can be waited for, each under an index that moves
// whenever the answer does. Safe for concurrent use.
//
// An index is the time in microseconds at which the answer was first seen, or one
// more than the last where that is not later. So it grows, also over restarts
// while the clock does not go back, and no two answers share one.
type board struct {
	linger  time.Duration
	readers int // at most
	retry   func() *retry.Loop
	seed    maphash.Seed
	closing chan struct{} // closed when all readers shall end

	mu      sync.Mutex
	waiting int
	views   map[string]*followed
	wg      sync.WaitGroup // followers
}

// followed is one answer of a board.
type followed struct {
	name string

	mu     sync.Mutex // held while memory is read, so that what was read later is published later
	index  uint64     // 0 before the first answer
	sum    uint64     // of what the answer showed
	at     uint64     // the store's index of it
	count  uint64     // how often an answer was published
	latest *watch.Value[answer]
	follow bool // somebody keeps latest right

	// Under the board's mutex.
	readers int
	end     context.CancelFunc // of the follower, nil when there is none
	idle    *time.Timer        // ends it, nil while somebody reads
}

// answer is what all readers of a view are answered.
type answer struct {
	reply
	err error
}

func newBoard(retry func() *retry.Loop, readers int) *board {
	return &board{linger: lingerBoard, readers: readers, retry: retry, seed: maphash.MakeSeed(),
		closing: make(chan struct{}), views: map[string]*followed{}}
}

// close ends all that wait, and the followers.
func (b *board) close() {
	b.mu.Lock()
	select {
	case <-b.closing:
	default:
		close(b.closing)
	}
	for _, v := range b.views {
		if v.end != nil {
			v.end()
		}
	}
	b.mu.Unlock()
	b.wg.Wait()
}

// now reads an answer and does not wait.
func (b *board) now(ctx context.Context, s shown) (reply, error) {
	v := b.view(s.name)
	if s.store == nil {
		if s.fresh != nil {
			s.fresh(ctx)
		}
		return b.look(v, s)
	}
	const tries = 3
	for range tries {
		v.mu.Lock()
		began := v.count
		v.mu.Unlock()
		out, at, err := s.store(ctx, 0)
		if err != nil {
			return reply{}, err
		}
		if out, ok := b.offer(v, out, at, began); ok {
			return out, nil
		}
	}
	return reply{}, fmt.Errorf("%s: %w: it changes faster than it is read", s.name, registry.ErrUncertain)
}

// next waits for another answer than the reader has. again says that the answer
// has to be found anew.
func (b *board) next(ctx context.Context, s shown, q awaited) (out reply, again bool, err error) {
	v, err := b.join(s)
	if err != nil {
		return reply{}, false, err
	}
	defer b.leave(v)
	timer := time.NewTimer(q.wait)
	defer timer.Stop()
	for {
		last, known, changed := v.latest.Get()
		switch {
		case known && last.err != nil:
			return reply{}, true, nil
		case known && last.index != q.index:
			return last.reply, false, nil
		}
		select {
		case <-changed:
			continue
		case <-timer.C:
		case <-b.closing:
		case <-ctx.Done():
			return reply{}, false, ctx.Err()
		}
		switch {
		case s.store == nil:
			out, err = b.look(v, s) // what counts no change has gone on
		case known:
			out = last.reply
		default:
			err = fmt.Errorf("%s: %w: not read yet", s.name, registry.ErrUnavailable)
		}
		return out, false, err
	}
}

// view finds the answer of a name, or makes it.
func (b *board) view(name string) *followed {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.viewLocked(name)
}

func (b *board) viewLocked(name string) *followed {
	v := b.views[name]
	if v == nil {
		if len(b.views) >= mostViews {
			b.forgetLocked()
		}
		v = &followed{name: name, latest: watch.New[answer]()}
		b.views[name] = v
	}
	return v
}

// forgetLocked drops the answers nobody waits for. Whoever has one of their indexes
// is answered at once.
func (b *board) forgetLocked() {
	for name, v := range b.views {
		if v.end == nil && v.readers == 0 {
			delete(b.views, name)
		}
	}
}

// join makes the caller one of those who wait for an answer, the first of whom
// has it followed.
func (b *board) join(s shown) (*followed, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting >= b.readers {
		return nil, tooMany(b.waiting)
	}
	select {
	case <-b.closing:
		return nil, fmt.Errorf("%w: the agent is being stopped", registry.ErrUnavailable)
	default:
	}
	v := b.viewLocked(s.name)
	b.waiting++
	v.readers++
	if v.idle != nil {
		v.idle.Stop()
		v.idle = nil
	}
	if v.end == nil {
		ctx, cancel := context.WithCancel(context.Background())
		v.end = cancel
		b.wg.Go(func() { b.run(ctx, v, s) })
	}
	return v, nil
}

// leave is the opposite of join.
func (b *board) leave(v *followed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting--
	if v.readers--; v.readers > 0 || v.end == nil {
		return
	}
	v.idle = time.AfterFunc(b.linger, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if v.readers == 0 && v.end != nil {
			v.end()
		}
	})
}

// run follows an answer until ctx ends. A reader who came as it ended has it begin
// anew.
func (b *board) run(ctx context.Context, v *followed, s shown) {
	for {
		v.mu.Lock()
		v.follow = true
		v.mu.Unlock()
		var wg sync.WaitGroup
		if s.keep != nil {
			wg.Go(func() { s.keep(ctx) })
		}
		if s.store != nil {
			b.followStore(ctx, v, s)
		} else {
			b.followMemory(ctx, v, s)
		}
		wg.Wait()
		v.mu.Lock()
		v.follow = false
		v.latest.Clear()
		v.mu.Unlock()

		b.mu.Lock()
		select {
		case <-b.closing:
			v.readers = 0
		default:
		}
		if v.readers == 0 {
			v.end = nil
			b.mu.Unlock()
			return
		}
		ctx, v.end = context.WithCancel(context.Background())
		b.mu.Unlock()
	}
}

func (b *board) followMemory(ctx context.Context, v *followed, s shown) {
	for {
		changes := s.changes()
		_, _ = b.look(v, s) // readers have the error from the view
		if !anyOf(ctx, changes) || retry.Sleep(ctx, settleBoard) != nil {
			return
		}
		if retry.Sleep(ctx, calmBoard-settleBoard) != nil {
			return
		}
	}
}

func (b *board) followStore(ctx context.Context, v *followed, s shown) {
	var after uint64
	backoff := b.retry()
	for {
		v.mu.Lock()
		began := v.count
		v.mu.Unlock()
		out, at, err := s.store(ctx, after)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			b.fail(v, err)
			if backoff.Wait(ctx, err, nil) != nil {
				return
			}
			after = 0
			continue
		}
		after = at
		if _, ok := b.offer(v, out, at, began); !ok {
			after = 0 // somebody has read something newer meanwhile
		}
		if retry.Sleep(ctx, calmBoard) != nil {
			return
		}
	}
}

// anyOf blocks until one of the channels is closed; false when ctx ends first.
func anyOf(ctx context.Context, changes []<-chan struct{}) bool {
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())}}
	for _, c := range changes {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)})
	}
	chosen, _, _ := reflect.Select(cases)
	return chosen > 0
}

// look reads memory and publishes what it says.
func (b *board) look(v *followed, s shown) (reply, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	out, err := s.memory()
	if err == nil {
		out, err = b.publishLocked(v, out)
	}
	if err != nil {
		v.failLocked(err)
		return reply{}, err
	}
	return out, nil
}

// offer publishes what the store said, unless something newer was since it was
// asked.
func (b *board) offer(v *followed, out reply, at, began uint64) (reply, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.count != began && at < v.at {
		return reply{}, false
	}
	out, err := b.publishLocked(v, out)
	if err != nil {
		v.failLocked(err)
		return reply{}, false
	}
	v.at = at
	return out, true
}

// publishLocked gives an answer its index and wakes those who wait if it is
// another one than before.
func (b *board) publishLocked(v *followed, out reply) (reply, error) {
	data, err := encoded(out.body)
	if err != nil {
		return reply{}, err
	}
	counts := data
	if out.quiet != nil {
		if counts, err = encoded(out.quiet); err != nil {
			return reply{}, err
		}
	}
	before := v.index
	switch sum := maphash.Bytes(b.seed, counts); {
	case out.index > 0:
		v.index = out.index
	case v.index == 0 || v.sum != sum:
		v.sum = sum
		v.index = max(v.index+1, uint64(time.Now().UnixMicro()))
	}
	v.count++
	out = reply{index: v.index, data: data, packed: sync.OnceValue(func() []byte { return pack(data) })}
	if _, known, _ := v.latest.Get(); v.follow && (!known || v.index != before) {
		v.latest.Set(answer{reply: out})
	}
	return out, nil
}

func (b *board) fail(v *followed, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failLocked(err)
}

// failLocked has those who wait look for themselves, unless it is only that
// nothing newer is known.
func (v *followed) failLocked(err error) {
	last, known, _ := v.latest.Get()
	away := errors.Is(err, registry.ErrUnavailable) || errors.Is(err, registry.ErrUncertain)
	if !v.follow || (known && (away || last.err != nil)) {
		return
	}
	v.index = cmp.Or(v.index, 1) + 1 // whatever comes next is another answer
	v.sum = 0
	v.count++
	v.latest.Set(answer{err: err})
}

// encoded is a body as it travels.
func encoded(body any) ([]byte, error) {
	if body == nil {
		body = struct{}{}
	}
	var out bytes.Buffer
	if err := json.NewEncoder(&out).Encode(body); err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return out.Bytes(), nil
}
