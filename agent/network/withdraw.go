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
	// refused are the pools to which packets are refused: those of each definition since the subnet was withdrawn. There
	// is no value while no subnet is withdrawn.
	refused *watch.Value[[]netip.Prefix]
}

// withdraw stops the use of a subnet. It retries what fails, until ctx ends.
func (r *Runner) withdraw(ctx context.Context, lost *lease.WithdrawnError) {
	r.datapath.StopResumed() // with start_from_saved, a pass that has begun would write the subnet file again
	r.report.SetReady(false)
	r.resumed.settle()
	r.previous = lost.Subnet
	r.report.Forget(health.Device, health.Routes, health.Forwarding)
	before := savedState(r.state)
	kind, pools := r.datapath.Carried(before)
	if len(pools) == 0 {
		n, _, _ := r.definition.inForce.Get()
		kind, pools = n.Backend.Type, r.plan.Prefixes()
	}
	refused := r.withdrawn.add(refusable(kind, pools))
	ctx, done := context.WithCancel(ctx)
	defer done()
	_ = r.datapath.KeepRefused(ctx, refused, func(ctx context.Context) error { // ends with ctx
		fileErr, left := r.file.remove(before.SubnetFile), r.datapath.Remove(ctx, before, refused)
		err := errors.Join(fileErr, left, r.withdrawn.save(left == nil))
		if err == nil {
			done()
		}
		return err
	})
}

// refusable returns those of the pools that a backend carries to which the kernel can refuse packets. There are none
// with the backend alloc, where the routes are another program's.
func refusable(backend string, pools []netip.Prefix) []netip.Prefix {
	if backend == "alloc" {
		return nil
	}
	return pools
}

// isDue reports whether a subnet, which may be none, must be withdrawn if it cannot stay: this host uses it.
func (w *withdrawal) isDue(subnet netip.Prefix) bool { return subnet.IsValid() && !w.isActive() }

// isActive reports whether the subnet is withdrawn. It is safe for concurrent use.
func (w *withdrawal) isActive() bool { return w.saved() != nil }

// saved returns the pools to which packets are refused, as the state file has them: nil if no subnet is withdrawn. It
// is safe for concurrent use.
func (w *withdrawal) saved() []netip.Prefix {
	refused, _, _ := w.refused.Get()
	return refused
}

// add adds pools to those to which packets are refused, and returns all of them. The subnet is withdrawn from then on.
func (w *withdrawal) add(pools []netip.Prefix) []netip.Prefix {
	refused := append(append([]netip.Prefix{}, w.saved()...), pools...)
	slices.SortFunc(refused, netip.Prefix.Compare)
	refused = slices.Compact(refused)
	w.refused.Set(refused)
	return refused
}

// save records the withdrawal for the next process, and that of the datapath if that is removed: another network may
// use its pools from now on. It does nothing if the state file has no subnet.
func (w *withdrawal) save(removed bool) error {
	if before, err := w.state.Load(); err != nil || len(before.Subnets) == 0 {
		return nil
	}
	return w.state.Update(func(before state.Network, _ error) state.Network {
		if before.Refused = w.saved(); removed {
			before.Pools = nil
		}
		return before
	})
}

// recall goes on refusing packets if an earlier process has withdrawn the subnet.
func (w *withdrawal) recall(ctx context.Context) {
	before, err := w.state.Load()
	if err != nil || before.Refused == nil {
		return
	}
	if err := w.datapath.Refuse(ctx, w.add(before.Refused)); err != nil {
		w.report.Log().Error("packets with another host's addresses may leave until this host has a subnet", "error", err)
	}
}

// guard refuses packets to the network while this host must not send any: for want of encryption or of a subnet.
// Otherwise it ends what an earlier definition or network may have left for these pools; failing to do so is no error.
func (w *withdrawal) guard(ctx context.Context, n registry.Network) error {
	if w.isActive() {
		refused := w.add(refusable(n.Backend.Type, n.Plan.Prefixes()))
		return errors.Join(w.save(false), w.datapath.Refuse(ctx, refused))
	}
	err := w.datapath.Guard(ctx, n)
	if err != nil && n.Encryption == "" {
		w.report.Log().Debug("there may be a guard of an earlier definition", "error", err)
		return nil
	}
	return err
}

// keep keeps packets to the network refused until stop is called, if this host's subnet is withdrawn.
func (w *withdrawal) keep(ctx context.Context) (stop func()) {
	refused := w.saved()
	if refused == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var keeper sync.WaitGroup
	keeper.Go(func() { _ = w.datapath.KeepRefused(ctx, refused, nil) }) // ends with ctx
	return func() {
		cancel()
		keeper.Wait()
	}
}

// end ends the refusal of packets, because this host has another subnet or leaves the network. Present are the pools
// that the network has now. The refusal stays for a network that requires encryption, which is guarded.
func (w *withdrawal) end(ctx context.Context, present []netip.Prefix, guarded bool) error {
	refused := w.saved()
	if refused == nil {
		return nil
	}
	if err := w.datapath.EndRefusal(ctx, refused, present, guarded); err != nil {
		return err
	}
	w.refused.Clear()
	return nil
}
