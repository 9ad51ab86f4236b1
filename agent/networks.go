package agent

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/files"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
)

// running is a runner and the function that stops it.
type running struct {
	runner *network.Runner
	cancel context.CancelFunc
	done   chan struct{} // closed when Run has returned
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
func (ns *networks) all() (out []*network.Runner) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for _, run := range ns.running {
		out = append(out, run.runner)
	}
	return out
}

// get returns the runner of a network in which this agent takes part.
func (ns *networks) get(name string) (*network.Runner, bool) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	run, ok := ns.running[name]
	if !ok {
		return nil, false
	}
	return run.runner, true
}

// start starts the runner of a network, unless it has one.
func (ns *networks) start(ctx context.Context, local config.Network) { ns.run(ctx, local, nil) }

// restart stops a network's runner and starts another one that takes over its backend, so that the datapath is not
// interrupted. It returns an error if the subnet file could not be copied to the path in local.
func (ns *networks) restart(ctx context.Context, local config.Network) error {
	ns.mu.Lock()
	before := ns.running[local.Name]
	ns.mu.Unlock()
	before.runner.SetEnding(network.Stay)
	before.cancel()
	<-before.done
	var err error
	if ns.subnetFileOf(local.SubnetFile, local.Name) == "" {
		err = before.runner.CopySubnetFile(local.SubnetFile)
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
		left = before.runner.HandOver()
	}
	run := &running{
		runner: network.New(ns.env, ns.settings.get(), local, left),
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
	go func() { // leave, restart and stopAll wait for it
		defer close(run.done)
		if err := run.runner.Run(ctx); err != nil {
			select {
			case ns.fatal <- err:
			default:
			}
		}
	}()
}

// leave makes this host leave one network, and waits until it has.
func (ns *networks) leave(name string) {
	ns.mu.Lock()
	run := ns.running[name]
	delete(ns.running, name)
	ns.mu.Unlock()
	if run == nil {
		return
	}
	run.runner.SetEnding(network.Leave)
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
	leave := (c.Dev || c.Lease.ReleaseOnStop) && ns.env.Identity.IsSettled()
	for _, run := range runners {
		if leave {
			run.runner.SetEnding(network.Leave)
		} else {
			run.runner.SetEnding(network.Stay)
		}
		run.cancel()
	}
	for _, run := range runners {
		<-run.done
		if !leave {
			ns.mu.Lock()
			ns.left = append(ns.left, run.runner.HandOver())
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

// usesLink reports whether a change of the device may affect a network's underlay.
func (ns *networks) usesLink(link string) bool {
	return slices.ContainsFunc(ns.all(), func(run *network.Runner) bool { return run.UsesLink(link) })
}

// reaches reports whether packets of some network to other hosts may take a route to the prefix.
func (ns *networks) reaches(prefix netip.Prefix) bool {
	return slices.ContainsFunc(ns.all(), func(run *network.Runner) bool { return run.Reaches(prefix) })
}

// subnetFileOf returns the network of this host, other than except, whose subnet file is at path in the current
// configuration, or "" if there is none. Networks with a block come first.
func (ns *networks) subnetFileOf(path, except string) string {
	var names []string
	for _, n := range ns.settings.get().Networks {
		names = append(names, n.Name)
	}
	for _, name := range append(names, ns.names()...) {
		local, wanted := ns.settings.wanted(name)
		if name != except && wanted && files.IsSame(local.SubnetFile, path) {
			return name
		}
	}
	return ""
}
