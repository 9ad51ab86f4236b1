package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/query"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
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
		{query: "wait=30", says: `parameter wait: "30" is not a duration`},
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

func TestAcceptsGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "deflate, GZIP;q=0.5": true, "gzip;q=0": false, "gzip; q=0.0, br": false, "br": false, "gzip;q=x": false, "xgzip": false,
	} {
		if got := acceptsGzip(header); got != want {
			t.Errorf("%q: %t", header, got)
		}
	}
}

// TestReadsFindTheirNetworkAgain: a network that is joined or left between a request and its answer is looked up again.
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
				find := func(*http.Request) (query.Query, error) {
					found++
					moves := found <= tt.moves
					return query.Query{Name: fmt.Sprint(t.Name(), found), Changes: func() []<-chan struct{} { return nil }, Read: func() (query.Content, error) {
						if moves {
							return query.Content{}, errMoved
						}
						return query.Content{Body: "here"}, nil
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

// TestReaderOfADeletedNetwork: a reader that waits for a change of a network is told when the network is deleted.
func TestReaderOfADeletedNetwork(t *testing.T) {
	h := newHost(t, nil)
	h.define("x", "10.8.0.0/16")
	h.serve("127.0.0.1:0")
	list, err := h.client.Reservations(t.Context(), "x")
	must(t, err)
	got := make(chan error, 1)
	go func() {
		_, err := h.client.Reservations(t.Context(), "x", api.Read{Index: list.Index, Wait: time.Minute})
		got <- err
	}()
	h.readers(1)
	must(t, h.store.Client().DeleteNetwork(t.Context(), "x"))
	agenttest.WantCode(t, "a network that is gone", <-got, http.StatusNotFound, "it was deleted at")
}

// TestBlockedReadersEnd: readers, also those of the log, end with the server, which does not wait for them, and with
// their clients.
func TestBlockedReadersEnd(t *testing.T) {
	h := onSocket(t)
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

	waits, lines := block(t.Context()), agenttest.FollowLog(t, h.client, api.Monitor{})
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
	for range lines { // it is closed when the stream ends
	}
}
