package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// A revoked lease is not taken back: its host must take another subnet. The host remembers the revocation until it
// holds a lease again, across failed attempts and across a restart.

// lost logs and reports the loss of a lease. The caller then takes it back, or takes another one if it was revoked.
func (r *runner) lost(lease registry.Lease, reason string) {
	if r.revokedSubnet() == lease.Subnet() {
		r.log.Error("lease was revoked, taking another subnet", "subnet", lease.Subnet())
		r.report.Event(api.EventLease, api.Critical, fmt.Sprintf("%s was revoked, taking another subnet", lease.Subnet()),
			map[string]string{"change": "revoked", "subnet": lease.Subnet().String()})
		r.troubled(fmt.Sprintf("%s was revoked, taking another subnet", lease.Subnet()))
		return
	}
	r.log.Warn("lease was lost, taking it back", "subnet", lease.Subnet(), "reason", reason)
	r.report.Event(api.EventLease, api.Warning, fmt.Sprintf("%s was lost, taking it back: %s", lease.Subnet(), reason),
		map[string]string{"change": "lost", "subnet": lease.Subnet().String()})
	r.troubled(fmt.Sprintf("%s was lost (%s), taking it back", lease.Subnet(), reason))
}

// lookForRevocation finds out whether the subnet to be claimed again was revoked while this host was not watching it:
// between two processes, during an outage, or after its session had ended. It ignores other errors, because a store
// that does not answer will not grant a claim either. A subnet without a record cannot be revoked, and finding out why
// a record is gone costs more than reading one, so the store is asked only once about such a subnet.
func (r *runner) lookForRevocation(ctx context.Context, n registry.Network, subnet netip.Prefix) {
	r.mu.Lock()
	known := r.revoked.IsValid() || r.absent == subnet
	r.mu.Unlock()
	if known || !subnet.IsValid() {
		return
	}
	switch _, _, err := r.env.registry.WatchLease(ctx, n, subnet, 0); {
	case registry.RevokedFrom(err, r.env.id.NodeID):
		r.log.Error("lease was revoked, taking another subnet", "subnet", subnet)
		r.revoke(subnet)
	case errors.Is(err, registry.ErrLeaseNotFound), errors.Is(err, registry.ErrLeaseRevoked):
		r.gone(subnet)
	}
}

// gone records that the store has no record for the subnet.
func (r *runner) gone(subnet netip.Prefix) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.absent = subnet
}

// revoke records that the subnet was revoked, for this process and the next one.
func (r *runner) revoke(subnet netip.Prefix) {
	r.setRevoked(subnet)
	r.saving.Lock()
	defer r.saving.Unlock()
	before, err := state.Load(r.config.DataDir, r.local.Name)
	if err != nil {
		before = state.Network{} // the runner reports the error when it needs a lease
	}
	before.Network, before.Revoked = r.local.Name, subnet
	if err := state.Save(r.config.DataDir, before); err != nil {
		r.log.Warn("state file does not know of the revocation", "subnet", subnet, "error", err)
	}
}

// heldAgain forgets a revocation, because the host holds a lease now.
func (r *runner) heldAgain(lease registry.Lease) {
	if slices.Contains(lease.Subnets, r.revokedSubnet()) {
		r.log.Warn("the revoked subnet is taken again, nothing else is free or it is reserved for this host", "subnet", lease.Subnet())
	}
	r.setRevoked(netip.Prefix{})
	r.gone(netip.Prefix{})
}

func (r *runner) setRevoked(subnet netip.Prefix) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revoked = subnet
}

func (r *runner) revokedSubnet() netip.Prefix {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.revoked
}
