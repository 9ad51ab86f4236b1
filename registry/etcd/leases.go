package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
	"github.com/lenonet/leno/registry/flannel"
)

// Renew implements registry.Leases.
func (c *Client) Renew(ctx context.Context, l registry.Lease) error {
	s, ok := parseSession(l.Session)
	err := registry.ErrLeaseLost
	if ok {
		err = c.own.sessions.renew(ctx, s)
	}
	if err == nil {
		c.own.dropSecond(ctx, l, s)
	}
	return registry.Wrap(err, "renew lease %s", l.Subnet())
}

// Release implements registry.Leases.
func (c *Client) Release(ctx context.Context, l registry.Lease) error {
	s, ok := parseSession(l.Session)
	if !ok {
		return nil // it is not held
	}
	// The record is attached to one of the session's etcd leases, unless another host has it by now.
	return registry.Wrap(c.own.sessions.end(ctx, s), "release lease %s", l.Subnet())
}

// revokedFor is how long the record of a revocation is kept.
const revokedFor = time.Hour

// Revoke implements registry.Leases.
func (c *Client) Revoke(ctx context.Context, network string, subnet netip.Prefix) error {
	err := claims.Retry(ctx, tries, func() error { return c.own.revokeRecord(ctx, network, subnet) })
	return registry.Wrap(err, "revoke lease %s in network %s", subnet, network)
}

func (c *connection) revokeRecord(ctx context.Context, network string, subnet netip.Prefix) error {
	t, err := c.mirror.Refresh(ctx)
	if err != nil {
		return err
	}
	n, _ := parseNetwork(network, t.Get(c.keys.definition(network)))
	first := n.Plan.First(subnet)
	r := c.recordOn(t, network, first)
	if r == nil {
		return registry.ErrLeaseNotFound
	}
	if err := (reader{c.keys, n}).checkNotReserved(t, r); err != nil {
		return err
	}
	limited, err := c.grant(ctx, seconds(revokedFor))
	if err != nil {
		return err
	}
	_, err = c.transact(ctx, []clientv3.Cmp{unchanged(r.key, r.modified)},
		clientv3.OpDelete(r.key),
		clientv3.OpPut(c.keys.revoked(network, first), flannel.NodeIDOf(r.value), clientv3.WithLease(limited)))
	return err
}

// recordOn returns the oldest record whose key has first as the first subnet, nil for none: see belief.Disown.
func (c *connection) recordOn(t *tree, network string, first netip.Prefix) (oldest *record) {
	prefix := c.keys.leases(network)
	for _, r := range t.Below(c.keys.lease(network, []netip.Prefix{first})) {
		subnets, err := flannel.ParseSubnetKey(r.key[len(prefix):])
		if err == nil && subnets[0] == first && (oldest == nil || r.created < oldest.created) {
			oldest = r
		}
	}
	return oldest
}

// Expire implements registry.Leases.
func (c *Client) Expire(ctx context.Context, l registry.Lease) (err error) {
	defer func() { err = registry.Wrap(err, "expire lease %s", l.Subnet()) }()
	if l.Held() {
		return fmt.Errorf("%w: it is held", registry.ErrConflict)
	}
	r, err := c.own.get(ctx, c.own.keys.lease(l.Network, l.Subnets))
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("%w: it was removed", registry.ErrConflict)
	}
	_, err = c.own.transact(ctx, []clientv3.Cmp{
		unchanged(r.key, l.ModifyIndex), unchanged(c.own.keys.session(l.Network, r.lease), 0),
	}, clientv3.OpDelete(r.key))
	return conflict(err)
}

