package agent

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
)

// running is a runner and the function that stops it.
type running struct {
	*network.Runner
	cancel context.CancelFunc
	done   chan struct{} // closed when Run has returned
	probes exclusive
}

// adopt starts runners for the networks of c that have none.
func (a *Agent) adopt(ctx context.Context, c config.Config) {
	a.checkConfigured(c)
	for _, n := range c.Networks {
		a.start(ctx, n)
	}
	if c.Dev {
		return // the saved state may be another agent's
	}
	// Networks of an earlier process start without waiting until they are found in the store.
	for _, name := range state.Networks(c.DataDir) {
		if local, ok := a.wanted(name); ok {
			a.start(ctx, local)
		}
	}
}

// start starts the runner of a network, unless it has one.
func (a *Agent) start(ctx context.Context, local config.Network) { a.run(ctx, local, nil) }

// restart stops a network's runner and starts another one that takes over its backend, so that the datapath is not
// interrupted. It returns an error if the subnet file could not be copied to the path in local.
func (a *Agent) restart(ctx context.Context, local config.Network) error {
	a.mu.Lock()
	before := a.runners[local.Name]
	a.mu.Unlock()
	before.SetEnding(network.Stay)
	before.cancel()
	<-before.done
	var err error
	if a.subnetFileOf(local.SubnetFile, local.Name) == "" {
		err = before.CopySubnetFile(local.SubnetFile)
	}
	a.run(ctx, local, before)
	return err
}

// run starts a runner for a network in place of before, which has ended and whose backend it takes over; before is nil
// if there was none. The API uses the old runner until then.
func (a *Agent) run(ctx context.Context, local config.Network, before *running) {
	if a.awaitDeparture(ctx, local.Name) != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.runners[local.Name] != before {
		return
	}
	// Only cancel ends it, after the caller has decided whether to leave.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var left *network.HandOver
	if before != nil {
		left = before.HandOver()
	}
	run := &running{
		Runner: network.New(a.env, a.config, local, left),
		cancel: cancel,
		done:   make(chan struct{}),
	}
	a.runners[local.Name] = run
	if before == nil {
		a.env.Reports.Events.Add(api.Event{
			Network:  local.Name,
			Kind:     api.EventNetwork,
			Severity: api.Info,
			Message:  "taking part in the network",
			Fields:   map[string]string{"change": "joined"},
		})
	}
	a.parts.Set(struct{}{})
	a.env.Reports.Changed.Set(struct{}{})
	go func() { // stop and stopRunners wait for it
		defer close(run.done)
		if err := run.Run(ctx); err != nil {
			select {
			case a.fatal <- err:
			default:
			}
		}
	}()
}

// stop stops one network and waits for its runner. With leave it removes the network from this host.
func (a *Agent) stop(name string, leave bool) {
	a.mu.Lock()
	run := a.runners[name]
	delete(a.runners, name)
	a.mu.Unlock()
	if run == nil {
		return
	}
	if leave {
		run.SetEnding(network.Leave)
	}
	run.cancel()
	<-run.done
	a.env.Reports.Health.Forget(name)
	a.parts.Set(struct{}{})
	a.env.Reports.Changed.Set(struct{}{})
}

// stopRunners stops all networks at once and waits for their runners. They leave this host if the configuration says so
// and this host's name is known, without which they cannot give up anything. Otherwise their backends stay open until
// closeLeft.
func (a *Agent) stopRunners() {
	a.mu.Lock()
	runners := slices.Collect(maps.Values(a.runners))
	leave := a.config.Dev || a.config.Lease.ReleaseOnStop
	a.mu.Unlock()
	select {
	case <-a.env.Identity.Settled():
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
			a.mu.Lock()
			a.left = append(a.left, run.HandOver())
			a.mu.Unlock()
		}
	}
}

// closeLeft closes the backends of an agent that stops; their datapaths in the kernel stay.
func (a *Agent) closeLeft() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, left := range a.left {
		errs = append(errs, left.Close())
	}
	a.left = nil
	return errors.Join(errs...)
}

// subnetFileOf returns the network of this host, other than except, whose subnet file is at path in the current
// configuration, or "" if there is none. Networks with a block come first.
func (a *Agent) subnetFileOf(path, except string) string {
	var names []string
	for _, n := range a.current().Networks {
		names = append(names, n.Name)
	}
	a.mu.Lock()
	names = append(names, slices.Sorted(maps.Keys(a.runners))...)
	a.mu.Unlock()
	for _, name := range names {
		local, wanted := a.wanted(name)
		if name != except && wanted && config.SamePath(local.SubnetFile, path) {
			return name
		}
	}
	return ""
}
