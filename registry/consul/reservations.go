package consul

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// reservationStore reads and writes the reservations of networks.
type reservationStore struct {
	kv       *kv
	networks networkStore
}

// Reservations implements registry.Reservations.
func (rs reservationStore) Reservations(ctx context.Context, n registry.Network) (registry.ReservationSet, error) {
	if err := registry.CheckNetworkName(n.Name); err != nil {
		return registry.ReservationSet{}, fmt.Errorf("reservations: %w", err)
	}
	set, _, err := rs.list(ctx, n)
	if err != nil {
		return registry.ReservationSet{}, fmt.Errorf("reservations of network %s: %w", n.Name, err)
	}
	return set, nil
}

// emptyPause is how many times longer a watch without reservations pauses than a watch of a tree that changes: 5 s, by
// which the first reservation is seen later.
const emptyPause = 20

// WatchReservations implements registry.Reservations. There are few reservations, so every change causes all of them to
// be read again. The index is Consul's and goes back with it.
func (rs reservationStore) WatchReservations(
	ctx context.Context, n registry.Network, after uint64,
) (registry.ReservationSet, uint64, error) {
	if err := registry.CheckNetworkName(n.Name); err != nil {
		return registry.ReservationSet{}, 0, fmt.Errorf("watch reservations: %w", err)
	}
	var notified uint64
	var err error
	if after == registry.Known { // reservations are not followed
		after = 0
	}
	if after > 0 {
		notified, err = rs.kv.awaitChange(ctx, rs.kv.keys.reservations(n.Name), after)
	}
	var set registry.ReservationSet
	var index uint64
	if err == nil {
		set, index, err = rs.list(ctx, n)
	}
	if err == nil && after > 0 && len(set.Reservations) == 0 {
		// Every write elsewhere wakes a watch of a prefix without keys.
		err = registry.Sleep(ctx, jitter(emptyPause*rs.kv.conf.Coalesce))
	}
	if err != nil {
		return registry.ReservationSet{}, 0, fmt.Errorf("watch reservations of network %s: %w", n.Name, err)
	}
	return set, max(index, notified, 1), nil
}

func (rs reservationStore) list(ctx context.Context, n registry.Network) (registry.ReservationSet, uint64, error) {
	prefix := rs.kv.keys.reservations(n.Name)
	pairs, index, err := rs.kv.listSurely(ctx, prefix)
	if err != nil {
		return registry.ReservationSet{}, 0, err
	}
	var set registry.ReservationSet
	for _, pair := range pairs {
		r, err := registry.ParseReservation(n, strings.TrimPrefix(pair.Key, prefix), pair.Value)
		if err != nil {
			set.Bad = append(set.Bad, badRecord(pair.Key, err))
			continue
		}
		r.ModifyIndex = pair.ModifyIndex
		set.Reservations = append(set.Reservations, r)
	}
	slices.SortFunc(set.Reservations, registry.Reservation.Compare)
	return set, index, nil
}

// AddReservation implements registry.Reservations.
func (rs reservationStore) AddReservation(
	ctx context.Context, n registry.Network, r registry.Reservation, force bool,
) error {
	if err := rs.add(ctx, n, r, force); err != nil {
		return fmt.Errorf("reserve %s in network %s: %w", r.Subnet, n.Name, err)
	}
	return nil
}

func (rs reservationStore) add(ctx context.Context, n registry.Network, r registry.Reservation, force bool) error {
	if err := registry.CheckNetworkName(n.Name); err != nil {
		return err
	}
	r, err := registry.CheckNewReservation(n, r)
	if err != nil {
		return err
	}
	there, err := rs.reserved(ctx, n, r, math.MaxUint64)
	if err != nil || there {
		return err
	}
	if err := rs.hindered(ctx, n, r, force); err != nil {
		return err
	}
	value, err := registry.FormatReservation(r)
	if err != nil {
		return err
	}
	key := rs.kv.keys.reservation(n.Name, r.Subnet)
	results, err := rs.kv.transact(ctx,
		&api.KVTxnOp{Verb: api.KVCheckNotExists, Key: key},
		&api.KVTxnOp{Verb: api.KVSet, Key: key, Value: value})
	switch {
	case isRefused(err):
		// Either it was written after the list, or it is unusable.
		if there, err := rs.reserved(ctx, n, r, math.MaxUint64); err != nil || there {
			return err
		}
		return fmt.Errorf("%w: an unusable record stands at %s", registry.ErrReserved, key)
	case err != nil:
		return err
	}
	// Two operators may have reserved two slots for one host at the same time. Both see that here, and the later one is
	// undone. A reservation is also undone if a host has taken the slot in between: a check in the transaction that the
	// lease does not exist would need the right to write leases.
	index := results[len(results)-1].ModifyIndex
	if _, err = rs.reserved(ctx, n, r, index); err == nil {
		err = rs.hindered(ctx, n, r, force)
	}
	if err != nil {
		ctx, cancel := undoing(ctx)
		defer cancel()
		_, undo := rs.kv.transact(ctx,
			&api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: index},
			&api.KVTxnOp{Verb: api.KVDelete, Key: key})
		if undo != nil && !isRefused(undo) {
			rs.kv.logger.Warn("reservation that was refused is not removed",
				"network", n.Name, "subnet", r.Subnet, "error", undo)
		}
		return err
	}
	return nil
}

// hindered returns ErrHeld when another live host holds the slot, unless force is set.
func (rs reservationStore) hindered(ctx context.Context, n registry.Network, r registry.Reservation, force bool) error {
	if force {
		return nil
	}
	key := rs.kv.keys.lease(n.Name, r.Subnet)
	pair, _, err := rs.kv.get(ctx, key, read{consistent: true})
	if err != nil || pair == nil {
		return err
	}
	return hinderedBy(n, r, rs.kv.keys.leases(n.Name), pair)
}

// reserved reports whether the same reservation already exists. It returns ErrReserved when another one written before
// index conflicts with it.
func (rs reservationStore) reserved(
	ctx context.Context, n registry.Network, r registry.Reservation, index uint64,
) (bool, error) {
	set, _, err := rs.list(ctx, n)
	if err != nil {
		return false, err
	}
	there := false
	for _, other := range set.Reservations {
		if other.ModifyIndex > index {
			continue
		}
		same, err := r.Beside(other)
		if err != nil {
			return false, err
		}
		there = there || same
	}
	return there, nil
}

// RemoveReservation implements registry.Reservations.
func (rs reservationStore) RemoveReservation(ctx context.Context, network string, subnet netip.Prefix) error {
	first, err := rs.networks.firstSubnet(ctx, network, subnet)
	if err == nil {
		key := rs.kv.keys.reservation(network, first)
		// The get fails if the key does not exist.
		_, err = rs.kv.transact(ctx,
			&api.KVTxnOp{Verb: api.KVGet, Key: key},
			&api.KVTxnOp{Verb: api.KVDelete, Key: key})
	}
	if isRefused(err) {
		err = registry.ErrReservationNotFound
	}
	if err != nil {
		return fmt.Errorf("remove reservation %s of network %s: %w", subnet, network, err)
	}
	return nil
}
