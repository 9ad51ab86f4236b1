package etcd

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	claims "github.com/lenonet/leno/registry/claim"
	"github.com/lenonet/leno/registry/flannel"
)

// Limits of one transaction: etcd accepts 128 operations by default, but each of them may be a transaction again.
const (
	partOps = 64
	maxKept = (partOps - 2) * partOps
)

// nested returns operations that carry out ops in one transaction.
func nested(ops []clientv3.Op) []clientv3.Op {
	if len(ops) <= partOps {
		return ops
	}
	var out []clientv3.Op
	for part := range slices.Chunk(ops, partOps) {
		out = append(out, clientv3.OpTxn(nil, part, nil))
	}
	return out
}

// reserve returns the operations that add reservations to n, and the conditions under which they may be carried out.
func (c *connection) reserve(t *tree, n registry.Network, all []registry.Reservation, force bool) (
	conditions []clientv3.Cmp, ops []clientv3.Op, err error) {
	if len(all) == 0 {
		return nil, nil, nil
	}
	if len(all) > maxKept {
		return nil, nil, fmt.Errorf("%w: %d reservations, at most %d can be given to a new network in etcd",
			registry.ErrInvalid, len(all), maxKept)
	}
	prefix := c.keys.reservations(n.Name)
	set, _ := c.reservations(t, n)
	leases, _ := c.readLeases(t, n)
	bySlot := map[uint64]registry.Lease{}
	for _, l := range leases {
		for _, p := range l.Subnets { // those of a host that runs flannel may be of two slots
			if slot, err := n.Plan.Slot(p); err == nil {
				bySlot[slot] = l
			}
		}
	}
	for _, r := range all {
		there := false
		for _, other := range set.Reservations {
			same, err := r.Beside(other)
			if err != nil {
				return nil, nil, err
			}
			there = there || same
		}
		if there {
			continue
		}
		key := c.keys.reservation(n.Name, r.Subnet)
		if t.Get(key) != nil {
			return nil, nil, fmt.Errorf("%w: the record at %s is unusable", registry.ErrReserved, key)
		}
		if !force {
			if err := c.hindered(t, n, r, bySlot); err != nil {
				return nil, nil, err
			}
		}
		value, err := registry.FormatReservation(r)
		if err != nil {
			return nil, nil, err
		}
		ops = append(ops, clientv3.OpPut(key, string(value)))
	}
	conditions = append(conditions, notWrittenSince(prefix, t.Revision))
	if !force {
		for _, r := range all { // the lease on the slot, or none, is still the same
			if len(all) > partOps {
				conditions = append(conditions, notWrittenSince(c.keys.leases(n.Name), t.Revision))
				break
			}
			key := c.keys.lease(n.Name, n.Plan.Subnets(r.Slot))
			conditions = append(conditions, unchanged(key, t.Modified(key)))
		}
	}
	return conditions, ops, nil
}

// hindered returns ErrHeld if a live host other than the reservation's has the slot.
func (c *connection) hindered(
	t *tree, n registry.Network, r registry.Reservation, leases map[uint64]registry.Lease,
) error {
	if l, ok := leases[r.Slot]; ok {
		return r.Hindered(l)
	}
	if bad := t.Get(c.keys.lease(n.Name, n.Plan.Subnets(r.Slot))); bad != nil {
		return registry.HinderedUnread(bad.key, reader{c.keys, n}.source(t, bad).id())
	}
	return nil
}

// AddReservation implements registry.Reservations.
func (c *Client) AddReservation(ctx context.Context, n registry.Network, r registry.Reservation, force bool) error {
	r, err := registry.CheckNewReservation(n, r)
	if err != nil {
		return registry.Wrap(err, "reserve in network %s", n.Name)
	}
	err = claims.Retry(ctx, tries, func() error {
		t, err := c.own.mirror.Refresh(ctx)
		if err != nil {
			return err
		}
		conditions, ops, err := c.own.reserve(t, n, []registry.Reservation{r}, force)
		if err != nil || len(ops) == 0 {
			return err
		}
		_, err = c.own.transact(ctx, conditions, ops...)
		return err
	})
	return registry.Wrap(err, "reserve %s in network %s", r.Subnet, n.Name)
}

// RemoveReservation implements registry.Reservations.
func (c *Client) RemoveReservation(ctx context.Context, network string, subnet netip.Prefix) error {
	r, err := c.own.get(ctx, c.own.keys.definition(network))
	if err == nil {
		n, _ := parseNetwork(network, r)
		key := c.own.keys.reservation(network, n.Plan.First(subnet))
		var resp clientv3.OpResponse
		if resp, err = c.own.do(ctx, clientv3.OpDelete(key)); err == nil && resp.Del().Deleted == 0 {
			err = noReservation(ctx, c.own, n, n.Plan.First(subnet))
		}
	}
	return registry.Wrap(err, "remove reservation %s in network %s", subnet, network)
}

