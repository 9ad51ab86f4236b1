package agent

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/flapping"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry/memory"
)

// TestQuarrel checks that a program that undoes repairs is named in health and slows the agent down, and has no other
// effect.
func TestQuarrel(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		a.ready()
		a.recorder.setReport(backend.Report{Writes: 1, Healed: []backend.Repair{{Part: backend.Device, Fault: "device had another MTU", Detail: "1400 instead of 1450"}}})
		a.recorder.hook(func(backend.State) { a.kick() })
		a.kick()
		a.check(health.Device, api.Warning, "is being changed by another program again and again", "device had another MTU: 1400 instead of 1450 (", "healed each time")
		tries := a.recorder.tries()
		a.more("applies", len(tries)+1, func() int { return len(a.recorder.tries()) })
		tries = a.recorder.tries()
		last := tries[len(tries)-1].Sub(tries[len(tries)-2])
		if last < flapping.LongestPause || last > flapping.LongestPause+time.Second {
			t.Errorf("a pass after %s, want one after %s", last, flapping.LongestPause)
		}
		a.recorder.hook(nil)
		a.recorder.setReport(backend.Report{})
		must(t, a.stop())
	})
}

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
