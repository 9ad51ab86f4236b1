package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// others stands in for the rules of other programs on a host.
type others struct {
	mu    sync.Mutex
	found []foreign.Obstacle
	err   error
	looks int
	seen  []foreign.OverlayPath
}

func (o *others) find(_ context.Context, c []foreign.OverlayPath) ([]foreign.Obstacle, bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.looks++
	o.seen = c
	return o.found, false, o.err
}

func (o *others) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

func obstacle(network string, i int) foreign.Obstacle {
	return foreign.Obstacle{Network: network, Where: "iptables table raw chain PREROUTING", Rule: fmt.Sprintf("-d 10.5.34.%d/32 -j DROP", i),
		Effect: "drops packets", Advice: "start dockerd otherwise"}
}

// TestForeignRulesOfARunningNetwork: the agent looks for rules in the way of the network that it runs, and of no
// network that it left.
func TestForeignRulesOfARunningNetwork(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.others.found = []foreign.Obstacle{obstacle("n", 2)}
		a.start()
		a.check(health.ForeignRules, api.Warning, "start dockerd otherwise")
		a.others.set(func() {
			if len(a.others.seen) != 1 || a.others.seen[0].Network.Name != "n" || len(a.others.seen[0].Network.Subnets) == 0 || !slices.Equal(a.others.seen[0].Links, []string{"leno-n"}) {
				t.Errorf("looked for %+v", a.others.seen)
			}
		})
	})
}
