package httpapi

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

// TestRefusedNetworkKeepsNothing: a network that cannot be defined leaves no reservations behind.
func TestRefusedNetworkKeepsNothing(t *testing.T) {
	ctx := context.Background()
	subnet := netip.MustParsePrefix
	m := api.Network{Name: "m", Pools: []api.Pool{{Prefix: subnet("10.7.0.0/22")}}, Backend: []byte(`{"type":"recorder"}`)}
	one := api.Reservation{Subnet: subnet("10.7.1.0/24"), Node: "x"}
	for _, tt := range []struct {
		name  string
		put   func(*api.Network) []api.Reservation
		code  int
		words []string
	}{
		{name: "out of range", put: func(*api.Network) []api.Reservation {
			return []api.Reservation{one, {Subnet: subnet("10.7.0.0/24"), Node: "y"}, {Subnet: subnet("10.8.0.0/24"), Node: "z"}}
		}, code: http.StatusBadRequest, words: []string{"10.7.0.0/24", "10.8.0.0/24"}},
		{name: "no host", put: func(*api.Network) []api.Reservation { return []api.Reservation{{Subnet: one.Subnet}} }, code: http.StatusBadRequest},
		{name: "a subnet twice", put: func(*api.Network) []api.Reservation {
			return []api.Reservation{one, {Subnet: one.Subnet, Node: "y"}}
		}, code: http.StatusBadRequest, words: []string{"10.7.1.0/24 is there twice"}},
		{name: "a host twice", put: func(*api.Network) []api.Reservation {
			return []api.Reservation{one, {Subnet: subnet("10.7.2.0/24"), Node: "x"}}
		}, code: http.StatusBadRequest, words: []string{`node "x" has two`}},
		{name: "not new", put: func(n *api.Network) []api.Reservation { n.ModifyIndex = 7; return []api.Reservation{one} },
			code: http.StatusBadRequest, words: []string{"modify_index 0"}},
		{name: "exists", put: func(n *api.Network) []api.Reservation {
			n.Name, n.Pools = "n", []api.Pool{{Prefix: subnet("10.5.0.0/22")}}
			return []api.Reservation{{Subnet: subnet("10.5.3.0/24"), Node: "x"}}
		}, code: http.StatusConflict, words: []string{"exists"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := serving(t, nil)
			n := m
			kept := tt.put(&n)
			_, err := h.client.PutNetwork(ctx, n, false, kept...)
			agenttest.WantCode(t, tt.name, err, tt.code, tt.words...)
			plan, err := registry.Plan{{Prefix: n.Pools[0].Prefix}}.Normalize()
			must(t, err)
			set, _, err := h.store.Client().WatchReservations(ctx, registry.Network{Name: n.Name, Plan: plan}, 0)
			must(t, err)
			if len(set.Reservations) != 0 {
				t.Errorf("reservations %+v", set.Reservations)
			}
		})
	}
}

// TestReservationsLeft: reservations that an interrupted copy has left of an undefined network are listed, named by a
// plan, and can be removed.
func TestReservationsLeft(t *testing.T) {
	ctx := t.Context()
	h := serving(t, nil)
	n := api.Network{Name: "m", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/22")}}, Backend: []byte(`{"type":"recorder"}`)}
	left := []api.Reservation{{Subnet: netip.MustParsePrefix("10.7.1.0/24"), Node: "x"}, {Subnet: netip.MustParsePrefix("10.7.2.0/24"), NodeID: "6f1c9d1e-0000-4000-8000-00000000000b"}}
	leave := func() {
		for _, v := range left {
			must(t, h.store.Client().AddReservation(ctx, registry.Network{Name: "m", Plan: registry.Plan{{Prefix: n.Pools[0].Prefix, SubnetLen: 24,
				Min: netip.MustParseAddr("10.7.1.0"), Max: netip.MustParseAddr("10.7.3.0")}}}, registry.Reservation{Subnet: v.Subnet, Node: v.Node, NodeID: v.NodeID}, false))
		}
	}
	_, err := h.client.Reservations(ctx, "m")
	agenttest.WantCode(t, "list of none", err, http.StatusNotFound, "known are n")
	agenttest.WantCode(t, "remove of none", h.client.RemoveReservation(ctx, "m", left[0].Subnet), http.StatusNotFound, "known are n")
	agenttest.WantCode(t, "delete of none", h.client.DeleteNetwork(ctx, "m", true), http.StatusNotFound, "known are n")

	leave()
	list, err := h.client.Reservations(ctx, "m")
	must(t, err)
	if !slices.Equal(list.Reservations, left) {
		t.Errorf("reservations %+v, want %+v", list.Reservations, left)
	}
	plan, err := h.client.PlanNetwork(ctx, n)
	must(t, err)
	if !slices.Equal(plan.Reservations, left) {
		t.Errorf("plan with %+v, want %+v", plan.Reservations, left)
	}
	must(t, h.client.RemoveReservation(ctx, "m", left[0].Subnet))
	agenttest.WantCode(t, "removed twice", h.client.RemoveReservation(ctx, "m", left[0].Subnet), http.StatusNotFound, "no such reservation", "10.7.2.0/24")
	must(t, h.client.DeleteNetwork(ctx, "m", false))
	agenttest.WantCode(t, "deleted twice", h.client.DeleteNetwork(ctx, "m", false), http.StatusNotFound)

	// The operator repeats the interrupted copy.
	leave()
	_, err = h.client.PutNetwork(ctx, n, false, left...)
	must(t, err)
	if list, err = h.client.Reservations(ctx, "m"); err != nil || !slices.Equal(list.Reservations, left) {
		t.Errorf("reservations %+v, %v, want %+v", list.Reservations, err, left)
	}
}
