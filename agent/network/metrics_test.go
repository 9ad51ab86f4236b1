package network

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestWatchAge: the age of the watch also shows a store that was away from the start.
func TestWatchAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a")
		a.registry.Set(registry.ErrUnavailable)
		a.start()
		age := func() float64 {
			t.Helper()
			all, err := telemetry.New(telemetry.Config{}, hclog.NewNullLogger(), a.run.Measure).Now()
			must(t, err)
			i := slices.IndexFunc(all.Gauges, func(g api.MetricValue) bool { return g.Name == "leno_watch_age_seconds" })
			return all.Gauges[i].Value
		}
		time.Sleep(time.Minute)
		if got := age(); got != 60 {
			t.Errorf("%v s after a start without the store", got)
		}
		a.registry.Set(nil)
		a.ready()
		agenttest.Eventually(t, func() error {
			if got := age(); got != 0 {
				return fmt.Errorf("%v s with the store", got)
			}
			return nil
		})
	})
}
