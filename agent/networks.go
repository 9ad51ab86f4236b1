package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
)

// running is a runner and the function that stops it.
type running struct {
	*network.Runner
	cancel context.CancelFunc
	done   chan struct{} // closed when Run has returned
	probes exclusive
}

// networks are the networks in which this host takes part. It is safe for concurrent use, except that only the
// supervising goroutine begins, applies, joins and stops.
type networks struct {
	log      hclog.Logger
	env      *network.Deps
	settings *settings
	fatal    chan error             // receives the first error that ends the agent
	changed  *watch.Value[struct{}] // set when this agent joins or leaves a network

	mu      sync.Mutex
	begun   bool // this host's id is known, and runners have been started
	running map[string]*running
	// departures are the networks of an earlier process that this agent is leaving. Each channel is closed when the
	// network has been left.
	departures map[string]chan struct{}
	left       []*network.HandOver // what the runners left that ended with the agent, closed last
}

func newNetworks(log hclog.Logger, env *network.Deps, s *settings) *networks {
	return &networks{
		log:        log,
		env:        env,
		settings:   s,
		fatal:      make(chan error, 1),
		changed:    watch.New[struct{}](),
		running:    map[string]*running{},
		departures: map[string]chan struct{}{},
	}
}

// begin starts the runners. This host's id must be known.
func (ns *networks) begin(ctx context.Context) {
	ns.mu.Lock()
	ns.begun = true
	ns.mu.Unlock()
	ns.adopt(ctx, ns.settings.get())
}

// hasBegun reports whether begin was called.
func (ns *networks) hasBegun() bool {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return ns.begun
}

// names returns the names of the networks, sorted.
func (ns *networks) names() []string {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return slices.Sorted(maps.Keys(ns.running))
}

// all returns the runners in any order.
func (ns *networks) all() []*running {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return slices.Collect(maps.Values(ns.running))
}

// get returns the runner of a network in which this agent takes part.
func (ns *networks) get(name string) (*running, bool) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	run, ok := ns.running[name]
	return run, ok
}

// start starts the runner of a network, unless it has one.
func (ns *networks) start(ctx context.Context, local config.Network) { ns.run(ctx, local, nil) }

// restart stops a network's runner and starts another one that takes over its backend, so that the datapath is not
// interrupted. It returns an error if the subnet file could not be copied to the path in local.
func (ns *networks) restart(ctx context.Context, local config.Network) error {
	ns.mu.Lock()
	before := ns.running[local.Name]
	ns.mu.Unlock()
	before.SetEnding(network.Stay)
	before.cancel()
	<-before.done
	var err error
	if ns.subnetFileOf(local.SubnetFile, local.Name) == "" {
		err = before.CopySubnetFile(local.SubnetFile)
	}
	ns.run(ctx, local, before)
	return err
}

