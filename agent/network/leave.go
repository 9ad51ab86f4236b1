package network

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/state"
)

// leaveTimeout bounds the cleanup of a host that leaves a network.
const leaveTimeout = 15 * time.Second

// LeaveSaved removes what an earlier process left of a network in which no runner runs, and releases its lease.
func LeaveSaved(ctx context.Context, deps *Deps, c config.Config, local config.Network) {
	newRemoval(New(deps, c, local, nil), true).leave(ctx)
	deps.Reports.Health.Forget(local.Name)
}

// A removal removes everything of a network from this host: datapath, rules, files and, if release is set, the lease.
// The lease is released last, so that no other host gets the subnet while packets still flow here or containers get
// addresses of it. As long as the datapath or the subnet file cannot be removed, the state file stays, too: it says
// what to remove.
type removal struct {
	*Runner
	release bool
	before  state.Network
}

// newRemoval returns the removal of a runner's network.
func newRemoval(r *Runner, release bool) *removal { return &removal{r, release, savedState(r.state)} }

// leave removes the network, and retries for leaveTimeout what cannot be removed. After that, the next start
// or reload without the network finds the state file. ctx may have ended.
func (r *removal) leave(ctx context.Context) {
	if r.tearDown(ctx) == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	r.retry(ctx)
}

// leaveDeleted removes a deleted network, and retries until ctx ends what cannot be removed. The lease does
// not wait for that: without a definition, no other host can get the subnet, and none would remove the record if this
// host ended before.
func (r *removal) leaveDeleted(ctx context.Context) {
	if r.tearDown(ctx) == nil {
		return
	}
	if err := r.lease.GiveUp(ctx, r.before); err != nil {
		r.report.Log().Error("lease was not released", "error", err)
	}
	r.release = false
	r.report.SetState("deleted, being removed from this host")
	r.retry(ctx)
}

// tearDown removes everything once. It continues after failures and logs them. It returns the errors of removeUse, for
// retry. The lease has a time limit of its own, so that a store that hangs does not use up the time for the datapath.
// ctx may have ended.
func (r *removal) tearDown(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	here, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if r.before.Refused != nil {
		r.withdrawn.add(r.before.Refused)
	}
	left := r.removeUse(here)
	r.deps.Rules.Foreign.Drop(r.local.Name)
	errs := []error{left, r.deps.Rules.Keeper.Drop(here, r.local.Name)}
	if left == nil {
		errs = append(errs, r.finish(ctx))
	}
	if forget := r.deps.Store.Registry.Abilities().Forget; forget != nil {
		forget(r.local.Name) // what happens to the leases from now on is not followed
	}
	r.deps.Claims.release(r.local.Name)
	r.previous = netip.Prefix{}
	r.lease.Reset()
	r.peers.Reset()
	r.resumed.settle()
	r.report.Reset()
	r.definition.update(func(s *definitionStatus) { s.applied = 0 })
	if err := errors.Join(errs...); err != nil {
		r.report.Log().Error("network was not removed completely", "error", err)
	}
	return left
}

// removeUse removes what uses the subnet: the subnet file first, so that no container gets an address of it, then the
// datapath, and what refuses packets to it.
func (r *removal) removeUse(ctx context.Context) error {
	known := rememberedDefinition(r.config, r.local.Name)
	return errors.Join(
		r.file.remove(r.before.SubnetFile),
		r.datapath.Remove(ctx, r.before, nil),
		r.withdrawn.end(ctx, nil, known != nil && known.Network.Encryption != ""),
	)
}

// retry tries to remove what tearDown has left, until that succeeds or ctx ends. Then it removes the rest.
func (r *removal) retry(ctx context.Context) {
	ctx, done := context.WithCancel(ctx)
	defer done()
	_ = r.datapath.KeepRefused(ctx, nil, func(ctx context.Context) error { // ends with ctx
		if err := r.removeUse(ctx); err != nil {
			return err
		}
		r.report.Log().Info("datapath and subnet file are removed")
		if err := r.finish(ctx); err != nil {
			r.report.Log().Error("network was not removed completely", "error", err)
		}
		done()
		return nil
	})
}

// finish removes what stays until removeUse has succeeded: the network's files and, if release is set, the lease. The
// files include those that a killed process left unfinished and those that a process set aside because it could not
// parse them.
func (r *removal) finish(ctx context.Context) error {
	dir, network := r.config.DataDir, r.local.Name
	file := state.Path(dir, network)
	err := errors.Join(
		removeFiles(slices.Concat(
			[]string{file, file + state.BadSuffix},
			state.Unfinished(file),
			state.Unfinished(state.PeersPath(dir, network)),
		)),
		state.RemovePeers(dir, network),
	)
	if r.release {
		err = errors.Join(err, r.lease.GiveUp(context.WithoutCancel(ctx), r.before))
	}
	return err
}

// savedState returns the content of a state file, nothing if it cannot be parsed: it then says too little.
func savedState(f *state.File) state.Network {
	before, err := f.Load()
	if err != nil {
		return state.Network{}
	}
	return before
}
