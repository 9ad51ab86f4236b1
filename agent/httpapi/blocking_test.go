package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

func TestWaitParameters(t *testing.T) {
	for _, tt := range []struct {
		query       string
		index       uint64
		least, most time.Duration
		says        string // of the error
	}{
		{query: "", least: 5 * time.Minute, most: 320 * time.Second},
		{query: "index=7&wait=16s", index: 7, least: 16 * time.Second, most: 17 * time.Second},
		{query: "index=18446744073709551615&wait=1600ms", index: 1<<64 - 1, least: 1600 * time.Millisecond, most: 1700 * time.Millisecond},
		{query: "wait=0s", least: 5 * time.Minute, most: 320 * time.Second},
		{query: "wait=24h", least: 10 * time.Minute, most: 640 * time.Second},
		{query: "index=-1", says: `parameter index: "-1"`},
		{query: "index=1.5", says: "parameter index"},
		{query: "index=18446744073709551616", says: "parameter index"},
		{query: "wait=30", says: `parameter wait: "30" is no duration`},
		{query: "wait=-5s", says: "parameter wait"},
		{query: "wait=" + strings.Repeat("9", 5000), says: "…"},
	} {
		t.Run(registry.Shorten(tt.query, 30), func(t *testing.T) {
			r, err := http.NewRequest(http.MethodGet, "/v1/networks?"+tt.query, nil)
			if err != nil {
				t.Fatal(err)
			}
			q, err := blockingOptionsOf(r)
			if tt.says != "" {
				if err == nil || !strings.Contains(err.Error(), tt.says) || len(err.Error()) > 200 {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil || q.index != tt.index || q.wait < tt.least || q.wait > tt.most {
				t.Errorf("%+v, %v", q, err)
			}
		})
	}
}

// TestQueryCache goes by content that a test makes.
func TestQueryCache(t *testing.T) {
	b := newQueryCache(nil, Limits{Readers: 1})
	defer b.close()
	value, moved := watch.New[content](), []uint64{}
	s := query{name: "s",
		read:    func() (content, error) { v, _, _ := value.Get(); return v, nil },
		changes: func() []<-chan struct{} { _, _, c := value.Get(); return []<-chan struct{}{c} }}
	for _, r := range []content{
		{body: "one"}, {body: "one"}, {body: "two"}, {body: "three", basis: "two"}, {body: "one"},
	} {
		value.Set(r)
		out, err := b.now(t.Context(), s)
		var text string
		if err != nil || json.Unmarshal(out.shared.plain, &text) != nil || text != r.body {
			t.Fatalf("%s, %v", out.shared.plain, err)
		}
		moved = append(moved, out.index)
	}
	if moved[0] == 0 || moved[0] != moved[1] || moved[2] != moved[3] || !slices.IsSorted(moved) || moved[4] == moved[3] || moved[2] == moved[1] {
		t.Errorf("indexes %v", moved)
	}
	value.Set(content{body: "events", index: 12})
	if out, again, err := b.next(t.Context(), s, blockingOptions{index: 11, wait: time.Minute}); err != nil || again || out.index != 12 {
		t.Errorf("an answer that has an index of its own: %+v, %v", out, err)
	}
	b.maxReaders = 0
	_, _, err := b.next(t.Context(), s, blockingOptions{index: 12, wait: time.Minute})
	wantCode(t, "one reader too many", err, http.StatusTooManyRequests)
}

func TestAcceptsGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "deflate, GZIP;q=0.5": true, "gzip;q=0": false, "gzip; q=0.0, br": false, "br": false, "gzip;q=x": false, "xgzip": false,
	} {
		if got := acceptsGzip(header); got != want {
			t.Errorf("%q: %t", header, got)
		}
	}
}

