package agent

import (
	"cmp"
	"context"
	"time"

	"github.com/lenonet/leno/agent/config"
)

// goneFor is how long a network must be missing in the store before a host whose
// agent was not there when it went takes away what is left of it: right after a
// store has lost everything, others are still putting it back.
const goneFor = time.Minute

// missing says whether the store certainly has no record of the network.
func (e *environment) missing(name string) bool {
	known, read, _ := e.networks.get()
	_, found := known.find(name)
	return read && !found && !known.bad(name)
}

// leftBehind says whether something of the network stands on this host.
func (r *runner) leftBehind() bool {
	before, err := loadSaved(r.config.DataDir, r.local.Name)
	return err == nil && before.Network != ""
}

// leaveGone takes this host out of networks that were deleted while no agent ran
// here, and that only watch_networks would have it join; one with a block has a
// runner that does so. since is when each was first missed. It returns when to
// look again, nil when there is nothing to wait for.
func (a *Agent) leaveGone(ctx context.Context, since map[string]time.Time) <-chan time.Time {
	c := a.current()
	if c.Dev {
		return nil
	}
	var again <-chan time.Time
	for _, name := range savedNetworks(c.DataDir) {
		run, running := a.runner(name)
		running = running && run.seen.Load()
		if _, wanted := a.wanted(name); running || !wanted || a.configured(name) || !a.env.missing(name) {
			delete(since, name)
			continue
		}
		if _, missed := since[name]; !missed {
			since[name] = time.Now()
		}
		if time.Since(since[name]) < a.env.goneFor {
			again = time.After(a.env.goneFor / 4)
			continue
		}
		a.stop(name, false)
		a.leaveSaved(ctx, c, name, "network was deleted while the agent was away, leaving it")
	}
	return again
}

// leaveUnwanted takes this host out of networks that an earlier process took
// part in and this configuration does not want any more. A development agent
// leaves them alone: they belong to the agent whose directory it shares.
func (a *Agent) leaveUnwanted(ctx context.Context) {
	c := a.current()
	if c.Dev {
		return
	}
	for _, name := range savedNetworks(c.DataDir) {
		if _, wanted := a.wanted(name); !wanted && ctx.Err() == nil {
			a.leaveSaved(ctx, c, name, "network is not configured any more, leaving it")
		}
	}
}

// leaveSaved takes away what an earlier process left of a network. A state file
// that is broken says too little for that.
func (a *Agent) leaveSaved(ctx context.Context, c config.Config, name, why string) {
	before, err := loadSaved(c.DataDir, name)
	if err != nil {
		return
	}
	a.log.Warn(why, "network", name)
	local := a.o.WatchedNetwork(name)
	local.SubnetFile = cmp.Or(before.SubnetFile, local.SubnetFile)
	newRunner(a.env, c, local).tearDown(ctx, a.env.registry)
	a.env.health.forget(name)
}
