package consul

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/transport"
)

// reservationStore reads and writes the reservations of networks.
type reservationStore struct {
	kv       *kv
	networks networkStore
}

// emptyPause is how many times longer a watch without reservations pauses than a watch of a tree that changes: 5 s, by
// which the first reservation is seen later.
const emptyPause = 20

// WatchReservations implements registry.Reservations. There are few reservations, so every change causes all of them to
// be read again. The index is Consul's and goes back with it.
func (rs reservationStore) WatchReservations(
	ctx context.Context, n registry.Network, after uint64,
) (set registry.ReservationSet, index uint64, err error) {
	defer func() { err = registry.Wrap(err, "watch reservations of network %s", n.Name) }()
	var notified uint64
	if after > 0 && after != registry.Known { // reservations are not followed
		if notified, err = rs.kv.AwaitChange(ctx, rs.kv.keys.Reservations(n.Name), after); err != nil {
			return set, 0, err
		}
	}
	set, index, err = rs.list(ctx, n)
	if err == nil && notified > 0 && len(set.Reservations) == 0 {
		// Every write elsewhere wakes a watch of a prefix without keys.
		err = registry.Sleep(ctx, transport.Jitter(emptyPause*rs.kv.Coalesce))
	}
	return set, max(index, notified, 1), err
}

func (rs reservationStore) list(ctx context.Context, n registry.Network) (registry.ReservationSet, uint64, error) {
	var set registry.ReservationSet
	if err := registry.CheckNetworkName(n.Name); err != nil {
		return set, 0, err
	}
	prefix := rs.kv.keys.Reservations(n.Name)
	pairs, index, err := rs.kv.listSurely(ctx, prefix)
	if err != nil {
		return set, 0, err
	}
	for _, pair := range pairs {
		r, err := registry.ParseReservation(n, strings.TrimPrefix(pair.Key, prefix), pair.Value)
		if err != nil {
			reason := registry.Shorten(err.Error(), registry.MaxShownReason)
			set.Bad = append(set.Bad, registry.BadRecord{Key: pair.Key, Reason: reason})
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
) (err error) {
	defer func() { err = registry.Wrap(err, "reserve %s in network %s", r.Subnet, n.Name) }()
	if err := registry.CheckNetworkName(n.Name); err != nil {
		return err
	}
	checked, err := registry.CheckNewReservation(n, r)
	if err != nil {
		return err
	}
	k := newReserving(rs.kv, n, []registry.Reservation{checked})
	k.force, k.single = force, true
	return k.write(ctx)
}

// RemoveReservation implements registry.Reservations.
func (rs reservationStore) RemoveReservation(
	ctx context.Context, network string, subnet netip.Prefix,
) (err error) {
	defer func() { err = registry.Wrap(err, "remove reservation %s of network %s", subnet, network) }()
	first, err := rs.networks.firstSubnet(ctx, network, subnet)
	if err == nil {
		key := rs.kv.keys.Reservation(network, first)
		// The get fails if the key does not exist.
		_, err = rs.kv.Transact(ctx,
			&api.KVTxnOp{Verb: api.KVGet, Key: key},
			&api.KVTxnOp{Verb: api.KVDelete, Key: key})
	}
	if transport.IsRefused(err) {
		return registry.ErrReservationNotFound
	}
	return err
}
