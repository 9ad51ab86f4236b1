package agent

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// others stands in for the rules of other programs on a host.
type others struct {
	mu    sync.Mutex
	found []foreign.Obstacle
	seen  []foreign.OverlayPath
}

func (o *others) find(_ context.Context, c []foreign.OverlayPath) ([]foreign.Obstacle, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = c
	return o.found, nil
}

func obstacle(network string, i int) foreign.Obstacle {
	return foreign.Obstacle{Network: network, Where: "iptables table raw chain PREROUTING", Rule: fmt.Sprintf("-d 10.5.34.%d/32 -j DROP", i),
		Effect: "drops packets", Advice: "start dockerd otherwise"}
}

// TestRules: what the keeper of rules and the monitor of other programs' rules find out is shown in health and events.
// The monitor looks for rules in the way of the network that the agent runs.
func TestRules(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.config.Networks[0].Forward = true
		a.config.Firewall.Resync = 20 * time.Millisecond
		a.wall.report = firewall.Report{Repaired: []string{"no jump in FORWARD"}}
		a.others.found = []foreign.Obstacle{obstacle("n", 2)}
		a.start()
		a.check(health.Firewall, api.Warning, "changed by another program again and again", "no jump in FORWARD (")
		a.showsEvents("drift warning: firewall rules were changed by another program, repaired: no jump in FORWARD",
			"drift warning: firewall rules are being changed by another program again and again: no jump in FORWARD")
		a.check(health.ForeignRules, api.Warning, "start dockerd otherwise")
		a.others.mu.Lock()
		defer a.others.mu.Unlock()
		seen := a.others.seen
		if len(seen) != 1 || seen[0].Network.Name != "n" || len(seen[0].Network.Subnets) == 0 || !slices.Equal(seen[0].Links, []string{"leno-n"}) {
			t.Errorf("looked for %+v", seen)
		}
	})
}

// TestFirewallExpects: after a restart, even without its state, the first network that is ready does not remove the
// rules of the other one. If the other one never becomes ready, the first does not wait for ever.
func TestFirewallExpects(t *testing.T) {
	for _, lost := range []string{"n", "both", "both, without blocks"} {
		subtest(t, lost, func(t *testing.T) {
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
			a.remains = datapath.KernelState{Routes: 1, Refuses: true}
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
