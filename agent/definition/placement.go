package definition

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// outOfRange is the reason against a slot that is outside the new range.
const outOfRange = "is outside the new range"

// A placement is what becomes of a host's subnets in a new plan.
type placement struct {
	reason             string // why the host cannot keep its slot, "" if it can
	renamed            bool   // the first subnet of the slot changes
	kept, lost, gained []netip.Prefix
}

// place compares the subnets of a lease with those of its slot in a plan. A lease may lack a family of its slot, or
// have one that the plan removes.
func place(l registry.Lease, plan registry.Plan) (p placement) {
	slot, err := plan.Slot(l.Subnet())
	if err != nil {
		return placement{reason: "is no subnet of the new pools", lost: l.Subnets}
	}
	whole := plan.Subnets(slot)
	p.renamed = whole[0] != l.Subnet()
	if !plan.InRange(slot) {
		p.reason = outOfRange
	}
	for _, have := range l.Subnets {
		if slices.Contains(whole, have) {
			p.kept = append(p.kept, have)
			continue
		}
		p.lost = append(p.lost, have)
		if slices.ContainsFunc(whole, func(w netip.Prefix) bool { return w.Addr().Is4() == have.Addr().Is4() }) {
			p.reason = "goes with another subnet of the other family in the new pools"
		}
	}
	for _, s := range whole {
		if !slices.Contains(l.Subnets, s) {
			p.gained = append(p.gained, s)
		}
	}
	return p
}

// held returns the leases that are held. A lapsed lease is no reason to refuse a change: its host takes another subnet
// when it returns.
func held(leases []registry.Lease) []registry.Lease {
	return slices.DeleteFunc(slices.Clone(leases), func(l registry.Lease) bool { return !l.Held() })
}

// isVoid reports whether a plan does not assign the reserved subnet to hosts.
func isVoid(r registry.Reservation, plan registry.Plan) bool {
	slot, err := plan.Slot(r.Subnet)
	return err != nil || !plan.InRange(slot) || plan.Subnets(slot)[0] != r.Subnet
}

// capacity compares the free subnets of the new plan with the hosts that need one: those that cannot keep theirs and
// have none reserved.
type capacity struct {
	free      uint64
	held, all int // hosts that need a subnet: those with a held lease, and all
}

func (c Change) capacity() capacity {
	var out capacity
	kept := registry.LeaseSet{Bad: c.BadRecords}
	for _, l := range c.Leases {
		if place(l, c.New.Plan).reason == "" {
			l.Slot, _ = c.New.Plan.Slot(l.Subnet()) // a slot of the new plan, or it would not fit
			kept.Leases = append(kept.Leases, l)
			continue
		}
		if _, ok := c.reservedFor(l); ok {
			continue
		}
		out.all++
		if l.Held() {
			out.held++
		}
	}
	var reserved []registry.Reservation
	for _, r := range c.Reservations {
		if !isVoid(r, c.New.Plan) {
			r.Slot, _ = c.New.Plan.Slot(r.Subnet)
			reserved = append(reserved, r)
		}
	}
	out.free = registry.Free(c.New.Plan, kept, reserved)
	return out
}

// reservedFor returns the subnet of the new plan that is reserved for the lease's host, unless another host holds it.
func (c Change) reservedFor(l registry.Lease) (netip.Prefix, bool) {
	host := registry.Claim{Node: l.Node, NodeID: l.NodeID}
	i := slices.IndexFunc(c.Reservations, func(r registry.Reservation) bool {
		return r.For(host) && !isVoid(r, c.New.Plan) &&
			!slices.ContainsFunc(c.Leases, func(o registry.Lease) bool {
				return o.Held() && slices.Contains(o.Subnets, r.Subnet)
			})
	})
	if i < 0 {
		return netip.Prefix{}, false
	}
	return c.Reservations[i].Subnet, true
}

// relocation describes what happens to a host that cannot keep its subnet because of why. Hosts with a held lease come
// before those whose lease has lapsed.
func (r capacity) relocation(l registry.Lease, why string) string {
	hosts := r.held
	if !l.Held() {
		hosts = r.all
	}
	switch {
	case uint64(hosts) <= r.free:
		return fmt.Sprintf("takes another subnet: %s %s", l.Subnet(), why)
	case r.free == 0:
		return fmt.Sprintf("finds no other subnet: %s %s, in which none is free", l.Subnet(), why)
	}
	return fmt.Sprintf("may find no other subnet: %s %s, in which %d of %d hosts would find one", l.Subnet(), why, r.free,
		hosts)
}

// refused returns a refusal if hosts with a held lease would be left without a subnet.
func (r capacity) refused() []api.Refusal {
	if uint64(r.held) <= r.free {
		return nil
	}
	return []api.Refusal{{Reason: fmt.Sprintf("hosts that need another subnet: %d, free in the new range: %d; the rest "+
		"would wait for one", r.held, r.free), Way: "make the range larger, or take hosts out of the network before",
		Force: true}}
}

// FirstFew joins a list for a sentence. Of a long list it names the first five and counts the rest.
func FirstFew(all []string) string {
	const most = 5
	if len(all) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
	}
	return strings.Join(all, ", ")
}
