package agent

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// TestTwoNetworksWithReservations: if two clients define the same network at the same time, one of them is told that
// the network already exists, and no reservation is missing.
func TestTwoNetworksWithReservations(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
		a.ready()
		b.ready()
		var kept []api.Reservation
		for i := range 250 {
			kept = append(kept, api.Reservation{Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 7, byte(i + 1), 0}), 24), Node: fmt.Sprintf("x-%d", i)})
		}
		for _, name := range []string{"m", "o", "p", "q"} {
			n := api.Network{Name: name, Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/16")}}, Backend: []byte(`{"type":"recorder"}`)}
			errs := make(chan error, 2)
			for _, h := range []*host{a, b} {
				go func() { _, err := h.client.PutNetwork(t.Context(), n, true, kept...); errs <- err }()
			}
			first, second := <-errs, <-errs
			if (first == nil) == (second == nil) {
				t.Errorf("errors %v, %v, want one", first, second)
			}
			list, err := a.client.Reservations(t.Context(), name)
			must(t, err)
			if len(list.Reservations) != len(kept) {
				t.Errorf("network %s has %d reservations, want %d", name, len(list.Reservations), len(kept))
			}
			must(t, a.client.DeleteNetwork(t.Context(), name, false))
		}
	})
}