// TestReadsFindTheirNetworkAgain: a network that is joined or left between a
// request and its answer is looked for once more.
func TestReadsFindTheirNetworkAgain(t *testing.T) {
	h := newHost(t, nil)
	h.prepare()
	reads := blockingReads{h.server.respond, h.server.cache, time.Second}
	for _, tt := range []struct {
		name  string
		moves int // how often the network is elsewhere when the answer is read
		code  int
	}{
		{"stays", 0, http.StatusOK}, {"moves", 1, http.StatusOK}, {"does not come to rest", 100, http.StatusServiceUnavailable},
	} {
		for _, parameters := range []string{"", "?index=7&wait=1m"} {
			t.Run(tt.name+parameters, func(t *testing.T) {
				found := 0
				find := func(*http.Request) (query, error) {
					found++
					moves := found <= tt.moves
					return query{name: fmt.Sprint(t.Name(), found), changes: func() []<-chan struct{} { return nil }, read: func() (content, error) {
						if moves {
							return content{}, errMoved
						}
						return content{body: "here"}, nil
					}}, nil
				}
				w := httptest.NewRecorder()
				reads.handle(find)(w, httptest.NewRequest(http.MethodGet, "/"+parameters, nil))
				if w.Code != tt.code {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
	}
}

// TestBlockedReadersEnd: they end with the server, which does not wait for them, and with their clients.
func TestBlockedReadersEnd(t *testing.T) {
	h := onSocket(t)
	h.server.cache.linger = time.Millisecond
	list, err := h.client.Leases(t.Context(), "n")
	must(t, err)
	block := func(ctx context.Context) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := h.client.Leases(ctx, "n", api.Read{Index: list.Index, Wait: time.Minute})
			done <- err
		}()
		return done
	}
	ctx, leave := context.WithCancel(t.Context())
	gone := block(ctx)
	h.readers(1)
	leave()
	<-gone
	h.readers(0)
	h.unfollowed()

	waits := block(t.Context())
	h.readers(1)
	begun := time.Now()
	if err := h.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > ShutdownTimeout/2 {
		t.Errorf("stopping took %s", took)
	}
	if err := <-waits; err != nil {
		t.Errorf("a reader at the end of the server: %v", err)
	}
}

// TestFollowersFollowAgain: a query that was followed and is no longer is followed again for a new reader, from the
// same index on.
func TestFollowersFollowAgain(t *testing.T) {
	c := newQueryCache(nil, Limits{Readers: 10})
	c.linger = time.Millisecond
	defer c.close()
	value := watch.New[string]()
	q := query{
		name:    "q",
		read:    func() (content, error) { v, _, _ := value.Get(); return content{body: v}, nil },
		changes: func() []<-chan struct{} { _, _, changed := value.Get(); return []<-chan struct{}{changed} },
	}
	first, err := c.now(t.Context(), q)
	must(t, err)
	index := first.index
	for i := range 3 {
		got := make(chan reply, 1)
		go func() {
			out, _, _ := c.next(t.Context(), q, blockingOptions{index: index, wait: time.Minute})
			got <- out
		}()
		eventually(t, func() error {
			if n := c.readers(); n != 1 {
				return fmt.Errorf("%d readers", n)
			}
			return nil
		})
		value.Set(fmt.Sprint("value ", i))
		if out := <-got; out.index <= index || !strings.Contains(string(out.shared.plain), fmt.Sprint("value ", i)) {
			t.Errorf("%d. change: %d %s", i, out.index, out.shared.plain)
		} else {
			index = out.index
		}
		eventually(t, func() error {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.entries["q"].follower != nil {
				return errors.New("it is still followed")
			}
			return nil
		})
	}
}

// TestQueryErrors: readers that wait read for themselves when the content cannot be read, but not when only nothing
// newer is known.
func TestQueryErrors(t *testing.T) {
	c := newQueryCache(nil, Limits{Readers: 10})
	defer c.close()
	type answer struct {
		body string
		err  error
	}
	value := watch.New[answer]()
	value.Set(answer{body: "one"})
	q := query{
		name:    "q",
		read:    func() (content, error) { v, _, _ := value.Get(); return content{body: v.body}, v.err },
		changes: func() []<-chan struct{} { _, _, changed := value.Get(); return []<-chan struct{}{changed} },
	}
	first, err := c.now(t.Context(), q)
	must(t, err)
	next := func(wait time.Duration) <-chan bool {
		out := make(chan bool, 1)
		go func() {
			_, again, _ := c.next(t.Context(), q, blockingOptions{index: first.index, wait: wait})
			out <- again
		}()
		eventually(t, func() error { // until the follower has read what the reader has
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
