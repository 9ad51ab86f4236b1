package agent

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry/memory"
)

// TestHealthBeforeTheDatapath: a host that holds its lease is not healthy before its first containers can be started.
func TestHealthBeforeTheDatapath(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		seen := make(chan api.Health, 1)
		a.recorder.hook(func(backend.State) {
			now, _ := a.agent.env.Reports.Health.Report()
			select {
			case seen <- now:
			default: // not the first pass
			}
		})
		a.start()
		h := <-seen
		if i := slices.IndexFunc(h.Networks, func(n api.NetworkHealth) bool { return n.Network == "n" }); h.Status != api.Critical || i < 0 || h.Networks[i].Ready {
			t.Errorf("health at the first pass over the datapath: %+v", h)
		}
		a.ready()
		eventually(t, func() error {
			if code, h := a.health(); code != http.StatusOK {
				return fmt.Errorf("%+v", h)
			}
			return nil
		})
	})
}
