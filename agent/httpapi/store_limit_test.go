package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

// stuckStore is a store that does not answer until it is opened. It counts who waits for it, and answers those beyond
// most at once.
type stuckStore struct {
	registry.Registry
	most    int32
	open    chan struct{}
	waiting atomic.Int32
	beyond  atomic.Int32
}

func (s *stuckStore) wait() {
	defer s.waiting.Add(-1)
	if s.waiting.Add(1) > s.most {
		s.beyond.Add(1)
		return
	}
	<-s.open
}

func (s *stuckStore) As(string) registry.Registry { return s }

func (s *stuckStore) Network(ctx context.Context, name string) (registry.Network, error) {
	s.wait()
	return s.Registry.Network(ctx, name)
}

func (s *stuckStore) RemoveReservation(context.Context, string, netip.Prefix) error {
	s.wait()
	return registry.ErrDenied
}

func (s *stuckStore) WatchReservations(ctx context.Context, n registry.Network, after uint64) (
	registry.ReservationSet, uint64, error) {
	if after == 0 {
		s.wait()
	}
	return s.Registry.WatchReservations(ctx, n, after)
}

// TestStoreRequests: however many clients make requests that read or write the store, only a few of them use it at once.
// Others are refused after a while, and slow bodies and reads that wait for a change do not count.
func TestStoreRequests(t *testing.T) {
	const most = 3
	h := newHost(t, func(l *Limits) { l.StoreRequests, l.StoreWait = most, 100*time.Millisecond })
	stuck := &stuckStore{Registry: h.registry, most: most, open: make(chan struct{})}
	h.options.Registry, h.agent.store = stuck, stuck
	h.serve("127.0.0.1:0")
	for range most { // bodies that do not come
		_, err := fmt.Fprint(h.dial(), "PUT /v1/network/m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
		must(t, err)
	}
	body := `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"type":"recorder"}}`
	requests := []struct{ method, path, body string }{
		{"POST", "/v1/network/m/plan", body},
		{"PUT", "/v1/network/m", body},
		{"PUT", "/v1/network/n/switch", `{"action":"stop"}`},
		{"GET", "/v1/network/n/reservations", ""},
		{"GET", "/v1/network/unknown/reservations", ""},
		{"DELETE", "/v1/network/n/reservation/10.5.3.0-24", ""},
	}
	codes := make(chan int)
	var clients sync.WaitGroup
	begin := func(n int) {
		for i := range n {
			clients.Go(func() {
				r := requests[i%len(requests)]
				code, answer := h.request(r.method, r.path, r.body)
				if code == http.StatusServiceUnavailable && !strings.Contains(answer, "3 requests already use the store") {
					t.Errorf("%s %s: %s", r.method, r.path, answer)
				}
				codes <- code
			})
		}
	}
	begin(most)
	agenttest.Eventually(t, func() error {
		if n := stuck.waiting.Load(); n != most {
			return fmt.Errorf("%d requests use the store, want %d", n, most)
		}
		return nil
	})
	begin(5 * len(requests))
	for range 5 * len(requests) {
		if code := <-codes; code != http.StatusServiceUnavailable {
			t.Errorf("a request beyond the limit: %d", code)
		}
	}
	if n := stuck.beyond.Load(); n > 0 {
		t.Errorf("%d requests used the store beside the %d that may", n, most)
	}
	if code, _ := h.request("GET", "/v1/network/n", ""); code != http.StatusOK {
		t.Errorf("a read of the agent's memory: %d", code)
	}
	close(stuck.open)
	for range most {
		if code := <-codes; code == http.StatusServiceUnavailable {
			t.Errorf("a request that has its turn: %d", code)
		}
	}
	clients.Wait()
	index := h.index("/v1/network/n/reservations")
	for range 2 * most { // reads that wait for a change
		_, err := fmt.Fprintf(h.dial(), "GET /v1/network/n/reservations?index=%s HTTP/1.1\r\nHost: localhost\r\n\r\n", index)
		must(t, err)
	}
	h.readers(2 * most)
	if code, answer := h.request("POST", "/v1/network/m/plan", body); code != http.StatusOK {
		t.Errorf("beside reads that wait: %d %s", code, answer)
	}
}

// index returns the index of a list.
func (h *host) index(path string) string {
	h.t.Helper()
	r, _ := h.answers("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	return r.Header.Get("X-Leno-Index")
}
