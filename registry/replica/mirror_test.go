package replica

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// ending is a store that ends each watch after some time, with an error.
type ending struct {
	after          time.Duration
	err            error
	lists, watches int
}

func (s *ending) List(context.Context) (*Tree[*text], error) {
	s.lists++
	return list(1, "a"), nil
}

func (s *ending) Watch(ctx context.Context, _ uint64, _ func(uint64, ...Change[*text]) error) error {
	if s.watches++; s.watches > 1000 { // in a tight loop, no time would pass
		<-ctx.Done()
	}
	select {
	case <-time.After(s.after):
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestWatchesThatEnd: a store that ends each watch at once is not asked in a tight loop.
func TestWatchesThatEnd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		source      ending
		least, most int // watches in 10 s
	}{
		{"at once", ending{}, 10, 21},
		{"at once, and the changes are not known", ending{err: ErrOutdated}, 10, 21},
		{"after a while", ending{after: 2 * time.Second}, 5, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewMirror(&tt.source, time.Hour, time.Minute, hclog.NewNullLogger())
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				_ = m.Await(ctx, false, func(*Tree[*text]) (bool, time.Time) { return false, time.Time{} })
				m.Close()
				if n := tt.source.watches; n < tt.least || n > tt.most {
					t.Errorf("%d watches in 10 s, want %d to %d", n, tt.least, tt.most)
				}
				if n := tt.source.lists; n > tt.source.watches+1 {
					t.Errorf("%d lists", n)
				}
			})
		})
	}
}
