package agent

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
)

// running is a runner and the function that stops it.
type running struct {
	*runner
	cancel context.CancelFunc
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
	before.succeed()
	before.cancel()
	<-before.done
	var err error
	if a.subnetFileOf(local.SubnetFile, local.Name) == "" {
		err = before.copySubnetFile(local.SubnetFile)
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
	var instance *datapath.Instance
	if before != nil {
		instance = before.datapath.HandOver()
	}
	run := &running{runner: newRunner(a.env, a.config, local, instance), cancel: cancel}
	a.runners[local.Name] = run
	if before != nil {
		run.known = before.known
	} else {
		run.report.Event(api.EventNetwork, api.Info, "taking part in the network", map[string]string{"change": "joined"})
	}
	a.env.parts.Set(struct{}{})
	a.env.shown.Set(struct{}{})
	go func() { // stop and stopRunners wait for it
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
		run.leave()
	}
	run.cancel()
	<-run.done
	a.env.health.Forget(name)
	a.env.parts.Set(struct{}{})
	a.env.shown.Set(struct{}{})
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
	case <-a.env.named:
	default:
		leave = false
	}
	for _, run := range runners {
		if leave {
			run.leave()
		} else {
			run.succeed()
		}
		run.cancel()
	}
	for _, run := range runners {
		<-run.done
		if left := run.datapath.HandOver(); left != nil {
			a.mu.Lock()
			a.left = append(a.left, left)
			a.mu.Unlock()
		}
	}
}

// closeLeft closes the backends of an agent that stops; their datapaths in the kernel stay.
func (a *Agent) closeLeft() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, instance := range a.left {
		errs = append(errs, instance.Close())
	}
	a.left = nil
	return errors.Join(errs...)
}
