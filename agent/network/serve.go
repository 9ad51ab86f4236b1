package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/rules"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/flannel"
)

// serve does what this host's containers need besides the datapath: the subnet file, the saved lease and the firewall
// rules. It does each part even if another one fails. The network is ready if the datapath was applied and containers
// can be started. They need not wait for the saved lease, which only the next process needs and which is tried again.
func (r *Runner) serve(ctx context.Context, v *peers.View, s backend.State, applied bool) error {
	n := v.Network
	r.lease.SetLimit(limitOf(v))
	fileErr := r.file.write(state.FormatSubnetFile(n.Plan, s.Subnets, s.MTU, r.local.IPMasq), v.Own.Subnet(), s.MTU)
	r.file.reportResult(fileErr)
	var refusalErr error
	if applied {
		refusalErr = r.withdrawn.end(ctx, n.Plan.Prefixes(), n.Encryption != "")
	}
	saveErr := r.save(n, v.Own)
	r.report.Written(report.LeaseFile, saveErr)
	rulesErr := errors.Join(refusalErr, r.protect(ctx, n, s))
	if applied && fileErr == nil && rulesErr == nil {
		r.report.SetReady(true)
		r.report.SetState("running")
		r.definition.update(func(s *definitionStatus) { s.applied = n.ModifyIndex })
	}
	return errors.Join(fileErr, saveErr, rulesErr)
}

// limitOf returns why hosts with flannel cannot use this host's lease, "" if they can or there are none.
func limitOf(v *peers.View) string {
	isFlannel := func(l registry.Lease) bool { return l.Foreign && l.Backend.Type == v.Own.Backend.Type }
	if !slices.ContainsFunc(v.Leases, isFlannel) {
		return ""
	}
	return flannel.WhyIgnored(v.Own)
}

// serveSaved does what this host's containers need before the store has confirmed the saved lease, which stays saved as
// it is: it has not been renewed. Containers can be started although they may not reach other hosts yet. Without
// lease.start_from_saved, they wait.
func (r *Runner) serveSaved(ctx context.Context, v *peers.View, s backend.State) error {
	if !r.config.Lease.StartFromSaved {
		return nil
	}
	if s.MTU == 0 {
		return errors.New("the MTU for the subnet file is not known without an underlay")
	}
	fileErr := r.file.write(state.FormatSubnetFile(v.Network.Plan, s.Subnets, s.MTU, r.local.IPMasq), v.Own.Subnet(),
		s.MTU)
	r.file.reportResult(fileErr)
	rulesErr := r.protect(ctx, v.Network, s)
	if fileErr == nil && rulesErr == nil {
		r.report.SetReady(true)
	}
	return errors.Join(fileErr, rulesErr)
}

// protect puts the rules into force that this host's block asks for. Package rules updates their health check.
func (r *Runner) protect(ctx context.Context, n registry.Network, s backend.State) error {
	if n.Backend.Type == "alloc" { // there is no datapath, and so nothing to forward
		r.deps.Rules.Foreign.Drop(n.Name)
		return r.deps.Rules.Keeper.Drop(ctx, n.Name)
	}
	wishes := rules.Wishes(r.deps.Datapaths.Backends, r.local, rules.Carried{
		Pools:    n.Plan.Prefixes(),
		Subnets:  s.Subnets,
		Carriage: n.Carriage(),
		Underlay: s.Underlay,
		Peers:    r.datapath.Status().Report.Endpoints,
	})
	err := r.deps.Rules.Keeper.Put(ctx, wishes)
	r.deps.Rules.Foreign.Put(overlayPath(n, wishes, s))
	return err
}

// overlayPath returns how a network's packets pass through this host.
func overlayPath(n registry.Network, wishes firewall.Network, s backend.State) foreign.OverlayPath {
	links := kernel.Arrivals(n.Name, s.Underlay.Interface, n.Carriage().Objects()...)
	return foreign.OverlayPath{Network: wishes, Links: links}
}

// save saves the lease for the next process. If a lease is held now, it saves that one, since the given lease was read
// earlier.
func (r *Runner) save(n registry.Network, lease registry.Lease) error {
	record, err := registry.FormatNetwork(n)
	if err != nil {
		return fmt.Errorf("write the definition down: %w", err)
	}
	var before, now state.Network
	err = r.state.Update(func(was state.Network, loadErr error) state.Network {
		if held, ok, _ := r.lease.Lease().Get(); ok {
			lease = held
		}
		status, datapath := r.lease.Status(), r.datapath.Status()
		before, now = was, state.Network{
			Version:      registry.Version,
			Network:      n.Name,
			NodeID:       lease.NodeID,
			Subnets:      lease.Subnets,
			Session:      lease.Session,
			Store:        r.config.StoreLocation(),
			Lease:        lease.ModifyIndex,
			LeaseCreated: lease.CreateIndex,
			Definition:   n.CreateIndex,
			Record:       record,
			RecordIndex:  n.ModifyIndex,
			Renewed:      status.Renewed,
			Revoked:      status.Revoked,
			Refused:      r.withdrawn.saved(),
			MTU:          lease.MTU,
			SubnetFile:   r.local.SubnetFile,
			Pools:        n.Plan.Prefixes(),
			Carriage:     n.Carriage(),
			Underlay:     datapath.Underlay.Interface,
			Addresses:    datapath.Underlay.Addresses,
			Devices:      datapath.Devices,
			Endpoints:    datapath.Report.Endpoints,
		}
		if now.Renewed.IsZero() {
			now.Renewed = time.Now() // the lease has just been acquired
		}
		now.Renewed = now.Renewed.UTC().Truncate(time.Second)
		if loadErr != nil {
			return now
		}
		since := now.Renewed.Sub(before.Renewed) // negative after the clock was set back
		if before.Session == now.Session && since >= 0 && since < r.config.Lease.Hold/10 {
			now.Renewed = before.Renewed // too little has changed for a write
		}
		if before.SubnetFile != "" && !r.file.isWritten() {
			now.SubnetFile = before.SubnetFile // the old file stays until there is a new one
		}
		return now
	})
	if err != nil {
		return err
	}
	if now.SubnetFile != before.SubnetFile {
		r.file.removeAt(before.SubnetFile)
	}
	if before.Network == "" { // the first lease since this host joined
		return r.deps.Former.Drop(n.Name)
	}
	return nil
}
