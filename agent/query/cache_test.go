package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

// TestCache goes by content that a test makes.
func TestCache(t *testing.T) {
	b := New(nil, 1)
	defer b.Close()
	value, moved := watch.New[Content](), []uint64{}
	s := Query{Name: "s",
		Read:    func() (Content, error) { v, _, _ := value.Get(); return v, nil },
		Changes: func() []<-chan struct{} { _, _, c := value.Get(); return []<-chan struct{}{c} }}
	for _, r := range []Content{
		{Body: "one"}, {Body: "one"}, {Body: "two"}, {Body: "three", Basis: "two"}, {Body: "one"},
	} {
		value.Set(r)
		out, err := b.Now(t.Context(), s, 0)
		var text string
		if err != nil || json.Unmarshal(out.Plain, &text) != nil || text != r.Body {
			t.Fatalf("%s, %v", out.Plain, err)
		}
		moved = append(moved, out.Index)
	}
	if moved[0] == 0 || moved[0] != moved[1] || moved[2] != moved[3] || !slices.IsSorted(moved) || moved[4] == moved[3] || moved[2] == moved[1] {
		t.Errorf("indexes %v", moved)
	}
	value.Set(Content{Body: "events", Index: 12})
	if out, again, err := b.Next(t.Context(), s, 11, time.Minute); err != nil || again || out.Index != 12 {
		t.Errorf("an answer that has an index of its own: %+v, %v", out, err)
	}
	b.maxReaders = 0
	_, _, err := b.Next(t.Context(), s, 12, time.Minute)
	if !errors.Is(err, ErrTooManyReaders) {
		t.Errorf("one reader too many: %v", err)
	}
}

// TestManyQueries: a cache keeps a limited number of queries, and always those for which readers wait.
func TestManyQueries(t *testing.T) {
	c := New(nil, 1)
	defer c.Close()
	value := watch.New[string]()
	value.Set("one")
	query := func(name string) Query {
		return Query{Name: name,
			Read:    func() (Content, error) { v, _, _ := value.Get(); return Content{Body: v}, nil },
			Changes: func() []<-chan struct{} { _, _, changed := value.Get(); return []<-chan struct{}{changed} }}
	}
	waited := query("waited for")
	first, err := c.Now(t.Context(), waited, 0)
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		out, _, err := c.Next(t.Context(), waited, first.Index, time.Minute)
		if err == nil && out.Index == first.Index {
			err = errors.New("the reader got the same answer again")
		}
		answered <- err
	}()
	agenttest.Eventually(t, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.entries[waited.Name].follower == nil {
			return errors.New("the reader does not wait yet")
		}
		return nil
	})
	for i := range maxEntries + 1 {
		if _, err := c.Now(t.Context(), query(fmt.Sprint(i)), 0); err != nil {
			t.Fatal(err)
		}
	}
	c.mu.Lock()
	n, kept := len(c.entries), c.entries[waited.Name] != nil
	c.mu.Unlock()
	if n > maxEntries || !kept {
		t.Errorf("%d queries; the one that is waited for is kept: %t", n, kept)
	}
	value.Set("two")
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// TestFollowersFollowAgain: a query is followed once for all readers while they wait, and a little longer, and followed
// again for new readers, from the same index on.
func TestFollowersFollowAgain(t *testing.T) {
	const readers = 8
	value := watch.New[string]()
	value.Set("value")
	var reads atomic.Int64
	for name, q := range map[string]Query{
		"memory": {
			Read:    func() (Content, error) { v, _, _ := value.Get(); return Content{Body: v}, nil },
			Changes: func() []<-chan struct{} { _, _, changed := value.Get(); return []<-chan struct{}{changed} },
		},
		"store": {
			ReadStore: func(ctx context.Context, after uint64) (Content, uint64, error) {
				for {
					v, _, changed := value.Get()
					if index := uint64(len(v)); index != after {
						reads.Add(1)
						return Content{Body: v}, index, nil
					}
					select {
					case <-changed:
					case <-ctx.Done():
						return Content{}, 0, ctx.Err()
					}
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := New(func() *retry.Loop { return nil }, 10)
			c.linger = time.Millisecond
			defer c.Close()
			reads.Store(0)
			q.Name = name
			first, err := c.Now(t.Context(), q, 0)
			if err != nil {
				t.Fatal(err)
			}
			index := first.Index
			for i := range 3 {
				got := make(chan Answer, readers)
				for range readers {
					go func() {
						out, _, _ := c.Next(t.Context(), q, index, time.Minute)
						got <- out
					}()
				}
				agenttest.Eventually(t, func() error {
					if n := c.Waiting(); n != readers {
						return fmt.Errorf("%d readers", n)
					}
					return nil
				})
				before, _, _ := value.Get()
				value.Set(before + "+")
				var next uint64
				for range readers {
					out := <-got
					if out.Index <= index || string(out.Plain) != fmt.Sprintf("%q\n", before+"+") {
						t.Errorf("%d. change: %d %s", i, out.Index, out.Plain)
					}
					next = out.Index
				}
				index = next
				if n := reads.Load(); n > int64(2*i+3) { // the first one, the one of a new follower, and the change
					t.Errorf("%d. change: %d readers made the store be asked %d times", i, readers, n)
				}
				agenttest.Eventually(t, func() error {
					c.mu.Lock()
					defer c.mu.Unlock()
					if c.entries[name].follower != nil {
						return errors.New("it is still followed")
					}
					return nil
				})
			}
		})
	}
}

// TestAgesInTheStore: a reader that has waited in vain for the store gets what was read last, although its index is the same.
func TestAgesInTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(func() *retry.Loop { return nil }, 10)
		defer c.Close()
		begun := time.Now()
		q := Query{Name: "leases", ReadStore: func(ctx context.Context, after uint64) (Content, uint64, error) {
			if after != 0 {
				if err := retry.Sleep(ctx, time.Second); err != nil {
					return Content{}, 0, err
				}
			}
			return Content{Body: time.Since(begun) / time.Second, Basis: "same"}, 7, nil
		}}
		first, err := c.Now(t.Context(), q, 0)
		if err != nil || string(first.Plain) != "0\n" {
			t.Fatalf("%s, %v", first.Plain, err)
		}
		out, again, err := c.Next(t.Context(), q, first.Index, 10*time.Second+100*time.Millisecond)
		if err != nil || again || out.Index != first.Index || string(out.Plain) != "9\n" {
			t.Errorf("%d %s, %t, %v; the first one was %d", out.Index, out.Plain, again, err, first.Index)
		}
	})
}

