package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// foreignNetwork is a network the hosts of a test take no part in.
func foreignNetwork(t *testing.T, store *memory.Store) registry.Network {
	t.Helper()
	n := registry.Network{Name: "x", Plan: registry.Plan{{Prefix: netip.MustParsePrefix("10.8.0.0/16")}}, Backend: mustBackend(t, "recorder", "{}")}
	var err error
	if n.Plan, err = n.Plan.Normalize(); err == nil {
		err = store.Client().PutNetwork(t.Context(), n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// reading is one list and what changes it.
type reading struct {
	name   string
	read   func(ctx context.Context, c *api.Client, since api.Read) (body any, index uint64, err error)
	change func(t *testing.T)
}

// readings are all lists of agent a, in an order in which none's change is
// another's.
func readings(a, b *host, x registry.Network) []reading {
	ctx := context.Background()
	store := a.store.Client()
	networks := func(ctx context.Context, c *api.Client, since api.Read) (any, uint64, error) {
		l, err := c.Networks(ctx, since)
		return l, l.Index, err
	}
	leases := func(name string) func(ctx context.Context, c *api.Client, since api.Read) (any, uint64, error) {
		return func(ctx context.Context, c *api.Client, since api.Read) (any, uint64, error) {
			l, err := c.Leases(ctx, name, since)
			return l, l.Index, err
		}
	}
	reservations := func(ctx context.Context, c *api.Client, since api.Read) (any, uint64, error) {
		l, err := c.Reservations(ctx, "x", since)
		return l, l.Index, err
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	claim := registry.Claim{Node: "z", NodeID: "id-z", PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}, MTU: 1400,
		TTL: time.Minute, Hold: time.Hour}
	acquire := func(t *testing.T, n registry.Network) {
		t.Helper()
		c := claim
		c.Backend = n.Backend
		_, err := store.Acquire(ctx, n, c)
		must(t, err)
	}
	return []reading{
		{"reservations", reservations, func(t *testing.T) {
			must(t, store.AddReservation(ctx, x, registry.Reservation{Subnet: netip.MustParsePrefix("10.8.9.0/24"), Node: "z"}, false))
		}},
		{"leases elsewhere", leases("x"), func(t *testing.T) { acquire(t, x) }},
		{"leases", leases("n"), func(t *testing.T) {
			n, err := store.Network(ctx, "n")
			must(t, err)
			acquire(t, n)
		}},
		{"peers", func(ctx context.Context, c *api.Client, since api.Read) (any, uint64, error) {
			l, err := c.Peers(ctx, "n", since)
			return l, l.Index, err
		}, func(t *testing.T) { must(t, store.Revoke(ctx, "n", free(a, b))) }}, // the one of z
		{"network", func(ctx context.Context, c *api.Client, since api.Read) (any, uint64, error) {
			n, err := c.Network(ctx, "n", since)
			return n, n.Index, err
		}, func(t *testing.T) { a.follows("192.0.2.77") }},
		{"networks", networks, func(t *testing.T) { must(t, store.DeleteNetwork(ctx, "x")) }},
	}
}

// TestBlockingReads: each list is answered when it changes, under another index,
// and not before.
func TestBlockingReads(t *testing.T) {
	t.Parallel()
	store := memory.New()
	x := foreignNetwork(t, store)
	a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
	a.applies(a.subnet().String() + " <- b@" + b.subnet().String())
	a.ready()
	for _, tt := range readings(a, b, x) {
		t.Run(tt.name, func(t *testing.T) {
			ctx := t.Context()
			var before any
			var index uint64
			// What a start leaves to settle may still move it.
			eventually(t, func() (err error) {
				if before, index, err = tt.read(ctx, a.client, api.Read{}); err != nil {
					return err
				}
				_, again, err := tt.read(ctx, a.client, api.Read{Index: index, Wait: 150 * time.Millisecond})
				if err == nil && again != index {
					err = fmt.Errorf("index %d became %d and nothing changed", index, again)
				}
				return err
			})
			if _, other, err := tt.read(ctx, a.client, api.Read{Index: index + 1, Wait: time.Minute}); err != nil || other != index {
				t.Errorf("another index than the current one: %d, %v", other, err)
			}
			got := make(chan error, 1)
			go func() {
				after, next, err := tt.read(ctx, a.client, api.Read{Index: index, Wait: time.Minute})
				if err == nil && next == index {
					err = fmt.Errorf("answered under the same index %d", index)
				}
				if err == nil && fmt.Sprint(after) == fmt.Sprint(before) {
					err = fmt.Errorf("index %d became %d, and the answer is the same: %v", index, next, after)
				}
				got <- err
			}()
			select {
			case err := <-got:
				t.Fatalf("answered before a change: %v", err)
			case <-time.After(50 * time.Millisecond):
			}
			tt.change(t)
			select {
			case err := <-got:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(2 * time.Minute):
				t.Error("a change does not answer the reader")
			}
		})
	}
}

// TestBlockedReaderOfWhatGoes: who waits for a network that is deleted is told.
func TestBlockedReaderOfWhatGoes(t *testing.T) {
	store := memory.New()
	foreignNetwork(t, store)
	a := newHost(t, store, "a").start()
	a.ready()
	list, err := a.client.Reservations(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := a.client.Reservations(t.Context(), "x", api.Read{Index: list.Index, Wait: time.Minute})
		got <- err
	}()
	a.readers(1)
	if err := store.Client().DeleteNetwork(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "a network that is gone", <-got, http.StatusNotFound, "it was deleted at")
}

// readers waits until so many reads wait for news.
func (h *host) readers(want int) {
	h.t.Helper()
	eventually(h.t, func() error {
		b := h.agent.board
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.waiting != want {
			return fmt.Errorf("%d readers wait, want %d", b.waiting, want)
		}
		return nil
	})
}

// TestBlockedReadersEnd: they end with the agent, which does not wait for them,
// and with their clients.
func TestBlockedReadersEnd(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	a.agent.board.linger = time.Millisecond
	list, err := a.client.Leases(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	block := func(ctx context.Context) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := a.client.Leases(ctx, "n", api.Read{Index: list.Index, Wait: time.Minute})
			done <- err
		}()
		return done
	}
	ctx, leave := context.WithCancel(t.Context())
	gone := block(ctx)
	a.readers(1)
	leave()
	<-gone
	a.readers(0)
	eventually(t, func() error {
		b := a.agent.board
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.views["leases of n"].end != nil {
			return fmt.Errorf("leases are followed though nobody reads")
		}
		return nil
	})

	waits := block(t.Context())
	a.readers(1)
	begun := time.Now()
	if err := a.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > shutdownTimeout/2 {
		t.Errorf("stopping took %s", took)
	}
	if err := <-waits; err != nil {
		t.Errorf("a reader at the end of the agent: %v", err)
	}
}

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
			q, err := awaitedBy(r)
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

// TestBoard goes by answers that a test makes.
func TestBoard(t *testing.T) {
	b := newBoard(nil, 1)
	defer b.close()
	value, moved := watch.New[reply](), []uint64{}
	s := shown{name: "s",
		memory:  func() (reply, error) { v, _, _ := value.Get(); return v, nil },
		changes: func() []<-chan struct{} { _, _, c := value.Get(); return []<-chan struct{}{c} }}
	for _, r := range []reply{
		{body: "one"}, {body: "one"}, {body: "two"}, {body: "three", quiet: "two"}, {body: "one"},
	} {
		value.Set(r)
		out, err := b.now(t.Context(), s)
		var text string
		if err != nil || json.Unmarshal(out.data, &text) != nil || text != r.body {
			t.Fatalf("%s, %v", out.data, err)
		}
		moved = append(moved, out.index)
	}
	if moved[0] == 0 || moved[0] != moved[1] || moved[2] != moved[3] || !slices.IsSorted(moved) || moved[4] == moved[3] || moved[2] == moved[1] {
		t.Errorf("indexes %v", moved)
	}
	value.Set(reply{body: "events", index: 12})
	if out, again, err := b.next(t.Context(), s, awaited{index: 11, wait: time.Minute}); err != nil || again || out.index != 12 {
		t.Errorf("an answer that has an index of its own: %+v, %v", out, err)
	}
	b.readers = 0
	_, _, err := b.next(t.Context(), s, awaited{index: 12, wait: time.Minute})
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
	h := newHost(t, memory.New(), "a").start()
	for _, tt := range []struct {
		name  string
		moves int // how often the network is elsewhere when the answer is read
		code  int
	}{
		{"stays", 0, http.StatusOK}, {"moves", 1, http.StatusOK}, {"does not come to rest", 100, http.StatusServiceUnavailable},
	} {
		for _, query := range []string{"", "?index=7&wait=1m"} {
			t.Run(tt.name+query, func(t *testing.T) {
				found := 0
				find := func(*http.Request) (shown, error) {
					found++
					moves := found <= tt.moves
					return shown{name: fmt.Sprint(t.Name(), found), changes: func() []<-chan struct{} { return nil }, memory: func() (reply, error) {
						if moves {
							return reply{}, errElsewhere
						}
						return reply{body: "here"}, nil
					}}, nil
				}
				w := httptest.NewRecorder()
				h.agent.block(find)(w, httptest.NewRequest(http.MethodGet, "/"+query, nil))
				if w.Code != tt.code {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
	}
}