// Restore implements registry.Leases.
func (c *Client) Restore(ctx context.Context, n registry.Network, l registry.Lease, hold time.Duration) (err error) {
	defer func() { err = registry.Wrap(err, "restore lease %s", l.Subnet()) }()
	value, err := flannel.FormatLease(n, l)
	if err != nil {
		return err
	}
	key := c.own.keys.lease(n.Name, l.Subnets)
	conditions, marker := []clientv3.Cmp{isFree(n, key)}, c.own.keys.marker(n.Name)
	read, err := c.own.doIf(ctx, conditions, clientv3.OpGet(marker)) // most hosts find the lease restored
	if err == errRefused {
		err = fmt.Errorf("%w: the subnet is taken", registry.ErrConflict)
	}
	if err != nil {
		return err
	}
	found := read.Responses[0].GetResponseRange().Kvs
	if len(found) == 0 {
		return fmt.Errorf("%w: %s is missing", registry.ErrUncertain, marker)
	}
	conditions = append(conditions, unchanged(marker, uint64(found[0].ModRevision)))
	if l.Foreign {
		hold = registry.FlannelTTL // flanneld does not write it before
		others, err := c.own.restoreBeside(ctx, n, l)
		if err != nil {
			return err
		}
		conditions = append(conditions, others)
	}
	kept, err := c.own.grant(ctx, seconds(hold))
	if err != nil {
		return err
	}
	_, err = c.own.transact(ctx, conditions, clientv3.OpPut(key, string(value), clientv3.WithLease(kept)))
	err = conflict(err)
	if err != nil && !errors.Is(err, registry.ErrUnavailable) { // otherwise the record may exist
		_ = c.own.revoke(ctx, kept)
	}
	return err
}

// restoreBeside returns the condition that no other lease has a subnet of a flannel host's, or an ErrConflict: flannel
// chooses the subnets of the families independently, so another record may have the second one under any key.
func (c *connection) restoreBeside(ctx context.Context, n registry.Network, l registry.Lease) (clientv3.Cmp, error) {
	t, err := c.mirror.Refresh(ctx)
	if err != nil {
		return clientv3.Cmp{}, err
	}
	prefix := c.keys.leases(n.Name)
	isWanted := func(p netip.Prefix) bool { return slices.Contains(l.Subnets, p) }
	for _, r := range t.Below(prefix) {
		if subnets, err := flannel.ParseSubnetKey(r.key[len(prefix):]); err == nil && slices.ContainsFunc(subnets, isWanted) {
			return clientv3.Cmp{}, fmt.Errorf("%w: %s has a subnet of it", registry.ErrConflict, r.key)
		}
	}
	return notWrittenSince(prefix, t.Revision), nil
}

// isFree is the condition that no record has the first subnet of a lease's key: a host that runs flannel may write any
// key under the IPv4 subnet, with any IPv6 subnet.
func isFree(n registry.Network, key string) clientv3.Cmp {
	v4, _, _ := strings.Cut(key, "&")
	if len(n.Plan) == 1 {
		v4 = key
	}
	return clientv3.Compare(clientv3.CreateRevision(v4), "=", 0).WithRange(v4 + "'")
}

// WatchLease implements registry.Leases.
func (c *Client) WatchLease(ctx context.Context, n registry.Network, subnet netip.Prefix, after uint64) (
	registry.Lease, uint64, error) {
	slot, err := n.Plan.Slot(subnet)
	if err != nil {
		return registry.Lease{}, 0, registry.Wrap(err, "watch lease")
	}
	conn, subnets := c.own, n.Plan.Subnets(slot)
	read, _ := conn.reader(n)
	fresh := after == 0 && !conn.isCurrent(ctx, n, subnets[0])
	var r, session, revoked *record
	_, index, err := conn.watch(ctx, conn.keys.lease(n.Name, subnets), after, fresh, func(t *tree) []*record {
		r, session, revoked = conn.recordOn(t, n.Name, subnets[0]), nil, t.Get(conn.keys.revoked(n.Name, subnets[0]))
		if r != nil {
			session, revoked = read.source(t, r).session, nil
		}
		return []*record{r, session, revoked}
	})
	if err != nil {
		return registry.Lease{}, 0, registry.Wrap(err, "watch lease %s in network %s", subnet, n.Name)
	}
	err = registry.ErrLeaseNotFound
	switch {
	case r != nil:
		p := read.Parse(held{r, session})
		if p.Err == nil {
			return p.Lease, index, nil
		}
		err = p.Err
	case revoked != nil:
		err = &registry.RevokedError{NodeID: string(revoked.value)}
	}
	return registry.Lease{}, index, registry.Wrap(err, "lease %s of network %s", subnet, n.Name)
}