// TestSince: a reader gets what is new to it, and is told to read again when it has waited.
func TestSince(t *testing.T) {
	c := New(nil, 10)
	defer c.Close()
	last := watch.New[uint64]()
	last.Set(7)
	q := Query{
		Name:    "events",
		Since:   func(index uint64) Content { v, _, _ := last.Get(); return Content{Body: v - index, Index: v} },
		Read:    func() (Content, error) { v, _, _ := last.Get(); return Content{Index: v}, nil },
		Changes: func() []<-chan struct{} { _, _, changed := last.Get(); return []<-chan struct{}{changed} },
	}
	if out, err := c.Now(t.Context(), q, 0); err != nil || out.Index != 7 || string(out.Plain) != "7\n" {
		t.Errorf("%d %s, %v", out.Index, out.Plain, err)
	}
	if _, again, err := c.Next(t.Context(), q, 7, time.Millisecond); err != nil || !again {
		t.Errorf("without news: %t, %v", again, err)
	}
	last.Set(9)
	if _, again, err := c.Next(t.Context(), q, 7, time.Minute); err != nil || !again {
		t.Errorf("with news: %t, %v", again, err)
	}
	if out, err := c.Now(t.Context(), q, 7); err != nil || out.Index != 9 || string(out.Plain) != "2\n" {
		t.Errorf("%d %s, %v", out.Index, out.Plain, err)
	}
}

// TestQueryErrors: readers that wait read for themselves when the content cannot be read, but not when only nothing
// newer is known.
func TestQueryErrors(t *testing.T) {
	c := New(nil, 10)
	defer c.Close()
	type answer struct {
		body string
		err  error
	}
	value := watch.New[answer]()
	value.Set(answer{body: "one"})
	q := Query{
		Name:    "q",
		Read:    func() (Content, error) { v, _, _ := value.Get(); return Content{Body: v.body}, v.err },
		Changes: func() []<-chan struct{} { _, _, changed := value.Get(); return []<-chan struct{}{changed} },
	}
	first, err := c.Now(t.Context(), q, 0)
	if err != nil {
		t.Fatal(err)
	}
	next := func(wait time.Duration) <-chan bool {
		out := make(chan bool, 1)
		go func() {
			_, again, _ := c.Next(t.Context(), q, first.Index, wait)
			out <- again
		}()
		agenttest.Eventually(t, func() error { // until the follower has read what the reader has
			e := c.entry("q")
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.follower != nil {
				if last, known, _ := e.follower.latest.Get(); known && last.err == nil {
					return nil
				}
			}
			return errors.New("the query is not followed")
		})
		return out
	}
	waits := next(2 * time.Second)
	value.Set(answer{err: registry.ErrUnavailable})
	if <-waits {
		t.Error("an outage made a reader read again")
	}
	value.Set(answer{body: "one"})
	waits = next(time.Minute)
	value.Set(answer{err: registry.ErrNetworkNotFound})
	if !<-waits {
		t.Error("a reader of a network that is gone got an answer")
	}
}
