package agent

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

const (
	// foreignSpan is the shortest time between two looks at the rules of others: on
	// a host that starts containers all the time it bounds what they cost.
	foreignSpan = 2 * time.Second
	// foreignShare is how much longer than a look it is left alone at least: beside
	// ten thousand rules one takes a second of CPU.
	foreignShare = 10
	// foreignTick is the longest time between two looks, foreignSilentTick while
	// rules stand of whose changes nobody tells.
	foreignTick       = time.Minute
	foreignSilentTick = 5 * time.Second
	// foreignMost is how many rules one check names.
	foreignMost = 5
)

// findObstacles is Options.Obstacles.
type findObstacles = func(ctx context.Context, paths []foreign.OverlayPath) (found []foreign.Obstacle, silent bool, err error)

// foreignRules looks for rules of other programs that are in the way of the
// networks' packets, and writes the check of each network. Safe for concurrent
// use.
type foreignRules struct {
	log     hclog.Logger
	health  *health.Board
	find    findObstacles
	stirred chan struct{}
	span    time.Duration // between looks

	before []foreign.Obstacle // at the last look; of the goroutine that runs

	mu        sync.Mutex
	crossings map[string]foreign.OverlayPath
	named     map[string]bool // networks of which rules were told
}

func newForeignRules(log hclog.Logger, find findObstacles, h *health.Board) *foreignRules {
	return &foreignRules{log: log, health: h, find: find, span: foreignSpan,
		stirred: make(chan struct{}, 1), named: map[string]bool{}, crossings: map[string]foreign.OverlayPath{}}
}

// crossing is how a network's packets pass this host.
func crossing(n registry.Network, wants firewall.Network, s backend.State) foreign.OverlayPath {
	return foreign.OverlayPath{Network: wants, Links: backend.Arrivals(n.Name, n.Backend.Type, n.Backend.Object, s.Underlay.Interface)}
}

// put has one network looked after. A change is looked at soon.
func (f *foreignRules) put(c foreign.OverlayPath) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !reflect.DeepEqual(f.crossings[c.Network.Name], c) {
		f.crossings[c.Network.Name] = c
		f.stir()
	}
}

// drop forgets a network.
func (f *foreignRules) drop(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.crossings, name)
	delete(f.named, name)
}

// stir asks for a look: somebody may have changed rules.
func (f *foreignRules) stir() { poke(f.stirred) }

// run looks after each change and when it is time, until ctx ends.
func (f *foreignRules) run(ctx context.Context) error {
	tick := foreignTick
	for {
		timer := time.NewTimer(tick)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-f.stirred:
			_ = retry.Sleep(ctx, min(settle, f.span)) // a burst ends
		}
		timer.Stop()
		began := time.Now()
		tick = f.look(ctx)
		if err := retry.Sleep(ctx, f.rest(time.Since(began))); err != nil {
			return err
		}
	}
}

// rest is how long to leave the rules alone after a look that took so long.
func (f *foreignRules) rest(took time.Duration) time.Duration {
	return min(max(f.span, foreignShare*took), foreignTick)
}

// look writes the checks, and says when to look again. What it sees for the first
// time it looks at once more before it tells: another program that puts its rules
// before leno's, as Docker does when it starts, is outrun in that time.
func (f *foreignRules) look(ctx context.Context) (again time.Duration) {
	f.mu.Lock()
	crossings := make([]foreign.OverlayPath, 0, len(f.crossings))
	for _, name := range slices.Sorted(maps.Keys(f.crossings)) {
		crossings = append(crossings, f.crossings[name])
	}
	f.mu.Unlock()
	if len(crossings) == 0 || ctx.Err() != nil {
		return foreignTick
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found, silent, err := f.find(call, crossings)
	if ctx.Err() != nil {
		return foreignTick
	}
	// Hosts where nothing is wrong have rules against some packets, as their
	// administrators want it: those are for doctor to show to a person who asks.
	found = slices.DeleteFunc(slices.Clone(found), func(o foreign.Obstacle) bool { return o.Partial })
	if err != nil {
		// Whatever it is, it is in the way of leno's own rules too, and told there.
		f.log.Debug("not all rules of others could be read", "error", err)
	}
	again = foreignTick
	if silent {
		again = foreignSilentTick
	}
	fresh := slices.DeleteFunc(slices.Clone(found), f.seen)
	f.before = found
	if len(fresh) > 0 {
		found, again = slices.DeleteFunc(slices.Clone(found), func(o foreign.Obstacle) bool { return slices.Contains(fresh, o) }), 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range crossings {
		if _, ok := f.crossings[c.Network.Name]; ok { // it has not been left meanwhile
			f.tell(c.Network.Name, found)
		}
	}
	return again
}

// seen says whether the rule was there at the last look, too.
func (f *foreignRules) seen(o foreign.Obstacle) bool {
	return slices.ContainsFunc(f.before, func(b foreign.Obstacle) bool {
		return b.Network == o.Network && b.Where == o.Where && b.Rule == o.Rule
	})
}

// tell writes one network's check; mu is held.
func (f *foreignRules) tell(network string, found []foreign.Obstacle) {
	var reasons []string
	for _, o := range found {
		if o.Network == network {
			reasons = append(reasons, o.String())
		}
	}
	if len(reasons) == 0 {
		f.health.Set(network, health.ForeignRules, api.Passing, "no rule of others is known that drops all packets, or hides containers")
		if f.named[network] {
			f.log.Info("rules of other programs are in the way of containers no more", "network", network)
		}
		delete(f.named, network)
		return
	}
	f.named[network] = true
	more := ""
	if n := len(reasons) - foreignMost; n > 0 {
		reasons, more = reasons[:foreignMost], " …"
	}
	if f.health.Set(network, health.ForeignRules, api.Warning, strings.Join(reasons, "; ")+more) {
		f.log.Warn("rules of other programs are in the way of containers", "network", network, "rules", strings.Join(reasons, "; ")+more)
	}
}
