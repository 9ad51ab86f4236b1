package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// retire removes what belongs to another definition and was left by the last round or by an earlier process: the
// datapath of another backend or plan, and a lease whose subnets are not a slot of this plan. Such a lease would block
// other leases forever.
func (r *runner) retire(ctx context.Context, n registry.Network, kind backend.Type, c backend.Config) error {
	before, err := state.Load(r.config.DataDir, r.local.Name)
	if err != nil {
		before = state.Network{} // the runner reports the file and sets it aside when it needs a lease
	}
	lease, held, _ := r.lease.Get()
	if !held {
		lease = before.LeaseOf(r.env.id)
	}
	if lease.Session != "" && !slotOf(n.Plan, lease) {
		r.log.Warn("subnet is none of the network's any more, giving it up", "subnet", lease.Subnet())
		call, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		if err := r.env.registry.Release(call, lease); err != nil {
			return fmt.Errorf("give up %s: %w", lease.Subnet(), err)
		}
		r.lease.Clear()
		r.show(func(v *view) { v.local.Subnets = nil })
	}
	return r.datapath.Retire(ctx, kind, c, before)
}

// slotOf reports whether the lease's subnets are those of a slot of the plan. Only the address families that both have
// are compared: leases stay valid when a plan gains or loses IPv6.
func slotOf(plan registry.Plan, l registry.Lease) bool {
	slot, err := plan.Slot(l.Subnet())
	if err != nil {
		return false
	}
	whole := plan.Subnets(slot)
	both := min(len(l.Subnets), len(whole))
	return slices.Equal(whole[:both], l.Subnets[:both])
}

// tearDown removes everything of the network from this host: datapath, rules, files and, through reg unless it is nil,
// the lease. The lease is released last, so that no other host gets the subnet while packets still flow here, and has a
// time limit of its own, so that a store that hangs does not use up the time for the datapath. tearDown continues after
// failures and logs them. ctx may have ended.
func (r *runner) tearDown(ctx context.Context, reg registry.Registry) {
	ctx = context.WithoutCancel(ctx)
	here, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	before, err := state.Load(r.config.DataDir, r.local.Name)
	if err != nil {
		before = state.Network{} // says too little
	}
	lease, held, _ := r.lease.Get()
	if !held {
		lease = before.LeaseOf(r.env.id) // of an earlier process; this one has not taken it over
	}
	var errs []error
	errs = append(errs, r.datapath.Remove(here, before))
	r.env.foreign.Drop(r.local.Name)
	errs = append(errs, r.env.firewall.Drop(here, r.local.Name))
	errs = append(errs, r.removeFiles(before))
	if lease.Session != "" && reg != nil {
		call, done := context.WithTimeout(ctx, callTimeout)
		errs = append(errs, reg.Release(call, lease))
		done()
	}
	r.env.pools.give(r.local.Name)
	r.stood = netip.Prefix{}
	r.lease.Clear()
	r.snapshot.Clear()
	r.records.clear()
	r.mu.Lock()
	r.trouble, r.unrenewed, r.formerly, r.suspicions, r.resumed = "", "", "", map[string]string{}, nil
	r.mu.Unlock()
	r.report.Reset()
	r.show(func(v *view) {
		v.local.Subnets, v.local.ModifyIndex = nil, 0
	})
	if err := errors.Join(errs...); err != nil {
		r.log.Error("leaving the network was not complete", "error", err)
	}
}

// removeFiles removes the network's files, including those that a killed process left unfinished and those that a
// process set aside because it could not parse them. It keeps a file at the subnet file's path that another program
// wrote or that is now the subnet file of another network.
func (r *runner) removeFiles(before state.Network) error {
	var errs []error
	remove := func(path string) {
		if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	r.file.mu.Lock()
	r.file.want = nil
	r.file.mu.Unlock()
	r.file.unready.Store(false)
	for _, path := range []string{r.local.SubnetFile, before.SubnetFile} {
		if r.env.subnetFileOf(path, r.local.Name) != "" {
			continue
		}
		if data, err := state.ReadSubnetFile(path); err == nil && !state.IsSubnetFile(data) || errors.Is(err, config.ErrNotRegular) {
			r.log.Warn("file in the place of the subnet file is not leno's, it stays", "path", path)
			continue
		}
		remove(path)
		for _, begun := range state.Unfinished(path) {
			remove(begun)
		}
	}
	file := state.Path(r.config.DataDir, r.local.Name)
	for _, path := range slices.Concat([]string{file, file + state.BadSuffix}, state.Unfinished(file), state.Unfinished(state.PeersPath(r.config.DataDir, r.local.Name))) {
		remove(path)
	}
	return errors.Join(append(errs, state.RemovePeers(r.config.DataDir, r.local.Name))...)
}

// serveReleases releases the lease when a request asks for it and its token has the right. A refused request changes
// nothing. serveReleases returns errReleased after a granted one.
func (r *runner) serveReleases(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case request := <-r.releases:
			if err := r.release(ctx, request); err != nil {
				request.done <- err
				continue
			}
			return errReleased
		}
	}
}

func (r *runner) release(ctx context.Context, request *releaseRequest) error {
	r.claiming.Lock()
	defer r.claiming.Unlock()
	lease, ok, _ := r.lease.Get()
	if !ok {
		return r.noLeaseToRelease()
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := r.env.registry.As(request.token).Release(ctx, lease); err != nil {
		return err
	}
	r.released = request
	return nil
}

// refuseReleases refuses requests for a release after the lease was released, until ctx ends.
func (r *runner) refuseReleases(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case request := <-r.releases:
			request.done <- r.noLeaseToRelease()
		}
	}
}

func (r *runner) noLeaseToRelease() error {
	return &api.Error{Code: http.StatusConflict,
		Message: fmt.Sprintf("network %s: this host holds no lease to release: %s", r.local.Name, r.shown().local.State)}
}
