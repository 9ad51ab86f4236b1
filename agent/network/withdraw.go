package network

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
)

// A host whose subnet belongs to another live host withdraws it: containers can no longer be started with it, and the
// network's datapath is removed. The kernel refuses packets to the network until this host has a lease again. Otherwise
// its containers would go on sending with the other host's addresses.

// withdraw stops the use of a subnet that another host holds. It retries what fails, until ctx ends.
func (r *Runner) withdraw(ctx context.Context, lost *lease.SupersededError) {
	r.report.SetReady(false)
	r.resumed.settle()
	r.previous = lost.Subnet
	for _, check := range []string{health.Device, health.Routes, health.Forwarding} {
		r.report.Forget(check)
	}
	before, err := r.state.Load()
	if err != nil {
		before = state.Network{} // says too little
	}
	n, _, _ := r.definition.inForce.Get()
	pools := refusable(n.Backend, r.plan.Prefixes())
	r.setRefused(pools)
	ctx, done := context.WithCancel(ctx)
	defer done()
	_ = r.datapath.KeepRefused(ctx, pools, func(ctx context.Context) error { // ends with ctx
		err := errors.Join(r.file.remove(before.SubnetFile), r.datapath.Remove(ctx, before), r.saveWithdrawal())
		if err == nil {
			done()
		}
		return err
	})
}

// saveWithdrawal records for the next process that the subnet is withdrawn. It does nothing if the state file has none.
func (r *Runner) saveWithdrawal() error {
	if before, err := r.state.Load(); err != nil || len(before.Subnets) == 0 {
		return nil
	}
	return r.state.Update(func(before state.Network, _ error) state.Network {
		before.Superseded = true
		return before
	})
}

// recallWithdrawal goes on refusing packets if an earlier process has withdrawn the subnet.
func (r *Runner) recallWithdrawal(ctx context.Context) {
	before, err := r.state.Load()
	if err != nil || !before.Superseded {
		return
	}
	r.setRefused(refusable(before.Backend, before.Pools))
	if err := r.datapath.Refuse(ctx, r.refused, true); err != nil {
		r.report.Log().Error("packets with another host's addresses may leave until this host has a subnet", "error", err)
	}
}

// guard makes the kernel refuse packets to the network as long as this host must not send any: for want of encryption,
// or because its subnet is withdrawn.
func (r *Runner) guard(ctx context.Context, n registry.Network) error {
	if r.refused == nil {
		return r.datapath.Guard(ctx, n)
	}
	for _, pool := range refusable(n.Backend, n.Plan.Prefixes()) {
		if !slices.Contains(r.refused, pool) {
			r.refused = append(slices.Clone(r.refused), pool)
		}
	}
	return r.datapath.Refuse(ctx, r.refused, true)
}

// keepRefused keeps packets to the network refused until stop is called, if this host's subnet is withdrawn.
func (r *Runner) keepRefused(ctx context.Context) (stop func()) {
	if r.refused == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	pools := r.refused
	var keeper sync.WaitGroup
	keeper.Go(func() { _ = r.datapath.KeepRefused(ctx, pools, nil) }) // ends with ctx
	return func() {
		cancel()
		keeper.Wait()
	}
}

// endRefusal ends the refusal of packets to n, because this host has another subnet or leaves the network. It stays for
// a network that requires encryption.
func (r *Runner) endRefusal(ctx context.Context, n registry.Network) error {
	if len(r.refused) > 0 && n.Encryption == "" {
		if err := r.datapath.Refuse(ctx, r.refused, false); err != nil {
			return err
		}
	}
	r.setRefused(nil)
	return nil
}

// refusable returns the pools of a network to which the kernel can refuse packets. There are none with the backend
// alloc, where the routes are another program's.
func refusable(b registry.Backend, pools []netip.Prefix) []netip.Prefix {
	if b.Type == "alloc" {
		return []netip.Prefix{}
	}
	return pools
}

// setRefused sets the pools to which packets are refused; nil for none.
func (r *Runner) setRefused(pools []netip.Prefix) {
	r.refused = pools
	r.withdrawn.Store(pools != nil)
}
