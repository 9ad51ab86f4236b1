package agent

import (
	"cmp"
	"context"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/agent/state"
)

// leaveUnwanted makes this host leave the networks in which an earlier process took part and which the configuration no
// longer wants. A development agent does not touch them: they belong to the agent whose directory it shares. They also
// stay if the configuration looks cut off and no operator has confirmed it: see unmanaged.
func (a *Agent) leaveUnwanted(ctx context.Context, confirmed bool) {
	select {
	case <-a.env.Identity.Settled():
	default:
		return // without this host's name, no lease can be given up
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

// beginDeparture reports whether a network is to be left under the configuration in force, which it returns. If so, a
// reload does not start the network until departed is called.
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

// leaveSaved removes what an earlier process left of a network. It does nothing if the state file is broken, because
// the file then says too little.
func (a *Agent) leaveSaved(ctx context.Context, c config.Config, name, why string) {
	before, err := state.Load(c.DataDir, name)
	if err != nil {
		return
	}
	a.log.Warn(why, "network", name)
	local := a.o.WatchedNetwork(name)
	local.SubnetFile = cmp.Or(before.SubnetFile, local.SubnetFile)
	network.LeaveSaved(ctx, a.env, c, local)
}
