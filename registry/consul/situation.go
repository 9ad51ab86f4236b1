package consul

import (
	"context"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// situation returns a consistent view of a network's leases and reservations, and the CreateIndex of the marker of the
// leases, 0 when it is missing. In a store that was emptied, the slots of hosts that have not returned yet count as
// taken.
func (ls leaseStore) situation(
	ctx context.Context, n registry.Network, claim registry.Claim,
) (view registry.Situation, made uint64, err error) {
	prefix := ls.kv.keys.leases(n.Name)
	f, done := ls.followers.use(n.Name)
	defer done()
	pairs, err := f.readFirst(ctx, ls.kv)
	if err == nil && pairs == nil {
		pairs, _, err = ls.kv.list(ctx, prefix, read{consistent: true})
	}
	if err != nil {
		return view, 0, err
	}
	view.Network = n
	var set registry.LeaseSet
	records := slices.DeleteFunc(slices.Clone(pairs), func(p *api.KVPair) bool {
		if p.Key != prefix+markerName {
			return false
		}
		made = p.CreateIndex
		return true
	})
	for _, pair := range records {
		if l, err := parseLease(n, prefix, pair); err == nil {
			set.Leases = append(set.Leases, l)
		} else if p, err := registry.ParseSubnetKey(pair.Key[len(prefix):]); err == nil {
			view.Bad = append(view.Bad, registry.BadSlot{
				Prefix:      p,
				Session:     pair.Session,
				ModifyIndex: pair.ModifyIndex,
			})
		}
	}
	f.lapses.Observe(n.Name, set.Leases, time.Now())
	view.Leases = set.Leases
	unconfirmed, err := f.unconfirmed(ctx, pairs)
	if err != nil {
		return view, 0, err
	}
	for _, r := range unconfirmed {
		if r.Err == nil && r.Lease.NodeID != claim.NodeID {
			view.Bad = append(view.Bad, registry.BadSlot{Prefix: r.Lease.Subnet()})
		}
	}

	prefix = ls.kv.keys.reservations(n.Name)
	reserved, _, err := ls.reservations.list(ctx, n)
	if err != nil {
		return view, 0, err
	}
	view.Reservations = reserved.Reservations
	for _, b := range reserved.Bad {
		// The slot is reserved, but the record does not tell for which host.
		if p, err := registry.ParseSubnetKey(b.Key[len(prefix):]); err == nil {
			view.Bad = append(view.Bad, registry.BadSlot{Prefix: p})
		}
	}
	return view, made, nil
}
