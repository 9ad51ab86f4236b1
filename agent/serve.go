package agent

import (
	"bytes"
	"context"
	"errors"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// serve does for the containers of this host what is not the backend's, each part
// of it whatever becomes of the others. usable says that containers can be
// started: what could not be written down for the next process is tried again,
// and they need not wait for that.
func (r *runner) serve(ctx context.Context, n registry.Network, lease registry.Lease, s backend.State) (usable bool, err error) {
	fileErr := r.writeSubnetFile(n, lease, s)
	if fileErr != nil {
		r.failing(checkSubnetFile, api.Critical, advice.SubnetFile, fileErr)
	} else {
		r.mended(checkSubnetFile)
		r.check(checkSubnetFile, api.Passing, r.local.SubnetFile+" is written")
	}
	saveErr := r.save(n, lease)
	r.writtenDown(wroteLease, saveErr)
	rulesErr := r.protect(ctx, n, s)
	return fileErr == nil && rulesErr == nil, errors.Join(fileErr, saveErr, rulesErr)
}

// protect has the firewall as this host's block asks; what it says in health is
// the keeper's.
func (r *runner) protect(ctx context.Context, n registry.Network, s backend.State) error {
	if n.Backend.Type == "alloc" {
		return nil // no datapath, nothing to forward
	}
	wishes := firewallNetwork(r.local, n.Plan.Prefixes(), s.Subnets)
	err := r.env.firewall.put(ctx, wishes)
	r.env.foreign.put(crossing(n, wishes, s))
	if err != nil && !dispensable(wishes, err) {
		return err
	}
	return nil
}

// writeSubnetFile writes it where it differs from what it should say.
func (r *runner) writeSubnetFile(n registry.Network, lease registry.Lease, s backend.State) error {
	want := subnetFile(n.Plan, s.Subnets, s.MTU, r.local.IPMasq)
	have, err := os.ReadFile(r.local.SubnetFile)
	if err == nil && bytes.Equal(have, want) {
		return nil
	}
	if err := writeFileAtomic(r.local.SubnetFile, want, 0o644); err != nil {
		return err
	}
	level := hclog.Info
	if err == nil && bytes.Equal(withoutMTU(have), withoutMTU(want)) {
		level = hclog.Debug // the underlay changed, which has been told
	}
	r.log.Log(level, "subnet file written", "path", r.local.SubnetFile, "subnet", lease.Subnet(), "mtu", s.MTU)
	return nil
}

// save remembers the lease for the next process.
func (r *runner) save(n registry.Network, lease registry.Lease) error {
	r.saving.Lock()
	defer r.saving.Unlock()
	now := saved{Version: registry.Version, Network: n.Name, NodeID: lease.NodeID, Subnets: lease.Subnets, Session: lease.Session,
		Lease: lease.ModifyIndex, Definition: n.CreateIndex, Revoked: r.revokedSubnet(), SubnetFile: r.local.SubnetFile, Pools: n.Plan.Prefixes(), Backend: n.Backend}
	renewed := r.shown().local.Renewed
	if renewed.IsZero() {
		renewed = time.Now() // it has just been acquired
	}
	now.Renewed = renewed.UTC().Truncate(time.Second)
	before, err := loadSaved(r.config.DataDir, n.Name)
	if err == nil {
		if before.Session == now.Session && now.Renewed.Sub(before.Renewed) < r.config.Lease.Hold/10 {
			now.Renewed = before.Renewed // not worth a write
		}
		if reflect.DeepEqual(before, now) {
			return nil
		}
	}
	if err := storeSaved(r.config.DataDir, now); err != nil {
		return err
	}
	r.dropSubnetFile(before.SubnetFile)
	return nil
}

// dropSubnetFile removes the file of a process before that was told to write it
// elsewhere: who reads it would go on with what is not true any more.
func (r *runner) dropSubnetFile(path string) {
	if path == "" || slices.ContainsFunc(r.config.Networks, func(n config.Network) bool { return n.SubnetFile == path }) || r.local.SubnetFile == path {
		return
	}
	if data, err := os.ReadFile(path); err != nil || !isSubnetFile(data) {
		return
	}
	if err := os.Remove(path); err != nil {
		r.log.Warn("old subnet file stays", "path", path, "error", err)
		return
	}
	r.log.Info("old subnet file removed", "path", path)
}
