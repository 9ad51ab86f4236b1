package agent

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry/memory"
)

// TestFirewallExpects: after a restart without its state, too, the first network
// that is ready does not take the other's rules away, but where the other does
// not come it does not wait for ever.
func TestFirewallExpects(t *testing.T) {
	for _, lost := range []string{"n", "both", "both, without blocks"} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			a := newHost(t, memory.New(), "a")
			a.config.Networks = append(a.config.Networks, a.second())
			a.start().ready()
			must(t, a.stop())
			began := len(a.wall.names())
			must(t, os.Remove(state.Path(a.config.DataDir, "n")))
			if lost != "n" {
				must(t, os.RemoveAll(a.config.DataDir))
			}
			if lost == "both, without blocks" {
				a.config.Networks, a.config.WatchNetworks, a.config.AllowedNetworks = nil, true, []string{"*"}
			}
			a.remains = KernelState{Routes: 1, Refuses: true}
			a.start()
			a.more("writes of the firewall", began, func() int { return len(a.wall.names()) })
			a.ready()
			for _, names := range a.wall.names()[began:] {
				if names != "m n" {
					t.Errorf("firewall of %q alone", names)
				}
			}
		})
	}
}

func TestExpectation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e expectation
		waited := func(ctx context.Context) time.Duration {
			began := time.Now()
			e.wait(ctx)
			return time.Since(began)
		}
		if got := waited(t.Context()); got != 0 {
			t.Errorf("waited %s for nobody", got)
		}
		e.expect("a")
		e.expect("b")
		e.meet("x")
		e.meet("a")
		go func() {
			time.Sleep(time.Second)
			e.meet("b")
		}()
		if got := waited(t.Context()); got != time.Second {
			t.Errorf("waited %s for one that came after a second", got)
		}
		e.meet("b")
		e.expect("c")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if got := waited(ended); got != 0 {
			t.Errorf("waited %s when all ends", got)
		}
		if got := waited(t.Context()); got != expectTime {
			t.Errorf("waited %s for one that does not come", got)
		}
		if got := waited(t.Context()); got != 0 {
			t.Errorf("waited %s again", got)
		}
		e.meet("c")
	})
}