// run starts a runner for a network in place of before, which has ended and whose backend it takes over; before is nil
// if there was none. The API uses the old runner until then.
func (ns *networks) run(ctx context.Context, local config.Network, before *running) {
	if ns.awaitDeparture(ctx, local.Name) != nil {
		return
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.running[local.Name] != before {
		return
	}
	// Only cancel ends it, after the caller has decided whether to leave.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var left *network.HandOver
	if before != nil {
		left = before.HandOver()
	}
	run := &running{
		Runner: network.New(ns.env, ns.settings.get(), local, left),
		cancel: cancel,
		done:   make(chan struct{}),
	}
	ns.running[local.Name] = run
	if before == nil {
		ns.env.Reports.Events.Add(api.Event{
			Network:  local.Name,
			Kind:     api.EventNetwork,
			Severity: api.Info,
			Message:  "taking part in the network",
			Fields:   map[string]string{"change": "joined"},
		})
	}
	ns.changed.Set(struct{}{})
	ns.env.Reports.Changed.Set(struct{}{})
	go func() { // stop and stopRunners wait for it
		defer close(run.done)
		if err := run.Run(ctx); err != nil {
			select {
			case ns.fatal <- err:
			default:
			}
		}
	}()
}

// stop stops one network and waits for its runner. With leave it removes the network from this host.
func (ns *networks) stop(name string, leave bool) {
	ns.mu.Lock()
	run := ns.running[name]
	delete(ns.running, name)
	ns.mu.Unlock()
	if run == nil {
		return
	}
	if leave {
		run.SetEnding(network.Leave)
	}
	run.cancel()
	<-run.done
	ns.env.Reports.Health.Forget(name)
	ns.changed.Set(struct{}{})
	ns.env.Reports.Changed.Set(struct{}{})
}

// stopAll stops all networks at once and waits for their runners. They leave this host if the configuration says so
// and this host's name is known, without which they cannot give up anything. Otherwise their backends stay open until
// closeLeft.
func (ns *networks) stopAll() {
	ns.mu.Lock()
	runners := slices.Collect(maps.Values(ns.running))
	ns.mu.Unlock()
	c := ns.settings.get()
	leave := c.Dev || c.Lease.ReleaseOnStop
	select {
	case <-ns.env.Identity.Settled():
	default:
		leave = false
	}
	for _, run := range runners {
		if leave {
			run.SetEnding(network.Leave)
		} else {
			run.SetEnding(network.Stay)
		}
		run.cancel()
	}
	for _, run := range runners {
		<-run.done
		if !leave {
			ns.mu.Lock()
			ns.left = append(ns.left, run.HandOver())
			ns.mu.Unlock()
		}
	}
}

// closeLeft closes the backends of an agent that stops; their datapaths in the kernel stay.
func (ns *networks) closeLeft() error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	var errs []error
	for _, left := range ns.left {
		errs = append(errs, left.Close())
	}
	ns.left = nil
	return errors.Join(errs...)
}

// adopt starts runners for the networks of c that have none.
func (ns *networks) adopt(ctx context.Context, c config.Config) {
	ns.checkConfigured(c)
	for _, n := range c.Networks {
		ns.start(ctx, n)
	}
	if c.Dev {
		return // the saved state may be another agent's
	}
	// Networks of an earlier process start without waiting until they are found in the store.
	for _, name := range state.Networks(c.DataDir) {
		if local, ok := ns.settings.wanted(name); ok {
			ns.start(ctx, local)
		}
	}
}

// join starts networks that appeared in the store and that watch_networks includes, and stops the runners of deleted
// networks that have no block.
func (ns *networks) join(ctx context.Context) {
	known, ok, _ := ns.env.Store.Networks.Get()
	if !ok {
		return
	}
	for _, n := range known.Set.Networks {
		if _, runs := ns.get(n.Name); !runs && ns.settings.watched(n.Name) {
			ns.expectRulesOf(ctx, n.Name, n.Plan.Prefixes())
		}
	}
	ns.env.Rules.Keeper.Resolve(watchedNetworks)
	for _, n := range known.Set.Networks {
		local, ok := ns.settings.wanted(n.Name)
		if !ok {
			continue
		}
		ns.start(ctx, local)
	}
	for _, name := range ns.names() {
		if run, ok := ns.get(name); ok && run.WasLeft() && !ns.settings.configured(name) {
			ns.stop(name, true)
		}
	}
}

// apply leaves networks that are no longer configured, restarts those whose configuration changed, and joins
// others. It returns warnings about subnet files that could not be copied or removed.
func (ns *networks) apply(ctx context.Context, old, c config.Config) (warnings []string) {
	ns.mu.Lock()
	running, begun := maps.Clone(ns.running), ns.begun
	ns.mu.Unlock()
	again := !reflect.DeepEqual(old.Lease, c.Lease) || !reflect.DeepEqual(old.Underlay, c.Underlay)
	for _, name := range slices.Sorted(maps.Keys(running)) {
		run := running[name]
		local, stays := ns.settings.wanted(name)
		switch {
		case !stays:
			ns.log.Info("network is not configured any more, leaving it", "network", name)
			ns.keepFormer(name)
			ns.stop(name, true)
		case again || !reflect.DeepEqual(local, run.Local()) || run.Status().Local.State == lease.ReleasedAdvice:
			err := ns.restart(ctx, local)
			// The old path may be another spelling of this network's current one.
			if err == nil && ns.subnetFileOf(run.Local().SubnetFile, "") == "" {
				err = os.Remove(run.Local().SubnetFile)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				ns.log.Warn("old subnet file stays", "network", name, "error", err)
				warnings = append(warnings, fmt.Sprintf("network %s: old subnet file stays: %v", name, err))
			}
		}
	}
	if begun {
		ns.adopt(ctx, c)
	}
	return warnings
}

