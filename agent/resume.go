package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// resumed is the part in a network that an earlier process left during this boot, or this process before a reload,
// until the store has confirmed or refused it.
type resumed struct {
	subnets []netip.Prefix
	as      string                     // ends "10.5.1.0/24 is carried on as", such as "before the reload"
	recall  func() (peers.View, error) // the first call may read the files, which are large in a large network
}

// resume finds the datapath that an earlier process left and resumes it. It is no error if there is none, or not enough
// is known of it.
func (r *runner) resume(ctx context.Context) {
	found, waits := r.before(ctx)
	if found == nil {
		return
	}
	known, err := found.recall()
	if err == nil {
		err = r.carryOn(ctx, known, waits)
	}
	switch {
	case err != nil && waits:
		r.log.Warn("what was carried before waits for the store", "error", err)
		return
	case err != nil:
		r.log.Debug("what was carried before is left alone until the store was read", "error", err)
	}
	r.mu.Lock()
	r.resumed = found
	r.mu.Unlock()
	r.show(func(v *view) { v.local.Subnets = found.subnets })
	r.env.firewall.Resume(r.local.Name)
	unconfirmed := fmt.Sprintf("%s is carried on as %s, the store has not been read yet", found.subnets[0], found.as)
	r.report.Check(health.Network, api.Warning, unconfirmed)
	r.report.Check(health.Lease, api.Warning, unconfirmed)
}

// before returns the part in the network whose datapath exists, or nil, and whether packets wait for this process.
// After a reload the datapath is this process's own, whatever another program may have done to it.
func (r *runner) before(ctx context.Context) (found *resumed, waits bool) {
	if content := r.datapath.Content(); content != nil {
		known := *content
		r.stood = known.Own.Subnet()
		return &resumed{known.Own.Subnets, "before the reload", func() (peers.View, error) { return known, nil }}, true
	}
	before, err := state.Load(r.config.DataDir, r.local.Name)
	if err != nil || len(before.Subnets) == 0 {
		return nil, false // the runner reports an error when it needs a lease
	}
	left, err := r.env.readKernelState(ctx, backend.LinkName(r.local.Name), before.Pools)
	if err != nil {
		r.log.Warn("what an earlier process left cannot be seen", "error", err)
		return nil, false
	}
	stands := left.Standing(before.Subnets)
	if stands == datapath.NothingStands {
		return nil, false
	}
	r.stood = before.Subnets[0]
	switch {
	case slices.Contains(before.Subnets, before.Revoked):
		return nil, false
	case time.Since(before.Renewed) > r.config.Lease.Hold:
		r.log.Warn("what an earlier process left may be another host's by now, it waits for the store", "subnet", before.Subnets[0])
		return nil, false
	}
	return &resumed{before.Subnets, "the process before left it", sync.OnceValues(func() (peers.View, error) {
		return recollect(r.config.DataDir, before, r.env.id.NodeID)
	})}, stands == datapath.PacketsWait
}

// recollect returns the part in a network that the files describe, or an error if they are incomplete or contradict
// each other. It checks them as strictly as records that other hosts write.
func recollect(dataDir string, before state.Network, nodeID string) (peers.View, error) {
	file, err := state.LoadPeers(dataDir, before.Network)
	if err != nil {
		return peers.View{}, fmt.Errorf("remembered peers: %w", err)
	}
	n, err := registry.ParseNetwork(before.Network, file.Definition)
	if err != nil {
		return peers.View{}, fmt.Errorf("remembered definition: %w", err)
	}
	n.CreateIndex = file.Created
	own := registry.Lease{Network: n.Name, NodeID: nodeID, Subnets: before.Subnets}
	if own.Slot, err = n.Plan.Slot(before.Subnets[0]); err != nil {
		return peers.View{}, fmt.Errorf("remembered subnet: %w", err)
	}
	switch {
	case before.Definition != file.Created || !before.Backend.Equal(n.Backend) || !slices.Equal(before.Pools, n.Plan.Prefixes()):
		return peers.View{}, errors.New("the remembered lease is of another definition than the peers")
	case !slices.Equal(before.Subnets, n.Plan.Subnets(own.Slot)):
		return peers.View{}, fmt.Errorf("the remembered subnets %v are not those of slot %d", before.Subnets, own.Slot)
	}
	return peers.View{Network: n, Own: own, Leases: file.ParseLeases(n)}, nil
}

// carryOn builds the backend and keeps the remembered datapath right until the store decides. If packets wait for this
// process, they flow when carryOn returns.
func (r *runner) carryOn(ctx context.Context, found peers.View, packetsWait bool) error {
	kind, config, err := r.datapath.Configure(found.Network)
	if err != nil {
		return err
	}
	if reason := r.env.pools.take(r.local.Name, claimed(found.Network, kind, config.Options)); reason != "" {
		return errors.New(reason)
	}
	if err := r.datapath.Build(kind, config); err != nil {
		r.env.pools.give(r.local.Name)
		return err
	}
	r.datapath.Resume(ctx, &found, packetsWait)
	return nil
}

// flows reports whether packets flow, because a lease is held or an earlier process left a datapath.
func (r *runner) flows() bool {
	_, held, _ := r.lease.Get()
	r.mu.Lock()
	defer r.mu.Unlock()
	return held || r.resumed != nil
}

// carries returns the lease that this host's containers use: the held one, or the one that an earlier process left.
func (r *runner) carries() (registry.Lease, bool) {
	if lease, held, _ := r.lease.Get(); held {
		return lease, true
	}
	known, ok := r.carriedOn()
	if known.Own.Backend.Type == "" {
		known.Own.Backend = known.Network.Backend
	}
	return known.Own, ok
}

// carriedOn returns what an earlier process left, as far as the files describe it, until the store has confirmed or
// refused it.
func (r *runner) carriedOn() (peers.View, bool) {
	r.mu.Lock()
	found := r.resumed
	r.mu.Unlock()
	if found == nil {
		return peers.View{}, false
	}
	known, err := found.recall()
	return known, err == nil
}

// settled records that the store has confirmed or refused the resumed datapath.
func (r *runner) settled() {
	r.mu.Lock()
	before := r.resumed
	r.resumed = nil
	r.mu.Unlock()
	if before == nil {
		return
	}
	lease, _, _ := r.lease.Get()
	r.show(func(v *view) { v.local.Subnets = lease.Subnets }) // also wakes readers, since the peers have changed
}