// noReservation returns why leno has no reservation of the subnet.
func noReservation(ctx context.Context, c *connection, n registry.Network, first netip.Prefix) error {
	t, err := c.mirror.Refresh(ctx)
	if err != nil {
		return err
	}
	if r := c.recordOn(t, n.Name, first); r != nil {
		err = (reader{c.keys, n}).checkNotReserved(t, r)
	}
	return cmp.Or(err, registry.ErrReservationNotFound)
}

// WatchReservations implements registry.Reservations.
func (c *Client) WatchReservations(ctx context.Context, n registry.Network, after uint64) (
	registry.ReservationSet, uint64, error) {
	prefix := c.own.keys.reservations(n.Name)
	var flannels []registry.Reservation
	t, index, err := c.own.watch(ctx, prefix, after, after == 0, func(t *tree) (records []*record) {
		flannels, records = c.own.flannelReservations(t, n)
		return append(records, t.Below(prefix)...)
	})
	if err != nil {
		return registry.ReservationSet{}, 0, registry.Wrap(err, "watch reservations of network %s", n.Name)
	}
	set, _ := c.own.reservations(t, n)
	set.Reservations = append(set.Reservations, flannels...)
	slices.SortFunc(set.Reservations, registry.Reservation.Compare)
	return set, index, nil
}

// reservations returns the reservations of n, and the slots of unusable records.
func (c *connection) reservations(t *tree, n registry.Network) (set registry.ReservationSet, bad []registry.BadSlot) {
	prefix := c.keys.reservations(n.Name)
	for _, record := range t.Below(prefix) {
		name := record.key[len(prefix):]
		r, err := registry.ParseReservation(n, name, record.value)
		if err != nil {
			set.Bad = append(set.Bad, registry.BadRecord{Key: record.key, Reason: err.Error()})
			if p, err := registry.ParseSubnetKey(name); err == nil {
				bad = append(bad, registry.BadSlot{Prefix: p})
			}
			continue
		}
		r.ModifyIndex = record.modified
		set.Reservations = append(set.Reservations, r)
	}
	slices.SortFunc(set.Reservations, registry.Reservation.Compare)
	return set, bad
}

// isReservation reports whether a record is a reservation in flannel: a record that never ends, in which no host has
// written what the network's backend publishes.
func isReservation(p *belief.Record, t *tree, n registry.Network) bool {
	return p.Lease.Foreign && p.Lease.Backend.Type != n.Backend.Type && t.Get(p.Key).lease == 0
}

// checkNotReserved returns an ErrNotSupported for a record that is a reservation in flannel: leno does not change it.
func (r reader) checkNotReserved(t *tree, found *record) error {
	if len(r.network.Plan) == 0 || !isReservation(r.Parse(held{lease: found}), t, r.network) {
		return nil
	}
	return fmt.Errorf("%w: it is a reservation in flannel: remove it with `etcdctl del '%s'`", registry.ErrNotSupported,
		found.key)
}

// flannelReservations returns the reservations of n in flannel, and their records. They are only shown: a claim treats
// them as records of flannel hosts.
func (c *connection) flannelReservations(t *tree, n registry.Network) (out []registry.Reservation, records []*record) {
	if len(n.Plan) == 0 {
		return nil, nil
	}
	for _, r := range t.Below(c.keys.leases(n.Name)) {
		if r.lease != 0 {
			continue // it ends with its host, and is not parsed here for each change of any lease
		}
		if p := (reader{c.keys, n}).Parse(held{lease: r}); isReservation(p, t, n) {
			out = append(out, registry.Reservation{Network: n.Name, Slot: p.Lease.Slot, Subnet: p.Lease.Subnet(),
				Node: p.Lease.Node, Address: p.Lease.PublicIPs[0], ModifyIndex: r.modified})
			records = append(records, r)
		}
	}
	return out, records
}

// readLeases returns the stored leases of n, and the slots that unusable records cover.
func (c *connection) readLeases(t *tree, n registry.Network) (leases []registry.Lease, bad []registry.BadSlot) {
	prefix := c.keys.leases(n.Name)
	read, _ := c.reader(n)
	for _, r := range belief.Disown(c.views.leases(n.Name).Stored(t, n, read)) {
		if r.Err == nil {
			leases = append(leases, r.Lease)
			continue
		}
		for _, p := range flannel.SubnetsIn(r.Key[len(prefix):]) {
			bad = append(bad, registry.BadSlot{Prefix: p, Session: r.Lease.Session, ModifyIndex: r.Lease.ModifyIndex})
		}
	}
	return leases, bad
}
