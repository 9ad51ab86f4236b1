package agent

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/lenonet/leno/registry/memory"
)

// TestWatchIsTakenUpAgain checks that a watch that failed starts again, and that the agent looks for changes made
// before that.
func TestWatchIsTakenUpAgain(t *testing.T) {
	simulated(t, func(t *testing.T) {
		h := newHost(t, memory.New(), "a")
		a := h.build()
		opened, failing := 0, errors.New("no buffer space available")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		a.o.WatchKernel = func(ctx context.Context, _ func(string) bool, _ func(netip.Prefix) bool, changed func()) error {
			opened++
			changed() // as the real watch does
			if opened < 3 {
				return failing
			}
			cancel()
			return nil
		}
		_, _, first := a.env.Datapaths.Kernel.Get()
		if err := a.watchKernel(ctx); !errors.Is(err, context.Canceled) || opened != 3 {
			t.Errorf("%v after %d watches", err, opened)
		}
		select {
		case <-first:
		default:
			t.Error("no watcher was woken")
		}
	})
}
