package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/state"
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
	if errors.Is(err, registry.ErrNetworkNotFound) {
		return a.getLeft(r.PathValue("network"), err), nil
	}
	return shown{name: "reservations of " + n.Name, store: func(ctx context.Context, after uint64) (out reply, index uint64, err error) {
		read := func(ctx context.Context, n registry.Network, after uint64) error {
			set, next, err := a.watchReservations(ctx, n, after)
			out, index = reservationList(set), next
			return err
		}
		err = a.readStore(ctx, n.Name, after, reservationsPace, read)
		return out, index, err
	}}, err
}

// getLeft is the reservations of a network that is not defined, of which there are
// some when it could not be created, or was deleted, to the end. Without any it
// is missing.
func (a *Agent) getLeft(network string, missing error) shown {
	return shown{name: "reservations of " + network, store: func(ctx context.Context, after uint64) (reply, uint64, error) {
		set, index, err := a.env.registry.WatchReservations(ctx, registry.Network{Name: network}, after)
		if err == nil && len(set.Reservations)+len(set.Bad) == 0 {
			err = missing
		}
		return reservationList(set), index, err
	}}
}

// reservationsPace is how long it takes at most until a change of the store is
// seen that no index told of.
const reservationsPace = time.Minute

func reservationList(set registry.ReservationSet) reply {
	return reply{body: api.ReservationList{Reservations: reservations(set), Skipped: skipped(set.Bad)}}
}

func reservations(set registry.ReservationSet) []api.Reservation {
	out := []api.Reservation{}
	for _, v := range set.Reservations {
		out = append(out, api.Reservation{Subnet: v.Subnet, Node: v.Node, NodeID: v.NodeID})
	}
	return out
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
	if err := checkReservedFor(body); err != nil {
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

// checkReservedFor refuses a reservation for a host that cannot exist, which would
// take the subnet from all hosts. Records that have one already can still be read.
func checkReservedFor(v api.Reservation) error {
	if v.Node != "" {
		if err := config.CheckNodeName(v.Node); err != nil {
			return badRequest("node: %v", err)
		}
	}
	if v.NodeID != "" && !state.IsNodeID(v.NodeID) {
		return badRequest("node_id: %q is not a node id: it is a UUID, which `leno status` shows on the host", registry.Shorten(v.NodeID, maxQuoted))
	}
	return nil
}

// deleteReservation drops one, also of a network that is not defined.
func (a *Agent) deleteReservation(r *http.Request) (reply, error) {
	subnet, err := subnetOf(r)
	if err != nil {
		return reply{}, err
	}
	n, missing := a.definition(r)
	switch {
	case errors.Is(missing, registry.ErrNetworkNotFound):
		n = registry.Network{Name: r.PathValue("network")}
	case missing != nil:
		return reply{}, missing
	}
	err = a.caller(r).RemoveReservation(r.Context(), n.Name, subnet)
	if errors.Is(err, registry.ErrReservationNotFound) {
		err = a.withKnownReservations(r.Context(), n, err, missing)
	}
	return reply{}, err
}

// withKnownReservations is an error about one that there is not, with those there
// are; missing when there is neither one nor the network.
func (a *Agent) withKnownReservations(ctx context.Context, n registry.Network, err, missing error) error {
	set, unread := a.env.registry.Reservations(ctx, n)
	if unread != nil {
		return err
	}
	if missing != nil && len(set.Reservations) == 0 {
		return missing
	}
	var subnets []netip.Prefix
	for _, v := range set.Reservations {
		subnets = append(subnets, v.Subnet)
	}
	return fmt.Errorf("%w: %s", err, knownAre(subnets))
}
