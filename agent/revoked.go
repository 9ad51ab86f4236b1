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

// A lease that somebody revoked is not taken back: its host is to have another
// subnet. What was revoked is remembered until the host holds a lease again,
// over attempts that fail and over the end of the process.

// lost says that the lease is not ours any more, and what follows.
func (r *runner) lost(lease registry.Lease, reason string) {
	if r.revokedSubnet() == lease.Subnet() {
		r.log.Error("lease was revoked, taking another subnet", "subnet", lease.Subnet())
		r.event(api.EventLease, api.Critical, fmt.Sprintf("%s was revoked, taking another subnet", lease.Subnet()),
			map[string]string{"change": "revoked", "subnet": lease.Subnet().String()})
		r.troubled(fmt.Sprintf("%s was revoked, taking another subnet", lease.Subnet()))
		return
	}
	r.log.Warn("lease was lost, taking it back", "subnet", lease.Subnet(), "reason", reason)
	r.event(api.EventLease, api.Warning, fmt.Sprintf("%s was lost, taking it back: %s", lease.Subnet(), reason),
		map[string]string{"change": "lost", "subnet": lease.Subnet().String()})
	r.troubled(fmt.Sprintf("%s was lost (%s), taking it back", lease.Subnet(), reason))
}

// lookForRevocation finds out whether the subnet that is to be claimed again was
// revoked while nobody here watched it: between two processes, in an outage, or
// after its session had ended. A store that does not answer will not grant a
// claim either, so errors are not this one's to tell. What has no record cannot
// be revoked, and to find out how a record went costs more than to read one: it
// is asked once.
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

// gone notes that no record stands on the subnet.
func (r *runner) gone(subnet netip.Prefix) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.absent = subnet
}

// revoke remembers that the subnet was revoked, here and for the next process.
func (r *runner) revoke(subnet netip.Prefix) {
	r.setRevoked(subnet)
	r.saving.Lock()
	defer r.saving.Unlock()
	before, err := state.Load(r.config.DataDir, r.local.Name)
	if err != nil {
		before = state.Network{} // reported where the lease needs it
	}
	before.Network, before.Revoked = r.local.Name, subnet
	if err := state.Save(r.config.DataDir, before); err != nil {
		r.log.Warn("state file does not know of the revocation", "subnet", subnet, "error", err)
	}
}

// heldAgain forgets a revocation, now that the host holds lease.
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
