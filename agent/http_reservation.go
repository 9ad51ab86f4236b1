package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

func (a *Agent) reservationEndpoints() []endpoint {
	return []endpoint{
		{"GET /v1/network/{network}/reservations", a.block(a.getReservations)},
		{"PUT /v1/network/{network}/reservation/{subnet}", a.wrap(a.putReservation)},
		{"DELETE /v1/network/{network}/reservation/{subnet}", a.wrap(a.deleteReservation)},
	}
}

// getReservations asks the store: an agent reads reservations where they count,
// at a claim.
func (a *Agent) getReservations(r *http.Request) (shown, error) {
	n, err := a.definition(r)
	return shown{name: "reservations of " + n.Name, store: func(ctx context.Context, after uint64) (out reply, index uint64, err error) {
		read := func(ctx context.Context, n registry.Network, after uint64) error {
			set, next, err := a.env.registry.WatchReservations(ctx, n, after)
			if run, ok := a.runner(n.Name); ok && err == nil {
				run.records.set("reservation list", set.Bad)
			}
			out, index = reservationList(set), next
			return err
		}
		err = a.readStore(ctx, n.Name, after, reservationsPace, read)
		return out, index, err
	}}, err
}

// reservationsPace is how long it takes at most until a change of the store is
// seen that no index told of.
const reservationsPace = time.Minute

func reservationList(set registry.ReservationSet) reply {
	out := api.ReservationList{Reservations: []api.Reservation{}, Skipped: skipped(set.Bad)}
	for _, v := range set.Reservations {
		out.Reservations = append(out.Reservations, api.Reservation{Subnet: v.Subnet, Node: v.Node, NodeID: v.NodeID})
	}
	return reply{body: out}
}

func (a *Agent) putReservation(r *http.Request) (reply, error) {
	subnet, err := subnetOf(r)
	if err != nil {
		return reply{}, err
	}
	var body api.Reservation
	if err := readBody(r, &body); err != nil {
		return reply{}, err
	}
	if body.Subnet.IsValid() && body.Subnet != subnet {
		return reply{}, badRequest("subnet %s contradicts the path", body.Subnet)
	}
	n, err := a.definition(r)
	if err != nil {
		return reply{}, err
	}
	v := registry.Reservation{Subnet: subnet, Node: body.Node, NodeID: body.NodeID}
	if v, err = registry.CheckReservation(n, v); err != nil {
		return reply{}, err
	}
	force, err := flag(r, "force")
	if err != nil {
		return reply{}, err
	}
	if err := a.caller(r).AddReservation(r.Context(), n, v, force); err != nil {
		return reply{}, err
	}
	return reply{body: api.Reservation{Subnet: v.Subnet, Node: v.Node, NodeID: v.NodeID}}, nil
}

func (a *Agent) deleteReservation(r *http.Request) (reply, error) {
	return a.onSubnet(r, func(reg registry.Registry, network string, subnet netip.Prefix) error {
		err := reg.RemoveReservation(r.Context(), network, subnet)
		if errors.Is(err, registry.ErrReservationNotFound) {
			err = a.withKnownReservations(r.Context(), network, err)
		}
		return err
	})
}

// withKnownReservations is an error about one that there is not, with those there
// are.
func (a *Agent) withKnownReservations(ctx context.Context, network string, err error) error {
	n, unread := a.definitionOf(network)
	if unread != nil {
		return err
	}
	set, unread := a.env.registry.Reservations(ctx, n)
	if unread != nil {
		return err
	}
	var subnets []netip.Prefix
	for _, v := range set.Reservations {
		subnets = append(subnets, v.Subnet)
	}
	return fmt.Errorf("%w: %s", err, knownAre(subnets))
}
