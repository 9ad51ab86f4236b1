package network

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/registry"
)

// A host whose subnet belongs to another live host, or that cannot enter the network's definition with it, withdraws
// it: containers can no longer be started with it, and the network's datapath is removed. The kernel refuses packets to
// the network until this host has a lease again. Otherwise its containers would go on sending with another host's
// addresses, and past the overlay.

// A withdrawal makes the kernel refuse packets to a network whose subnet this host has withdrawn.
type withdrawal struct {
	report   *report.Reporter
	state    *state.File
	datapath *datapath.Reconciler
	pools    *watch.Value[[]netip.Prefix] // to which packets are refused; there is no value while no subnet is withdrawn
}

// withdraw stops the use of a subnet. It retries what fails, until ctx ends.
func (r *Runner) withdraw(ctx context.Context, lost *lease.WithdrawnError) {
	r.report.SetReady(false)
	r.resumed.settle()
	r.previous = lost.Subnet
	for _, check := range []string{health.Device, health.Routes, health.Forwarding} {
		r.report.Forget(check)
	}
	before := savedState(r.state)
	n, _, _ := r.definition.inForce.Get()
	old := r.datapath.Pools(before)
	if len(old) == 0 {
		old = r.plan.Prefixes()
	}
	pools := r.withdrawn.begin(n.Backend, old)
	ctx, done := context.WithCancel(ctx)
	defer done()
	_ = r.datapath.KeepRefused(ctx, pools, func(ctx context.Context) error { // ends with ctx
		err := errors.Join(r.file.remove(before.SubnetFile), r.datapath.Remove(ctx, before), r.withdrawn.save())
		if err == nil {
			done()
		}
		return err
	})
}

// isDue reports whether a subnet, which may be none, must be withdrawn if it cannot stay: this host uses it.
func (w *withdrawal) isDue(subnet netip.Prefix) bool { return subnet.IsValid() && !w.isActive() }

// isActive reports whether the subnet is withdrawn. It is safe for concurrent use.
func (w *withdrawal) isActive() bool {
	_, active, _ := w.pools.Get()
	return active
}

// begin records that the subnet is withdrawn, and returns the pools to which the kernel can refuse packets. There are
// none with the backend alloc, where the routes are another program's.
func (w *withdrawal) begin(b registry.Backend, pools []netip.Prefix) []netip.Prefix {
	if b.Type == "alloc" {
		pools = nil
	}
	w.pools.Set(pools)
	return pools
}

// save records for the next process that the subnet is withdrawn. It does nothing if the state file has none.
func (w *withdrawal) save() error {
	if before, err := w.state.Load(); err != nil || len(before.Subnets) == 0 {
		return nil
	}
	return w.state.Update(func(before state.Network, _ error) state.Network {
		before.Superseded = true
		return before
	})
}

// recall goes on refusing packets if an earlier process has withdrawn the subnet.
func (w *withdrawal) recall(ctx context.Context) {
	before, err := w.state.Load()
	if err != nil || !before.Superseded {
		return
	}
	if err := w.datapath.Refuse(ctx, w.begin(before.Backend, before.Pools), true); err != nil {
		w.report.Log().Error("packets with another host's addresses may leave until this host has a subnet", "error", err)
	}
}

// guard makes the kernel refuse packets to the network as long as this host must not send any: for want of encryption,
// or because its subnet is withdrawn. Then it leaves out what other networks of this host use.
func (w *withdrawal) guard(ctx context.Context, n registry.Network, others []netip.Prefix) error {
	refused, active, _ := w.pools.Get()
	if !active {
		return w.datapath.Guard(ctx, n)
	}
	if n.Backend.Type != "alloc" {
		refused = slices.Clone(refused)
		for _, pool := range n.Plan.Prefixes() {
			refused = append(refused, slices.DeleteFunc(subtract(pool, others), func(part netip.Prefix) bool {
				return slices.Contains(refused, part)
			})...)
		}
	}
	w.pools.Set(refused)
	return w.datapath.Refuse(ctx, refused, true)
}

// keep keeps packets to the network refused until stop is called, if this host's subnet is withdrawn.
func (w *withdrawal) keep(ctx context.Context) (stop func()) {
	pools, active, _ := w.pools.Get()
	if !active {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var keeper sync.WaitGroup
	keeper.Go(func() { _ = w.datapath.KeepRefused(ctx, pools, nil) }) // ends with ctx
	return func() {
		cancel()
		keeper.Wait()
	}
}

// end ends the refusal of packets to n, because this host has another subnet or leaves the network. It stays for a
// network that requires encryption.
func (w *withdrawal) end(ctx context.Context, n registry.Network) error {
	pools, _, _ := w.pools.Get()
	if len(pools) > 0 && n.Encryption == "" {
		if err := w.datapath.Refuse(ctx, pools, false); err != nil {
			return err
		}
	}
	w.pools.Clear()
	return nil
}
