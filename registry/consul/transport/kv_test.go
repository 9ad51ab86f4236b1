package transport

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
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
	c, err := New(Config{Address: server.URL, Timeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = c.List(expiredContext{t.Context()}, "leno/leases/default/", Read{})
	if !errors.Is(err, registry.ErrUnavailable) || errors.Is(err, context.Canceled) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
}

func TestBatches(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", maxNames)
	for _, tt := range []struct {
		keys []string
		want []int
	}{
		{nil, nil},
		{[]string{"a"}, []int{1}},
		{slices.Repeat([]string{"a"}, MaxGets), []int{MaxGets}},
		{slices.Repeat([]string{"a"}, MaxGets+1), []int{MaxGets, 1}},
		{[]string{long + long, "a", long, "b", "c"}, []int{1, 1, 1, 2}},
	} {
		var got []int
		var all []string
		for part := range Batches(tt.keys) {
			got, all = append(got, len(part)), append(all, part...)
		}
		if !slices.Equal(got, tt.want) || !slices.Equal(all, tt.keys) {
			t.Errorf("%d keys: %v, want %v", len(tt.keys), got, tt.want)
		}
	}
}
