package memory

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/registry"
)

func leaseKey(network string, first netip.Prefix) string {
	return leasesDir + network + "/" + registry.SubnetKey(first)
}

// stamp fills in the store's metadata of a lease.
func (s *Store) stamp(l registry.Lease, key string) registry.Lease {
	r := s.records[key]
	l.Session, l.CreateIndex, l.ModifyIndex = r.session, r.createIndex, r.modifyIndex
	return l
}

// Renew implements registry.Leases.
func (c *Client) Renew(ctx context.Context, l registry.Lease) error {
	return registry.Wrap(c.store.do(ctx, func() error {
		if !c.store.renewLocked(l.Session) {
			return registry.ErrLeaseLost
		}
		for key, r := range c.store.records { // second leases
			isLease := strings.HasPrefix(key, leasesDir+l.Network+"/")
			if isLease && r.session == l.Session && key != leaseKey(l.Network, l.Subnet()) {
				c.store.deleteLocked(key)
			}
		}
		return nil
	}), "renew lease %s", l.Subnet())
}

// Release implements registry.Leases.
func (c *Client) Release(ctx context.Context, l registry.Lease) error {
	s := c.store
	return registry.Wrap(s.do(ctx, func() error {
		if key := leaseKey(l.Network, l.Subnet()); l.Held() && s.records[key].session == l.Session {
			s.deleteLocked(key)
		}
		s.endLocked(l.Session)
		return nil
	}), "release lease %s", l.Subnet())
}

// Revoke implements registry.Leases.
func (c *Client) Revoke(ctx context.Context, network string, subnet netip.Prefix) error {
	s := c.store
	return registry.Wrap(s.do(ctx, func() error {
		key := leaseKey(network, s.firstLocked(network, subnet))
		r, ok := s.records[key]
		if !ok {
			return registry.ErrLeaseNotFound
		}
		s.deleteLocked(key)
		s.revoked[key] = registry.NodeIDOf(r.value)
		return nil
	}), "revoke lease %s in network %s", subnet, network)
}

// firstLocked returns the first subnet of the slot that contains subnet, or subnet itself when the network does not
// tell, for example after its definition was deleted.
func (s *Store) firstLocked(network string, subnet netip.Prefix) netip.Prefix {
	n, _ := s.networkLocked(network)
	return n.Plan.First(subnet)
}

// Expire implements registry.Leases.
func (c *Client) Expire(ctx context.Context, l registry.Lease) error {
	s := c.store
	return registry.Wrap(s.do(ctx, func() error {
		key := leaseKey(l.Network, l.Subnet())
		if r, ok := s.records[key]; !ok || r.session != "" || r.modifyIndex != l.ModifyIndex {
			return registry.ErrConflict
		}
		s.deleteLocked(key)
		return nil
	}), "expire lease %s", l.Subnet())
}

// Restore implements registry.Leases.
func (c *Client) Restore(ctx context.Context, n registry.Network, l registry.Lease, _ time.Duration) error {
	s := c.store
	return registry.Wrap(s.do(ctx, func() error {
		if _, marked := s.records[leasesDir+n.Name+"/"+marker]; !marked {
			return registry.ErrUncertain
		}
		key := leaseKey(n.Name, l.Subnet())
		if _, exists := s.records[key]; exists {
			return registry.ErrConflict
		}
		value, err := registry.FormatLease(l)
		if err == nil {
			s.putLocked(key, value, "")
		}
		return err
	}), "restore lease %s", l.Subnet())
}

// WatchLease implements registry.Leases.
func (c *Client) WatchLease(
	ctx context.Context, n registry.Network, subnet netip.Prefix, after uint64,
) (l registry.Lease, index uint64, err error) {
	slot, err := n.Plan.Slot(subnet)
	if err != nil {
		return registry.Lease{}, 0, registry.Wrap(err, "watch lease")
	}
	s := c.store
	first := n.Plan.Subnets(slot)[0]
	key := leaseKey(n.Name, first)
	index, err = s.watch(ctx, after, func() (uint64, error) {
		r, ok := s.records[key]
		if !ok {
			why := registry.ErrLeaseNotFound
			if id, revoked := s.revoked[key]; revoked {
				why = &registry.RevokedError{NodeID: id}
			}
			return s.dirLocked(leasesDir + n.Name + "/"), why
		}
		var err error
		if l, err = registry.ParseLease(n, registry.SubnetKey(first), r.value); err != nil {
			return r.modifyIndex, err
		}
		l = s.stamp(l, key)
		return r.modifyIndex, nil
	})
	return l, index, registry.Wrap(err, "watch lease %s in network %s", subnet, n.Name)
}

// WatchLeases implements registry.Leases.
func (c *Client) WatchLeases(
	ctx context.Context, n registry.Network, after uint64,
) (set registry.LeaseSet, index uint64, err error) {
	s := c.store
	index, err = s.watch(ctx, after, func() (uint64, error) {
		dir := leasesDir + n.Name + "/"
		if _, ok := s.records[dir+marker]; !ok {
			return s.dirLocked(dir), registry.ErrUncertain
		}
		set, _ = s.leasesLocked(n)
		set.SetBack = s.setBack
		c.clock.Observe(n.Name, set.Leases, time.Now())
		return s.dirLocked(dir), nil
	})
	return set, index, registry.Wrap(err, "watch leases of network %s", n.Name)
}

// leasesLocked returns all leases of a network, sorted by slot, and the slots under the records it had to skip.
func (s *Store) leasesLocked(n registry.Network) (set registry.LeaseSet, blocked []registry.BadSlot) {
	dir := leasesDir + n.Name + "/"
	for _, key := range s.keysLocked(dir) {
		name := strings.TrimPrefix(key, dir)
		if name == marker {
			continue
		}
		l, err := registry.ParseLease(n, name, s.records[key].value)
		if err != nil {
			set.Bad = append(set.Bad, registry.BadRecord{Key: registry.BoundedKey(key), Reason: err.Error()})
			blocked = s.block(blocked, name, key)
			continue
		}
		set.Leases = append(set.Leases, s.stamp(l, key))
	}
	slices.SortFunc(set.Leases, func(a, b registry.Lease) int { return cmp.Compare(a.Slot, b.Slot) })
	return set, blocked
}

// block adds the slots under an unusable record, if its key names them.
func (s *Store) block(blocked []registry.BadSlot, name, key string) []registry.BadSlot {
	prefix, err := registry.ParseSubnetKey(name)
	if err != nil {
		return blocked
	}
	r := s.records[key]
	return append(blocked, registry.BadSlot{Prefix: prefix, Session: r.session, ModifyIndex: r.modifyIndex})
}
