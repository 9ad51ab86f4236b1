package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestNetworkWithReservations defines a network that hosts wait for: each gets the
// subnet that is kept for it, although it takes one the moment there is a network.
func TestNetworkWithReservations(t *testing.T) {
	store := memory.New()
	hosts := []*host{newHost(t, store, "a"), newHost(t, store, "b"), newHost(t, store, "c")}
	var kept []api.Reservation
	for i, h := range hosts {
		h.config.Networks[0].Pools = nil
		h.start()
		// Not in the order in which slots are chosen.
		kept = append(kept, api.Reservation{Subnet: netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", 3-i)), Node: h.name})
	}
	for _, h := range hosts {
		h.check(checkNetwork, api.Critical, "leno network apply")
	}
	n := api.Network{Name: "n", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.5.0.0/22")}}, Backend: []byte(`{"type":"recorder"}`)}
	if _, err := hosts[0].client.PutNetwork(t.Context(), n, false, kept...); err != nil {
		t.Fatal(err)
	}
	for i, h := range hosts {
		h.ready()
		if got := h.subnet(); got != kept[i].Subnet {
			t.Errorf("%s has %s, want %s", h.name, got, kept[i].Subnet)
		}
	}
}

// TestRefusedNetworkKeepsNothing: what cannot be defined leaves no reservation.
func TestRefusedNetworkKeepsNothing(t *testing.T) {
	ctx := context.Background()
	subnet := netip.MustParsePrefix
	m := api.Network{Name: "m", Pools: []api.Pool{{Prefix: subnet("10.7.0.0/22")}}, Backend: []byte(`{"type":"recorder"}`)}
	one := api.Reservation{Subnet: subnet("10.7.1.0/24"), Node: "x"}
	for _, tt := range []struct {
		name  string
		put   func(*api.Network) []api.Reservation
		set   func(*host)
		code  int
		words []string
		stays int // reservations in the end
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
		}, code: http.StatusBadRequest, words: []string{"host x has two"}},
		{name: "not new", put: func(n *api.Network) []api.Reservation { n.ModifyIndex = 7; return []api.Reservation{one} },
			code: http.StatusBadRequest, words: []string{"modify_index 0"}},
		{name: "exists", put: func(n *api.Network) []api.Reservation {
			n.Name, n.Pools = "n", []api.Pool{{Prefix: subnet("10.5.0.0/22")}}
			return []api.Reservation{{Subnet: subnet("10.5.3.0/24"), Node: "x"}}
		}, code: http.StatusConflict, words: []string{"exists"}},
		{name: "no right to define it", put: func(*api.Network) []api.Reservation { return []api.Reservation{one} },
			set: func(h *host) { h.registry.setOne("PutNetwork", registry.ErrDenied) }, code: http.StatusForbidden},
		// It may have been defined all the same, and must not be without them.
		{name: "no answer", put: func(*api.Network) []api.Reservation { return []api.Reservation{one} },
			set: func(h *host) { h.registry.setOne("PutNetwork", registry.ErrUnavailable) }, code: http.StatusServiceUnavailable, stays: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, memory.New(), "a").start()
			h.ready()
			if tt.set != nil {
				tt.set(h)
			}
			n := m
			kept := tt.put(&n)
			_, err := h.client.PutNetwork(ctx, n, false, kept...)
			wantCode(t, tt.name, err, tt.code, tt.words...)
			plan, err := registry.Plan{{Prefix: n.Pools[0].Prefix}}.Normalize()
			must(t, err)
			set, err := h.store.Client().Reservations(ctx, registry.Network{Name: n.Name, Plan: plan})
			must(t, err)
			if len(set.Reservations) != tt.stays {
				t.Errorf("reservations %+v, want %d", set.Reservations, tt.stays)
			}
		})
	}
}

// TestNetworkWithReservationsAgain: who was interrupted may repeat it, and what
// was there before a refusal stays.
func TestNetworkWithReservationsAgain(t *testing.T) {
	h := newHost(t, memory.New(), "a").start()
	h.ready()
	n := api.Network{Name: "m", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/22")}}, Backend: []byte(`{"type":"recorder"}`)}
	kept := []api.Reservation{{Subnet: netip.MustParsePrefix("10.7.1.0/24"), Node: "x"}, {Subnet: netip.MustParsePrefix("10.7.2.0/24"), Node: "y"}}
	for i, refusal := range []error{registry.ErrUnavailable, registry.ErrDenied, nil} {
		h.registry.setOne("PutNetwork", refusal)
		if _, err := h.client.PutNetwork(t.Context(), n, false, kept...); (err == nil) != (refusal == nil) {
			t.Fatalf("try %d: %v", i, err)
		}
		plan, err := registry.Plan{{Prefix: n.Pools[0].Prefix}}.Normalize()
		must(t, err)
		set, err := h.store.Client().Reservations(t.Context(), registry.Network{Name: "m", Plan: plan})
		must(t, err)
		if len(set.Reservations) != 2 {
			t.Errorf("try %d leaves reservations %+v", i, set.Reservations)
		}
	}
}
