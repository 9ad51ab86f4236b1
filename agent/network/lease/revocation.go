package lease

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/registry"
)

// A revoked lease is not taken back: its host must take another subnet. The host remembers the revocation until it
// holds a lease again, across failed attempts and across a restart.

// A revocation holds what is known of the subnet that this host had: that it was revoked, or that its record is gone.
// The goroutine that runs Acquire or Keep owns it.
type revocation struct {
	report   *report.Reporter
	registry registry.Leases
	state    *state.File
	identity func() state.Identity

	revoked *watch.Value[netip.Prefix] // the subnet that was revoked from this host, until it has another
	absent  netip.Prefix               // the subnet this host had, if its record was missing at the last look
}

// lookFor finds out whether the subnet to be claimed again was revoked while this host was not watching it: between two
// processes, during an outage, or after its session had ended. It ignores other errors, because a store that does not
// answer will not grant a claim either. A subnet without a record cannot be revoked, and finding out why a record is
// gone costs more than reading one, so the store is asked only once about such a subnet. lookFor returns the record if
// there is one, and whether it has read it.
func (r *revocation) lookFor(
	ctx context.Context, n registry.Network, subnet netip.Prefix,
) (record registry.Lease, looked bool) {
	if r.subnet().IsValid() || r.absent == subnet || !subnet.IsValid() {
		return registry.Lease{}, false
	}
	record, _, err := r.registry.WatchLease(ctx, n, subnet, 0)
	switch {
	case registry.RevokedFrom(err, r.identity().NodeID):
		r.report.Log().Error("lease was revoked, taking another subnet", "subnet", subnet)
		r.revoke(subnet)
	case errors.Is(err, registry.ErrLeaseNotFound), errors.Is(err, registry.ErrLeaseRevoked):
		r.absent = subnet
	}
	return record, true
}

// revoke records that the subnet was revoked, for this process and the next one.
func (r *revocation) revoke(subnet netip.Prefix) {
	r.revoked.Set(subnet)
	err := r.state.Update(func(before state.Network, _ error) state.Network { // Claim reports a file that is broken
		before.Revoked = subnet
		return before
	})
	if err != nil {
		r.report.Log().Warn("revocation could not be saved to the state file", "subnet", subnet, "error", err)
	}
}

// forget forgets a revocation, because the host holds a lease now.
func (r *revocation) forget(lease registry.Lease) {
	if slices.Contains(lease.Subnets, r.subnet()) {
		r.report.Log().Warn("the revoked subnet is taken again, nothing else is free or it is reserved for this host",
			"subnet", lease.Subnet())
	}
	r.revoked.Clear()
	r.absent = netip.Prefix{}
}

// subnet returns the subnet that was revoked from this host, until it has another. It is safe for concurrent use.
func (r *revocation) subnet() netip.Prefix {
	subnet, _, _ := r.revoked.Get()
	return subnet
}
