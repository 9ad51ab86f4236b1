package network

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/agent/clock"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// resumed is the part in a network that an earlier process left during this boot, or this process before a reload,
// until the store has confirmed or refused it. With lease.start_from_saved, it may be from before the boot.
type resumed struct {
	subnets []netip.Prefix
	renewed time.Time                  // when its lease was last renewed, zero if that is not known
	as      string                     // ends "10.5.1.0/24 stays in use as", such as "before the reload"
	load    func() (peers.View, error) // the first call may read the files, which are large in a large network
}

// A resumption holds the resumed datapath until the store has confirmed or refused it. It is safe for concurrent use.
type resumption struct {
	report *report.Reporter
	found  *watch.Value[*resumed]
}

// begin records that a datapath is resumed.
func (p *resumption) begin(found *resumed) {
	p.found.Set(found)
	p.report.Changed()
}

// settle records that the store has confirmed or refused the resumed datapath.
func (p *resumption) settle() {
	if p.get() != nil {
		p.found.Clear()
		p.report.Changed()
	}
}

// get returns the resumed datapath, or nil if there is none.
func (p *resumption) get() *resumed {
	found, _, _ := p.found.Get()
	return found
}

// inUse returns the subnet of the resumed datapath.
func (p *resumption) inUse() lease.Resumed {
	found := p.get()
	if found == nil {
		return lease.Resumed{}
	}
	return lease.Resumed{Subnet: found.subnets[0], As: found.as, Renewed: found.renewed}
}

// resume resumes the datapath that an earlier process left, if there is one and enough is known of it.
func (r *Runner) resume(ctx context.Context) {
	found, waits := r.findResumable(ctx)
	if found == nil {
		return
	}
	known, err := found.load()
	if err == nil {
		err = r.startResumed(ctx, known, waits)
	}
	switch {
	case err != nil && waits:
		r.report.Log().Warn("the previous datapath waits for the store", "error", err)
		return
	case err != nil:
		r.report.Log().Debug("the previous datapath is kept until the store is read", "error", err)
	}
	r.resumed.begin(found)
	r.deps.Rules.Keeper.Resume(r.local.Name)
	r.report.Check(health.Network, api.Warning,
		fmt.Sprintf("%s stays in use as %s; the store has not been read yet", found.subnets[0], found.as))
}

// findResumable returns the part in the network whose datapath exists, or nil, and whether packets wait for this
// process. After a reload the datapath is this process's own, whatever another program may have done to it.
func (r *Runner) findResumable(ctx context.Context) (found *resumed, waits bool) {
	before, err := r.state.Load()
	if content := r.datapath.Content(); content != nil {
		known := *content
		r.previous = known.Own.Subnet()
		load := func() (peers.View, error) { return known, nil }
		return &resumed{known.Own.Subnets, before.Renewed, "before the reload", load}, true
	}
	if err != nil || len(before.Subnets) == 0 {
		return nil, false // the runner reports an error when it needs a lease
	}
	if before.Refused != nil {
		r.previous = before.Subnets[0]
		return nil, false
	}
	var left []datapath.KernelState // of each device
	for _, link := range carriage.Of(before.Carriage).Links(r.local.Name) {
		state, err := r.deps.ReadKernelState(ctx, link, before.Pools)
		if err != nil {
			r.report.Log().Warn("the datapath of the previous process cannot be read", "error", err)
			r.previous = before.Subnets[0] // it may be in use
			return nil, false
		}
		left = append(left, state)
	}
	stands := datapath.StandingOf(before.Subnets, left...)
	if stands == datapath.NothingStands && !r.config.Lease.StartFromSaved {
		return nil, false
	}
	r.previous = before.Subnets[0]
	switch {
	case slices.Contains(before.Subnets, before.Revoked):
		return nil, false
	case !clock.IsWithin(before.Renewed, r.config.Lease.Hold):
		r.report.Log().Warn("the previous subnet may belong to another host by now, or the clock was set back; "+
			"its datapath waits for the store", "subnet", before.Subnets[0], "renewed", before.Renewed)
		return nil, false
	}
	as, waits := "the previous process left it", stands == datapath.PacketsWait
	if stands == datapath.NothingStands {
		as, waits = "this host has saved it", true
	}
	return &resumed{before.Subnets, before.Renewed, as, sync.OnceValues(func() (peers.View, error) {
		return peers.Load(r.config.DataDir, before, r.deps.Identity.NodeID())
	})}, waits
}

