package lease

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// A SupersededError means that the store shows another live host as the holder of the subnet that this host has used.
// The caller must withdraw the subnet. It may then call Acquire again, which does not return another SupersededError
// before this host has had a lease again.
type SupersededError struct {
	Subnet netip.Prefix   // this host's until now
	Holder registry.Lease // the other host's
}

func (e *SupersededError) Error() string {
	return fmt.Sprintf("%s is held by another host, %q (%v, node id %s)",
		e.Subnet, e.Holder.Node, e.Holder.PublicIPs, e.Holder.NodeID)
}

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

// supersede records and reports that another live host holds this host's subnet. This host has no lease from then on.
func (k *Keeper) supersede(subnet netip.Prefix, holder registry.Lease) error {
	err := &SupersededError{Subnet: subnet, Holder: holder}
	k.lease.Clear()
	k.condition.setSuperseded(fmt.Sprintf("since %s, %v: this host has withdrawn the subnet and refuses packets of "+
		"its containers", time.Now().UTC().Format(time.RFC3339), err))
	k.report.Log().Error("another host has this host's subnet, withdrawing it",
		"subnet", subnet, "holder", holder.Node, "addresses", holder.PublicIPs, "node_id", holder.NodeID)
	k.report.Event(api.EventLease, api.Critical, fmt.Sprintf("%v: this host has withdrawn it and claims another; "+
		"if the network is full, add slots or remove a host", err),
		map[string]string{"change": "superseded", "subnet": subnet.String(), "holder": holder.Node})
	k.report.Count(telemetry.LeaseLosses, 1)
	k.report.SetState(fmt.Sprintf("superseded: %v", err))
	k.outcome.Set(err)
	return err
}
