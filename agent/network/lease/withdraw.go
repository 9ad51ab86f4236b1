package lease

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// A WithdrawnError means that this host must not use its subnet any more: another live host holds it, or this host
// cannot enter the network's definition with it. The caller must withdraw the subnet. It may then call Acquire again,
// which does not return another WithdrawnError before this host has had a lease again.
type WithdrawnError struct {
	Subnet netip.Prefix // this host's until now
	Reason string
}

func (e *WithdrawnError) Error() string { return e.Reason }

// isAnothers reports whether record, as read from the store, shows that the subnet which a claim is to take back
// belongs to another live host. A record that is older than the claim's does not: it came back when the store was set
// back.
func isAnothers(record registry.Lease, c registry.Claim) bool {
	own := registry.Lease{PublicIPs: c.PublicIPs, Backend: c.Backend}
	return isRemembered(c) && record.Held() && record.Session != c.Session && record.NodeID != c.NodeID &&
		record.ModifyIndex >= c.Since && !registry.SameMachine(record, own)
}

// isRemembered reports whether a claim is for a subnet that this host has used, rather than one that it would like.
func isRemembered(c registry.Claim) bool { return c.Running || c.RecentUse || c.Since != 0 }

// supersede withdraws this host's subnet because another live host holds it.
func (k *Keeper) supersede(subnet netip.Prefix, holder registry.Lease) error {
	return k.Withdraw(subnet, fmt.Sprintf("%s is held by another host, %q (%v, node id %s)",
		subnet, holder.Node, holder.PublicIPs, holder.NodeID), holder.Node)
}

// Withdraw records and reports that this host must not use its subnet, and returns that as a *WithdrawnError. holder is
// the host that has it, "" for none. This host has no lease from then on. Its record stays until the session ends, so
// it usually gets the subnet back.
func (k *Keeper) Withdraw(subnet netip.Prefix, reason, holder string) error {
	err := &WithdrawnError{Subnet: subnet, Reason: reason}
	fields := map[string]string{"change": "withdrawn", "subnet": subnet.String()}
	if holder != "" {
		fields["change"], fields["holder"] = "superseded", holder
	}
	k.lease.Clear()
	k.condition.setWithdrawn(fmt.Sprintf("since %s, %v: this host has withdrawn the subnet and refuses packets of "+
		"its containers", time.Now().UTC().Format(time.RFC3339), err))
	k.report.Log().Error("this host must not use its subnet, withdrawing it", "subnet", subnet, "reason", reason)
	k.report.Event(api.EventLease, api.Critical, fmt.Sprintf("%v: this host has withdrawn it until it has a lease "+
		"again; if the network is full, add slots or remove a host", err), fields)
	k.report.Count(telemetry.LeaseLosses, 1)
	k.report.SetState(fmt.Sprintf("withdrawn: %v", err))
	k.outcome.Set(err)
	return err
}
