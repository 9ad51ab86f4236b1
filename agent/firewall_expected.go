package agent

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/backend"
)

// expectTime is how long the first network that is ready after a start waits for
// others. They need the store as it did, so they are not far behind.
const expectTime = 5 * time.Second

// expectation is the networks whose rules stand in the firewall while nothing
// tells what they are, because the state directory was lost: to write the rules
// of the others alone would drop their packets. Safe for concurrent use.
type expectation struct {
	mu    sync.Mutex
	names map[string]bool
	none  chan struct{} // closed when no network is left, nil when none ever was
}

// expect adds a network.
func (e *expectation) expect(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.names) == 0 {
		e.names, e.none = map[string]bool{}, make(chan struct{})
	}
	e.names[name] = true
}

// meet says that a network has told what it wants, or that it wants nothing.
func (e *expectation) meet(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.names[name] {
		return
	}
	if delete(e.names, name); len(e.names) == 0 {
		close(e.none)
	}
}

// left says whether a network has not told yet.
func (e *expectation) left() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.names) > 0
}

// wait blocks until all have, once for expectTime at most: then those that are
// left are given up.
func (e *expectation) wait(ctx context.Context) {
	e.mu.Lock()
	none, left := e.none, len(e.names)
	e.mu.Unlock()
	if left == 0 {
		return
	}
	timer := time.NewTimer(expectTime)
	defer timer.Stop()
	select {
	case <-none:
	case <-ctx.Done():
	case <-timer.C:
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.names) > 0 {
			clear(e.names)
			close(e.none)
		}
	}
}

// watchedNetworks stands in an expectation for those that watch_networks joins,
// before the store has told which there are. No network has this name.
const watchedNetworks = ""

// expectRules expects the networks that stand in the kernel without a state file
// that tells of their rules: those of this configuration, and, where the whole
// state directory was lost, those that join is to find in the store.
func (a *Agent) expectRules(ctx context.Context) {
	c := a.current()
	for _, local := range c.Networks {
		a.expectRulesOf(ctx, local.Name, poolsOf(local))
	}
	if c.WatchNetworks && a.env.id.NodeID == "" {
		a.env.firewall.expected.expect(watchedNetworks)
	}
}

func (a *Agent) expectRulesOf(ctx context.Context, name string, pools []netip.Prefix) {
	if before, err := state.Load(a.current().DataDir, name); err == nil && len(before.Subnets) > 0 {
		return
	}
	if found, err := a.env.readKernelState(ctx, backend.LinkName(name), pools); err == nil && !found.isEmpty() {
		a.env.firewall.expected.expect(name)
	}
}