// warnDiffering returns a warning about each network whose block differs from the definition that was last read from
// the store.
func (ns *networks) warnDiffering(c config.Config) (warnings []string) {
	known, _, _ := ns.env.Store.Networks.Get()
	for _, local := range c.Networks {
		now, defined := known.Set.Find(local.Name)
		run, runs := ns.get(local.Name)
		if !defined || !runs {
			continue
		}
		if differs := run.Differs(now); len(differs) > 0 {
			warnings = append(warnings, fmt.Sprintf("network %s: %s", local.Name, network.Differing(c, local.Name, differs)))
		}
	}
	return warnings
}

// usesLink reports whether a change of the device may affect a network's underlay.
func (ns *networks) usesLink(link string) bool {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for _, run := range ns.running {
		if run.UsesLink(link) {
			return true
		}
	}
	return false
}

// reaches reports whether packets of some network to other hosts may take a route to the prefix.
func (ns *networks) reaches(prefix netip.Prefix) bool {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for _, run := range ns.running {
		if run.Reaches(prefix) {
			return true
		}
	}
	return false
}

// subnetFileOf returns the network of this host, other than except, whose subnet file is at path in the current
// configuration, or "" if there is none. Networks with a block come first.
func (ns *networks) subnetFileOf(path, except string) string {
	var names []string
	for _, n := range ns.settings.get().Networks {
		names = append(names, n.Name)
	}
	ns.mu.Lock()
	names = append(names, slices.Sorted(maps.Keys(ns.running))...)
	ns.mu.Unlock()
	for _, name := range names {
		local, wanted := ns.settings.wanted(name)
		if name != except && wanted && config.SamePath(local.SubnetFile, path) {
			return name
		}
	}
	return ""
}

// expectRules makes the keeper expect rules of networks that exist in the kernel without a state file that describes
// them: those of this configuration and, if the whole state directory was lost, those that join finds in the store.
func (ns *networks) expectRules(ctx context.Context) {
	c := ns.settings.get()
	for _, local := range c.Networks {
		ns.expectRulesOf(ctx, local.Name, poolsOf(local))
	}
	if c.WatchNetworks && ns.env.Identity.NodeID() == "" {
		ns.env.Rules.Keeper.Expect(watchedNetworks)
	}
}

func (ns *networks) expectRulesOf(ctx context.Context, name string, pools []netip.Prefix) {
	if before, err := state.Load(ns.settings.get().DataDir, name); err == nil && len(before.Subnets) > 0 {
		return
	}
	if found, err := ns.env.ReadKernelState(ctx, backend.LinkName(name), pools); err == nil && !found.IsEmpty() {
		ns.env.Rules.Keeper.Expect(name)
	}
}

// checkConfigured updates the agent's check about its networks: it warns if none is configured, and fails if some are
// left as they are because the configuration looks cut off.
func (ns *networks) checkConfigured(c config.Config) {
	names, networks := ns.settings.unmanaged(c), ""
	if len(names) > 0 {
		networks = strings.Join(names, ", ")
		ns.log.Error("the configuration looks cut off, what it does not name stays as it is", "networks", names, "empty", emptied(c))
	}
	stays := fmt.Sprintf("this host takes part in %s: that is left as it is, packets flow, and nothing keeps the lease; "+
		"put the network blocks back, or run `leno reload -force` to leave", networks)
	switch {
	case len(names) > 0 && takesPart(c):
		ns.env.Reports.Health.Set("", health.Network, api.Critical, fmt.Sprintf("%s is empty, and %s", strings.Join(emptied(c), ", "), stays))
	case len(names) > 0:
		ns.env.Reports.Health.Set("", health.Network, api.Critical, "no network is configured, and "+stays)
	case takesPart(c):
		ns.env.Reports.Health.Clear("", health.Network)
	default:
		ns.env.Reports.Health.Set("", health.Network, api.Warning, "no network is configured: add a network block, or set watch_networks")
		ns.log.Warn("no network is configured")
	}
}