// isCurrent reports whether what the client knows of the lease on a subnet is what the store has now. It reads only
// what concerns this lease.
func (c *connection) isCurrent(ctx context.Context, n registry.Network, first netip.Prefix) bool {
	t := c.known(ctx, n.Name)
	if t == nil {
		return false
	}
	r, key := c.recordOn(t, n.Name, first), c.keys.revoked(n.Name, first)
	conditions := []clientv3.Cmp{unchanged(key, t.Modified(key))}
	if r == nil {
		slot, err := n.Plan.Slot(first)
		if err != nil {
			return false
		}
		conditions = append(conditions, isFree(n, c.keys.lease(n.Name, n.Plan.Subnets(slot))))
	} else {
		session := c.keys.session(n.Name, r.lease)
		conditions = append(conditions, unchanged(r.key, r.modified), unchanged(session, t.Modified(session)))
	}
	resp, err := c.doIf(ctx, conditions)
	return err == nil && resp.Header.ClusterId == t.Cluster
}

// WatchLeases implements registry.Leases.
func (c *Client) WatchLeases(ctx context.Context, n registry.Network, after uint64) (registry.LeaseSet, uint64, error) {
	read, kept := c.own.reader(n)
	set, index, err := c.own.views.leases(n.Name).Watch(ctx, c.own.mirror, n, after, read, kept)
	if err != nil {
		return registry.LeaseSet{}, 0, registry.Wrap(err, "watch leases of network %s", n.Name)
	}
	c.own.lapses.Observe(n.Name, set.Leases, time.Now())
	return set, index, nil
}

// Followed returns when etcd last confirmed the leases of a network.
func (c *Client) Followed(network string) time.Time {
	return c.own.views.leases(network).LastCertain(c.own.mirror.LastConfirmed())
}

// Forget drops what is known of the leases of a network.
func (c *Client) Forget(network string) {
	c.own.views.forget(network)
	c.own.lapses.Forget(network)
}

// situation is a consistent view of a network for a claim.
type situation struct {
	claims.View
	flannel bool // some hosts run flannel

	former *registry.Lease // flannel's for this host, if its subnets are at different positions; nil otherwise
}

func (c *connection) situation(t *tree, n registry.Network, claim registry.Claim) (s situation) {
	s.Network = n
	var leases []registry.Lease
	leases, s.Bad = c.readLeases(t, n)
	users := map[netip.Prefix]int{} // how many leases have a subnet
	for _, l := range leases {
		for _, p := range l.Subnets {
			users[p]++
		}
	}
	for i, l := range leases {
		if !l.Foreign {
			s.Leases = append(s.Leases, l)
			continue
		}
		s.flannel = true
		isFree := true // for this host, in all families
		for i, p := range n.Plan.Subnets(l.Slot)[:len(l.Subnets)] {
			if p != l.Subnets[i] { // flannel chooses the subnets of the families independently
				s.Bad = append(s.Bad, registry.BadSlot{Prefix: l.Subnets[i]})
				isFree = isFree && users[p] == 0
			}
		}
		if slices.ContainsFunc(l.PublicIPs, func(a netip.Addr) bool { return slices.Contains(claim.PublicIPs, a) }) {
			// This host ran flannel before, which identifies hosts by their address.
			if !slices.Equal(l.Subnets, n.Plan.Subnets(l.Slot)[:len(l.Subnets)]) {
				s.former = &leases[i]
			}
			if !isFree {
				s.Bad = append(s.Bad, registry.BadSlot{Prefix: l.Subnet()})
				continue
			}
			l.Node, l.NodeID, l.Session, l.Foreign = claim.Node, claim.NodeID, "", false
		}
		s.Leases = append(s.Leases, l)
	}
	c.lapses.Observe(n.Name, s.Leases, time.Now())
	reservations, more := c.reservations(t, n)
	s.Reservations = reservations.Reservations
	s.Bad = append(s.Bad, more...)
	read, kept := c.reader(n)
	lost := c.views.leases(n.Name).Unconfirmed(t, n, read, kept)
	for key, gone := range t.Vanished { // also those that were read before this network's leases were watched
		if strings.HasPrefix(key, c.keys.leases(n.Name)) && time.Since(gone.At) <= kept.Settle {
			lost = append(lost, read.Parse(held{lease: gone.Record}))
		}
	}
	for _, r := range lost {
		for _, p := range r.Lease.Subnets {
			if r.Err == nil && r.Lease.NodeID != claim.NodeID {
				s.Bad = append(s.Bad, registry.BadSlot{Prefix: p})
			}
		}
	}
	if marker := t.Get(c.keys.marker(n.Name)); marker != nil {
		s.Made = marker.created
	}
	return s
}
