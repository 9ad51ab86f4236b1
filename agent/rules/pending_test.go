package rules

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestPendingNetworks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pendingNetworks
		waited := func(ctx context.Context) time.Duration {
			began := time.Now()
			p.wait(ctx)
			return time.Since(began)
		}
		if got := waited(t.Context()); got != 0 {
			t.Errorf("waited %s for no network", got)
		}
		p.add("a")
		p.add("b")
		p.resolve("x")
		p.resolve("a")
		go func() {
			time.Sleep(time.Second)
			p.resolve("b")
		}()
		if got := waited(t.Context()); got != time.Second {
			t.Errorf("waited %s for one that came after a second", got)
		}
		p.resolve("b")
		p.add("c")
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
		p.resolve("c")
	})
}
