package agent

import (
	"cmp"
	"context"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/state"
)

// leaveUnwanted takes this host out of networks that an earlier process took
// part in and this configuration does not want any more. A development agent
// leaves them alone: they belong to the agent whose directory it shares. So does one
// whose configuration looks cut off, unless an operator has confirmed it: see unmanaged.
func (a *Agent) leaveUnwanted(ctx context.Context, confirmed bool) {
	select {
	case <-a.env.named:
	default:
		return // nothing can be given up under no name
	}
	now := a.current()
	if now.Dev || !confirmed && len(a.unmanaged(now)) > 0 {
		return
	}
	a.rememberFiles(now)
	for _, name := range state.Networks(now.DataDir) {
		c, depart, departed := a.beginDeparture(name)
		if depart && ctx.Err() == nil {
			a.keepFormer(name)
			a.leaveSaved(ctx, c, name, "network is not configured any more, leaving it")
		}
		departed()
	}
}

// beginDeparture reports whether a network is to be left by the configuration in force,
// which it returns, and keeps a reload from starting the network until departed is
// called.
func (a *Agent) beginDeparture(name string) (c config.Config, depart bool, departed func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, wanted := a.wantedBy(a.config, name)
	if _, runs := a.runners[name]; runs || wanted {
		return a.config, false, func() {}
	}
	done := make(chan struct{})
	a.departures[name] = done
	return a.config, true, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.departures, name)
		close(done)
	}
}

// awaitDeparture blocks while a network is being left. The error is ctx's.
func (a *Agent) awaitDeparture(ctx context.Context, name string) error {
	a.mu.Lock()
	done := a.departures[name]
	a.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leaveSaved takes away what an earlier process left of a network. A state file
// that is broken says too little for that.
func (a *Agent) leaveSaved(ctx context.Context, c config.Config, name, why string) {
	before, err := state.Load(c.DataDir, name)
	if err != nil {
		return
	}
	a.log.Warn(why, "network", name)
	local := a.o.WatchedNetwork(name)
	local.SubnetFile = cmp.Or(before.SubnetFile, local.SubnetFile)
	newRunner(a.env, c, local).tearDown(ctx, a.env.registry)
	a.env.health.Forget(name)
}
