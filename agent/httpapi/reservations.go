package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/hashicorp/go-uuid"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/query"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// reservationHandlers handle requests about reservations.
type reservationHandlers struct{ directory }

// query reads the store, because an agent itself reads reservations only when it makes a claim.
func (h reservationHandlers) query(r *http.Request) (query.Query, error) {
	n, err := h.requestedNetwork(r)
	name := r.PathValue("network")
	// The cache keeps the names of queries, so they must be names that a network can have.
	if errors.Is(err, registry.ErrNetworkNotFound) && registry.CheckNetworkName(name) == nil {
		return h.queryOrphans(name, err), nil
	}
	readStore := func(ctx context.Context, after uint64) (out query.Content, index uint64, err error) {
		read := func(ctx context.Context, n registry.Network, after uint64) error {
			set, next, err := h.agent.WatchReservations(ctx, n, after)
			out, index = reservationList(set), next
			return err
		}
		err = h.readDefined(ctx, n.Name, after, reservationsPace, read)
		return out, index, err
	}
	return query.Query{Name: "reservations of " + n.Name, ReadStore: readStore}, err
}

// queryOrphans returns the reservations of a network that is not defined. There are some if the network could not be
// created or completely deleted; if there are none, the query fails with missing.
func (h reservationHandlers) queryOrphans(network string, missing error) query.Query {
	readStore := func(ctx context.Context, after uint64) (query.Content, uint64, error) {
		set, index, err := h.store.WatchReservations(ctx, registry.Network{Name: network}, after)
		if err == nil && len(set.Reservations)+len(set.Bad) == 0 {
			err = missing
		}
		return reservationList(set), index, err
	}
	return query.Query{Name: "reservations of " + network, ReadStore: readStore}
}

// reservationsPace is how long it takes at most to see a change that does not move the store's index.
const reservationsPace = time.Minute

func reservationList(set registry.ReservationSet) query.Content {
	return query.Content{Body: api.ReservationList{Reservations: reservations(set), Skipped: skippedRecords(set.Bad)}}
}

func reservations(set registry.ReservationSet) []api.Reservation {
	out := []api.Reservation{}
	for _, v := range set.Reservations {
		out = append(out, api.Reservation{Subnet: v.Subnet, Node: v.Node, NodeID: v.NodeID})
	}
	return out
}

func (h reservationHandlers) put(r *http.Request) (out api.Reservation, err error) {
	subnet, err := subnetOf(r)
	if err != nil {
		return out, err
	}
	var body api.Reservation
	if err := readBody(r, &body); err != nil {
		return out, err
	}
	if body.Subnet.IsValid() && body.Subnet != subnet {
		return out, badRequest("subnet %s contradicts the path", body.Subnet)
	}
	n, err := h.requestedNetwork(r)
	if err != nil {
		return out, err
	}
	if err := checkReservedFor(body); err != nil {
		return out, err
	}
	v := registry.Reservation{Subnet: subnet, Node: body.Node, NodeID: body.NodeID}
	if v, err = registry.CheckReservation(n, v); err != nil {
		return out, err
	}
	force, err := flag(r, "force")
	if err != nil {
		return out, err
	}
	if err := h.storeFor(r).AddReservation(r.Context(), n, v, force); err != nil {
		return out, err
	}
	return api.Reservation{Subnet: v.Subnet, Node: v.Node, NodeID: v.NodeID}, nil
}

// checkReservedFor refuses a reservation for a host that cannot exist, which would take the subnet from all hosts.
// Records of such a reservation can still be read.
func checkReservedFor(v api.Reservation) error {
	if v.Node != "" {
		if err := config.CheckNodeName(v.Node); err != nil {
			return badRequest("node: %v", err)
		}
	}
	if v.NodeID == "" {
		return nil
	}
	if _, err := uuid.ParseUUID(v.NodeID); err != nil {
		return badRequest("node_id: %q is not a node id: it is a UUID, which `leno status` shows on the host",
			quoteText(v.NodeID))
	}
	return nil
}

// delete deletes a reservation, also of a network that is not defined.
func (h reservationHandlers) delete(r *http.Request) error {
	subnet, err := subnetOf(r)
	if err != nil {
		return err
	}
	n, missing := h.requestedNetwork(r)
	switch {
	case errors.Is(missing, registry.ErrNetworkNotFound):
		n = registry.Network{Name: r.PathValue("network")}
	case missing != nil:
		return missing
	}
	err = h.storeFor(r).RemoveReservation(r.Context(), n.Name, subnet)
	if errors.Is(err, registry.ErrReservationNotFound) {
		err = h.listOthers(r.Context(), n, err, missing)
	}
	return err
}

// listOthers returns an error about a reservation that does not exist, with those that do. It returns missing if
// neither the network nor any reservation exists.
func (h reservationHandlers) listOthers(ctx context.Context, n registry.Network, err, missing error) error {
	set, _, unread := h.store.WatchReservations(ctx, n, 0)
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
	return fmt.Errorf("%w: %s", err, listKnown(subnets))
}
