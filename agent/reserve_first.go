package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// newReservations are those that a network is to be defined with. Hosts that wait
// for the network take part at once, so what is kept for others has to be there
// before it.
func newReservations(n registry.Network, given []api.Reservation) ([]registry.Reservation, error) {
	if len(given) > 0 && n.ModifyIndex != 0 {
		return nil, badRequest("reservations: they go with a network that is new, with modify_index 0; for one that exists use PUT /v1/network/%s/reservation/:subnet", n.Name)
	}
	var out []registry.Reservation
	subnets, hosts := map[uint64]bool{}, map[[2]string]bool{}
	var errs []error
	for _, g := range given {
		v, err := registry.CheckNewReservation(n, registry.Reservation{Subnet: g.Subnet, Node: g.Node, NodeID: g.NodeID})
		host := [2]string{v.Node, v.NodeID}
		switch {
		case err != nil:
		case subnets[v.Slot]:
			err = badRequest("reservations: %s is there twice", v.Subnet)
		case hosts[host]:
			err = badRequest("reservations: host %s has two, one is %s", g.Node+g.NodeID, v.Subnet)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		subnets[v.Slot], hosts[host] = true, true
		out = append(out, v)
	}
	return out, errors.Join(errs...)
}

// reserveFirst adds reservations to a network that does not exist yet; withdraw
// takes back those that were not there before, unless the network may exist all
// the same.
func reserveFirst(ctx context.Context, reg registry.Registry, n registry.Network, kept []registry.Reservation) (withdraw func(why error) error, err error) {
	var added []registry.Reservation
	withdraw = func(why error) error {
		if errors.Is(why, registry.ErrUnavailable) {
			return nil
		}
		// The caller may be gone, which is why it failed.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		var errs []error
		for _, v := range added {
			if err := reg.RemoveReservation(ctx, n.Name, v.Subnet); err != nil && !errors.Is(err, registry.ErrReservationNotFound) {
				errs = append(errs, fmt.Errorf("what was reserved before that stays: %w", err))
				break // the next would fail alike
			}
		}
		return errors.Join(errs...)
	}
	if len(kept) == 0 {
		return withdraw, nil
	}
	if _, err := reg.Network(ctx, n.Name); !errors.Is(err, registry.ErrNetworkNotFound) {
		if err == nil {
			err = fmt.Errorf("put network %s: %w", n.Name, registry.ErrNetworkExists)
		}
		return withdraw, err
	}
	before, err := reg.Reservations(ctx, n)
	if err != nil {
		return withdraw, err
	}
	there := map[uint64]bool{}
	for _, v := range before.Reservations {
		there[v.Slot] = true
	}
	for _, v := range kept {
		if err := reg.AddReservation(ctx, n, v, false); err != nil {
			return withdraw, err
		}
		if !there[v.Slot] {
			added = append(added, v)
		}
	}
	return withdraw, nil
}
