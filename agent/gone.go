package agent

import (
	"cmp"
	"context"
	"time"

	"github.com/lenonet/leno/agent/config"
)

// goneFor is how long a network must be missing in a store that answers before a
// host whose agent was not there when it went takes away what is left of it: right
// after a store has lost everything, others are still putting it back.
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