// startResumed builds the backend and keeps the remembered datapath right until the store decides. If packets wait for
// this process, they flow when startResumed returns.
func (r *Runner) startResumed(ctx context.Context, found peers.View, packetsWait bool) error {
	if err := definition.CheckEncryption(found.Network, r.deps.Datapaths.Backends); err != nil {
		return err
	}
	backends, config, err := r.datapath.Configure(found.Network.Carriage(), found.Network.Plan.Prefixes())
	if err != nil {
		return err
	}
	mine := hostClaim{found.Network.Plan.Prefixes(), backends.Ports(r.deps.Datapaths.Backends)}
	if err := r.deps.Claims.take(r.local.Name, mine); err != nil {
		return err
	}
	if err := r.datapath.Build(backends, config); err != nil {
		r.deps.Claims.release(r.local.Name)
		return err
	}
	r.datapath.Resume(ctx, &found, packetsWait)
	return nil
}

// flows reports whether packets flow, because a lease is held or an earlier process left a datapath.
func (r *Runner) flows() bool {
	_, held, _ := r.lease.Lease().Get()
	return (held || r.resumed.get() != nil) && !r.withdrawn.isActive()
}

// Carries returns the lease that this host's containers use: the held one, or the one that an earlier process left.
func (r *Runner) Carries() (registry.Lease, bool) {
	if lease, held, _ := r.lease.Lease().Get(); held {
		return lease, true
	}
	known, ok := r.Resumed()
	if known.Own.Backend.Type == "" {
		known.Own.Backend = known.Network.Backend
	}
	return known.Own, ok
}

// Resumed returns what an earlier process left, as far as the files describe it, until the store has confirmed or
// refused it.
func (r *Runner) Resumed() (peers.View, bool) {
	found := r.resumed.get()
	if found == nil {
		return peers.View{}, false
	}
	known, err := found.load()
	return known, err == nil
}

// previousUnderlay returns the underlay of an earlier process, with the addresses of the other hosts as far as the
// files have them.
func (r *Runner) previousUnderlay() datapath.Previous {
	before, err := r.state.Load()
	if err != nil || before.Underlay == "" {
		return datapath.Previous{}
	}
	out := datapath.Previous{Interface: before.Underlay, Addrs: before.Addresses}
	if known, err := peers.Load(r.config.DataDir, before, r.deps.Identity.NodeID()); err == nil {
		for _, l := range known.Leases {
			out.Peers = append(out.Peers, l.PublicIPs...)
		}
	}
	return out
}

// rememberedLeases returns the leases that a resumed datapath is made from, including this host's own as far as it is
// known. It returns false if no datapath was resumed.
func (r *Runner) rememberedLeases() (peers.Snapshot, bool) {
	before, ok := r.Resumed()
	if !ok {
		return peers.Snapshot{}, false
	}
	own, status := before.Own, r.datapath.Status()
	own.Node, own.PublicIPs, own.MTU = r.config.NodeName, status.Underlay.Addresses, status.MTU
	own.Backend = before.Network.Backend
	own.Session = registry.UnknownSession // the lease was held when the previous process ended
	if r.deps.Identity.IsSettled() {
		own.Node = r.deps.Identity.Get().Node
	}
	leases := append(slices.Clone(before.Leases), own)
	slices.SortFunc(leases, func(a, b registry.Lease) int { return cmp.Compare(a.Slot, b.Slot) })
	return peers.Snapshot{Set: registry.LeaseSet{Leases: leases}}, true
}
