package rules

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/api"
)

const (
	// foreignPause is the shortest time between two looks at the rules of others: on a host that starts containers all
	// the time, it limits what they cost.
	foreignPause = 2 * time.Second
	// foreignShare is how many times longer than a look the pause after it is at least: with ten thousand rules, one
	// look takes a second of CPU time.
	foreignShare = 10
	// foreignInterval is how long to wait for a change before the next look: the kernel does not announce those in
	// iptables-legacy. A look without a change starts no program.
	foreignInterval = 5 * time.Second
	// foreignMaxPause is the longest pause after a look, and after one that could not read all rules.
	foreignMaxPause = time.Minute
	// foreignTimeout limits how long one look takes.
	foreignTimeout = 15 * time.Second
	// foreignLimit is the largest number of rules that one check names.
	foreignLimit = 5
)

// Finder finds the rules of other programs that are in the way of networks, as foreign.Reader.Obstacles does.
type Finder func(ctx context.Context, paths []foreign.OverlayPath) ([]foreign.Obstacle, error)

// ForeignMonitor looks for rules of other programs that are in the way of the networks' packets, and writes a check for
// each network. It is safe for concurrent use.
type ForeignMonitor struct {
	log      hclog.Logger
	health   *health.Board
	find     Finder
	changed  chan struct{} // receives one value for any number of changes
	networks monitored
}

// monitored are the networks of a ForeignMonitor.
type monitored struct {
	mu     sync.Mutex
	paths  map[string]foreign.OverlayPath
	warned map[string]bool // networks whose last check was a warning
}

// NewForeignMonitor returns a ForeignMonitor without networks.
func NewForeignMonitor(log hclog.Logger, find Finder, board *health.Board) *ForeignMonitor {
	return &ForeignMonitor{
		log:      log,
		health:   board,
		find:     find,
		changed:  make(chan struct{}, 1),
		networks: monitored{paths: map[string]foreign.OverlayPath{}, warned: map[string]bool{}},
	}
}

// Put adds or replaces a network. If its path changed, a look follows soon.
func (m *ForeignMonitor) Put(p foreign.OverlayPath) {
	m.networks.mu.Lock()
	defer m.networks.mu.Unlock()
	if !reflect.DeepEqual(m.networks.paths[p.Network.Name], p) {
		m.networks.paths[p.Network.Name] = p
		m.Changed()
	}
}

// Drop removes a network. Its check stays as it is.
func (m *ForeignMonitor) Drop(name string) {
	m.networks.mu.Lock()
	defer m.networks.mu.Unlock()
	delete(m.networks.paths, name)
	delete(m.networks.warned, name)
}

// Changed asks for a look, because rules may have changed.
func (m *ForeignMonitor) Changed() { poke(m.changed) }

// Run looks after each change and when it is time, until ctx ends.
func (m *ForeignMonitor) Run(ctx context.Context) error {
	var previous []foreign.Obstacle
	interval := foreignInterval
	for {
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		case <-m.changed:
			_ = retry.Sleep(ctx, settle) // the end of ctx is noticed below
		}
		began := time.Now()
		previous, interval = m.look(ctx, previous)
		if err := retry.Sleep(ctx, pauseAfter(time.Since(began))); err != nil {
			return err
		}
	}
}

// pauseAfter returns the pause after a look that took so long.
func pauseAfter(look time.Duration) time.Duration {
	return min(max(foreignPause, foreignShare*look), foreignMaxPause)
}

// look writes the checks, and returns what it found and how long to wait for a change before the next look. An obstacle
// that is not among the previous ones is reported only if the next look finds it too: by then, leno has its rules back
// in front of those of a program that puts its own first, as Docker does when it starts.
func (m *ForeignMonitor) look(ctx context.Context, previous []foreign.Obstacle) (
	found []foreign.Obstacle, next time.Duration,
) {
	paths := m.networks.list()
	if len(paths) == 0 || ctx.Err() != nil {
		return previous, foreignInterval
	}
	call, cancel := context.WithTimeout(ctx, foreignTimeout)
	defer cancel()
	all, err := m.find(call, paths)
	if ctx.Err() != nil {
		return previous, foreignInterval
	}
	next = foreignInterval
	if err != nil {
		// It is in the way of leno's own rules too, and their check reports it. The next look reads all rules again.
		m.log.Debug("not all rules of others could be read", "error", err)
		next = foreignMaxPause
	}
	var confirmed []foreign.Obstacle
	for _, o := range all {
		// Healthy hosts have rules against some packets, as their administrators intend: doctor shows those.
		if o.Partial {
			continue
		}
		found = append(found, o)
		if isAmong(o, previous) {
			confirmed = append(confirmed, o)
		} else {
			next = 0
		}
	}
	m.networks.mu.Lock()
	defer m.networks.mu.Unlock()
	for _, p := range paths {
		if _, here := m.networks.paths[p.Network.Name]; here { // it was not dropped during the look
			m.writeCheck(p.Network.Name, confirmed)
		}
	}
	return found, next
}

// isAmong reports whether the list has the same rule for the same network.
func isAmong(o foreign.Obstacle, list []foreign.Obstacle) bool {
	return slices.ContainsFunc(list, func(other foreign.Obstacle) bool {
		return other.Network == o.Network && other.Where == o.Where && other.Rule == o.Rule
	})
}

// writeCheck writes one network's check. The caller holds the lock of the networks.
func (m *ForeignMonitor) writeCheck(network string, found []foreign.Obstacle) {
	var reasons []string
	for _, o := range found {
		if o.Network == network {
			reasons = append(reasons, o.String())
		}
	}
	if len(reasons) == 0 {
		m.health.Set(network, health.ForeignRules, api.Passing,
			"no rule of another program was found that drops all packets of the overlay or hides containers")
		if m.networks.warned[network] {
			m.log.Info("rules of other programs no longer block containers", "network", network)
		}
		delete(m.networks.warned, network)
		return
	}
	m.networks.warned[network] = true
	more := ""
	if len(reasons) > foreignLimit {
		reasons, more = reasons[:foreignLimit], " …"
	}
	reason := strings.Join(reasons, "; ") + more
	if m.health.Set(network, health.ForeignRules, api.Warning, reason) {
		m.log.Warn("rules of other programs block containers", "network", network, "rules", reason)
	}
}

// list returns the paths, sorted by network.
func (n *monitored) list() []foreign.OverlayPath {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []foreign.OverlayPath
	for _, name := range slices.Sorted(maps.Keys(n.paths)) {
		out = append(out, n.paths[name])
	}
	return out
}
