package network

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
)

// leaveTimeout bounds the cleanup of a host that leaves a network.
const leaveTimeout = 15 * time.Second

// LeaveSaved removes what an earlier process left of a network in which no runner runs, and releases its lease.
func LeaveSaved(ctx context.Context, deps *Deps, c config.Config, local config.Network) {
	New(deps, c, local, nil).tearDown(ctx, true)
	deps.Reports.Health.Forget(local.Name)
}

// tearDown removes everything of the network from this host: datapath, rules, files and, if release is set, the lease.
// The lease is released last, so that no other host gets the subnet while packets still flow here, and has a time limit
// of its own, so that a store that hangs does not use up the time for the datapath. tearDown continues after failures
// and logs them. ctx may have ended.
func (r *Runner) tearDown(ctx context.Context, release bool) {
	ctx = context.WithoutCancel(ctx)
	here, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	before, err := r.state.Load()
	if err != nil {
		before = state.Network{} // says too little
	}
	errs := []error{r.datapath.Remove(here, before)}
	if before.Superseded {
		r.withdrawn.begin(before.Backend, before.Pools)
	}
	var n registry.Network
	if known := rememberedDefinition(r.config.DataDir, r.local.Name); known != nil {
		n = known.Network
	}
	errs = append(errs, r.withdrawn.end(here, n))
	r.deps.Rules.Foreign.Drop(r.local.Name)
	errs = append(errs, r.deps.Rules.Keeper.Drop(here, r.local.Name), r.removeFiles(before))
	if release {
		errs = append(errs, r.lease.GiveUp(ctx, before))
	}
	r.deps.Claims.give(r.local.Name)
	r.previous = netip.Prefix{}
	r.lease.Reset()
	r.peers.Reset()
	r.resumed.settle()
	r.report.Reset()
	r.definition.update(func(s *definitionStatus) { s.applied = 0 })
	if err := errors.Join(errs...); err != nil {
		r.report.Log().Error("network was not removed completely", "error", err)
	}
}

// removeFiles removes the network's files, including those that a killed process left unfinished and those that a
// process set aside because it could not parse them.
func (r *Runner) removeFiles(before state.Network) error {
	dir, network := r.config.DataDir, r.local.Name
	file := state.Path(dir, network)
	return errors.Join(
		r.file.remove(before.SubnetFile),
		removeFiles(slices.Concat(
			[]string{file, file + state.BadSuffix},
			state.Unfinished(file),
			state.Unfinished(state.PeersPath(dir, network)),
		)),
		state.RemovePeers(dir, network),
	)
}
