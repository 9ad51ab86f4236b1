package consul

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/transport"
)

// expiredContext is a context whose deadline has passed, but which has not told so yet: as after the process was stopped
// for a while.
type expiredContext struct{ context.Context }

func (expiredContext) Err() error { return context.DeadlineExceeded }

// TestListBothLimitsOver checks that a list that is given up when the caller's deadline has passed as well says that the
// store is unavailable. Otherwise the caller would take it for an answer.
func TestListBothLimitsOver(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	c, err := New(Config{Config: transport.Config{Address: server.URL, Timeout: 20 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = c.kv.list(expiredContext{t.Context()}, "leno/leases/default/", read{})
	if !errors.Is(err, registry.ErrUnavailable) || errors.Is(err, context.Canceled) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
}
