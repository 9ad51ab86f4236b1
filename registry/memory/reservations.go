package memory

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/registry"
)

// AddReservation implements registry.Reservations.
func (c *Client) AddReservation(ctx context.Context, n registry.Network, r registry.Reservation, force bool) error {
	r, err := registry.CheckNewReservation(n, r)
	if err != nil {
		return registry.Wrap(err, "reserve in network %s", n.Name)
	}
	s := c.store
	err = s.do(ctx, func() error { return s.reserveLocked(n, force, r) })
	return registry.Wrap(err, "reserve %s in network %s", r.Subnet, n.Name)
}

// reserveLocked adds all reservations or, if it returns an error, none.
func (s *Store) reserveLocked(n registry.Network, force bool, all ...registry.Reservation) error {
	set, _ := s.reservationsLocked(n)
	values := map[string][]byte{}
	for _, r := range all {
		there := false
		for _, other := range set.Reservations {
			same, err := r.Beside(other)
			if err != nil {
				return err
			}
			there = there || same
		}
		if there {
			continue
		}
		key := reservationsDir + n.Name + "/" + registry.SubnetKey(r.Subnet)
		if _, ok := s.records[key]; ok {
			return fmt.Errorf("%w: the record at %s is unusable", registry.ErrReserved, key)
		}
		if err := s.hinderedLocked(n, r); err != nil && !force {
			return err
		}
		value, err := registry.FormatReservation(r)
		if err != nil {
			return err
		}
		values[key] = value
	}
	for key, value := range values {
		s.putLocked(key, value, "")
	}
	return nil
}

// hinderedLocked returns ErrHeld when another live host holds the slot.
func (s *Store) hinderedLocked(n registry.Network, r registry.Reservation) error {
	key := leaseKey(n.Name, r.Subnet)
	record, ok := s.records[key]
	if !ok {
		return nil
	}
	l, err := registry.ParseLease(n, registry.SubnetKey(r.Subnet), record.value)
	if err != nil {
		return registry.HinderedUnread(key, record.session)
	}
	return r.Hindered(s.stamp(l, key))
}

// RemoveReservation implements registry.Reservations.
func (c *Client) RemoveReservation(ctx context.Context, network string, subnet netip.Prefix) error {
	s := c.store
	return registry.Wrap(s.do(ctx, func() error {
		key := reservationsDir + network + "/" + registry.SubnetKey(s.firstLocked(network, subnet))
		if _, ok := s.records[key]; !ok {
			return registry.ErrReservationNotFound
		}
		s.deleteLocked(key)
		return nil
	}), "remove reservation %s in network %s", subnet, network)
}

// WatchReservations implements registry.Reservations.
func (c *Client) WatchReservations(
	ctx context.Context, n registry.Network, after uint64,
) (set registry.ReservationSet, index uint64, err error) {
	s := c.store
	index, err = s.watch(ctx, after, func() (uint64, error) {
		set, _ = s.reservationsLocked(n)
		return s.dirLocked(reservationsDir + n.Name + "/"), nil
	})
	return set, index, registry.Wrap(err, "watch reservations of network %s", n.Name)
}

// reservationsLocked returns all reservations of a network, sorted by slot, and the slots under the records it had to
// skip.
func (s *Store) reservationsLocked(n registry.Network) (set registry.ReservationSet, blocked []registry.BadSlot) {
	dir := reservationsDir + n.Name + "/"
	for _, key := range s.keysLocked(dir) {
		name := strings.TrimPrefix(key, dir)
		r, err := registry.ParseReservation(n, name, s.records[key].value)
		if err != nil {
			set.Bad = append(set.Bad, registry.BadRecord{Key: registry.BoundedKey(key), Reason: err.Error()})
			blocked = s.block(blocked, name, key)
			continue
		}
		r.ModifyIndex = s.records[key].modifyIndex
		set.Reservations = append(set.Reservations, r)
	}
	slices.SortFunc(set.Reservations, registry.Reservation.Compare)
	return set, blocked
}
