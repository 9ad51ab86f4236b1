package lease

import (
	"errors"
	"io/fs"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/clock"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
)

// Attributes are what other hosts need to know of this one.
type Attributes struct {
	PublicIPs []netip.Addr // underlay addresses, the first is the lease's public_ip
	MTU       int          // of the overlay, in bytes
	Backend   registry.Backend
}

// Claim returns this host's claim, which is complete from the first write. It names what this host holds, which it is
// using, or, before the first lease of this process, what the state file says. A state file that cannot be used is set
// aside.
func (k *Keeper) Claim(n registry.Network, a Attributes) registry.Claim {
	id := k.o.Identity()
	c := registry.Claim{
		Node:      id.Node,
		NodeID:    id.NodeID,
		PublicIPs: a.PublicIPs,
		MTU:       a.MTU,
		Backend:   a.Backend,
		TTL:       k.o.Settings.TTL,
		Hold:      k.o.Settings.Hold,
	}
	if lease, held, _ := k.lease.Get(); held {
		c = takeBack(c, lease)
	} else {
		k.addPrevious(n, &c)
	}
	return c
}

// addPrevious adds to a claim what this host held before, from the state file: the session, the subnet, whether it was
// held recently, and the version of its record unless the network was created again since then. If the state file has
// no subnet, the subnet comes from the subnet file, or else from the time before this host left the network. A subnet
// that was withdrawn counts as one that this host never had.
func (k *Keeper) addPrevious(n registry.Network, c *registry.Claim) {
	before, err := k.o.State.Load()
	switch unread := (*fs.PathError)(nil); {
	case errors.As(err, &unread):
		k.report.Log().Warn("starting without the state file, it cannot be read", "error", err)
	case err != nil:
		k.report.Log().Warn("starting without the state file, moved to .bad",
			"error", errors.Join(err, k.o.State.SetAside()))
	}
	if before.Revoked.IsValid() {
		k.revocation.revoked.Set(before.Revoked)
	}
	c.Session = before.Session
	if len(before.Subnets) == 0 {
		if c.Prefer = state.SubnetInFile(k.o.SubnetFile); !c.Prefer.IsValid() {
			c.Prefer = k.o.Former.Subnet(n.Name)
		}
		return
	}
	c.Prefer = before.Subnets[0]
	if before.Refused != nil {
		return
	}
	c.RecentUse = clock.IsWithin(before.Renewed, c.Hold)
	if before.Definition == n.CreateIndex {
		c.Since = before.Lease
	}
}

// outgrown returns the subnet if it is in the plan but outside the range for leases, otherwise the zero prefix. A host
// must not keep such a subnet unless it is reserved for it.
func outgrown(plan registry.Plan, subnet netip.Prefix) netip.Prefix {
	if slot, err := plan.Slot(subnet); err != nil || plan.InRange(slot) {
		return netip.Prefix{}
	}
	return subnet
}

// isSlotOf reports whether the lease's subnets are those of a slot of the plan. Only the address families that both
// have are compared: leases stay valid when a plan gains or loses IPv6.
func isSlotOf(plan registry.Plan, l registry.Lease) bool {
	slot, err := plan.Slot(l.Subnet())
	if err != nil {
		return false
	}
	whole := plan.Subnets(slot)
	both := min(len(l.Subnets), len(whole))
	return slices.Equal(whole[:both], l.Subnets[:both])
}

// isPartOf reports whether the lease's subnets are those of a slot of the plan, whichever family has the first pool.
func isPartOf(plan registry.Plan, l registry.Lease) bool {
	plan = slices.DeleteFunc(slices.Clone(plan), func(pool registry.Pool) bool {
		isSame := func(s netip.Prefix) bool { return s.Addr().Is4() == pool.Prefix.Addr().Is4() }
		return !slices.ContainsFunc(l.Subnets, isSame)
	})
	return len(plan) > 0 && isSlotOf(plan, l)
}

// Adopt makes the held lease one of another plan, if its subnets are those of a slot of that. It reports whether they
// are.
func (k *Keeper) Adopt(plan registry.Plan) (lease registry.Lease, isSlot bool) {
	lease, held, _ := k.lease.Get()
	if !held || !isSlotOf(plan, lease) {
		return lease, false
	}
	before := lease
	lease.Slot, _ = plan.Slot(lease.Subnet())
	lease.Subnets = lease.Subnets[:min(len(lease.Subnets), len(plan))]
	if !reflect.DeepEqual(lease, before) {
		k.lease.Set(lease)
	}
	return lease, true
}

// storeLoss is what is known of the last time that the store has lost the network.
type storeLoss struct {
	at     time.Time // when it was seen, zero for never
	leases int       // how many there were before, 0 if that is not known
}

// NoteLoss records that the store has lost the network's definition or its last change, and probably leases with it.
// Claims then give other hosts time to claim their subnets again. leases is how many there were before, 0 if that is
// not known.
func (k *Keeper) NoteLoss(leases int) { k.loss.Set(storeLoss{time.Now(), leases}) }
