package agent

import (
	"context"
	"net/http"
	"net/netip"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/internal/testkit/faulty"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestWritesAreMadeUnderTheCallersToken: the API writes to the store with the caller's token, and never lends the
// agent's own rights.
func TestWritesAreMadeUnderTheCallersToken(t *testing.T) {
	ctx := context.Background()
	slot := func(h *host) netip.Prefix { // a slot that no host has
		for _, p := range []string{"10.5.1.0/24", "10.5.2.0/24"} {
			if p := netip.MustParsePrefix(p); p != h.subnet() {
				return p
			}
		}
		return netip.Prefix{}
	}
	network := api.Network{Name: "m", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/16")}}, Backend: []byte(`{"type":"recorder"}`)}
	for _, tt := range []struct {
		call  string
		write func(h *host, c *api.Client) error
	}{
		{"PutNetwork", func(_ *host, c *api.Client) error { _, err := c.PutNetwork(ctx, network, false); return err }},
		{"AddReservation", func(h *host, c *api.Client) error {
			return c.AddReservation(ctx, "n", api.Reservation{Subnet: slot(h), Node: "z"}, false)
		}},
		{"RemoveReservation", func(h *host, c *api.Client) error { return c.RemoveReservation(ctx, "n", slot(h)) }},
		{"Revoke", func(h *host, c *api.Client) error { return c.RevokeLease(ctx, "n", h.subnet()) }},
		{"Renew", func(_ *host, c *api.Client) error { _, err := c.RenewLease(ctx, "n"); return err }},
		{"Release", func(_ *host, c *api.Client) error { return c.ReleaseLease(ctx, "n") }},
		{"DeleteNetwork", func(_ *host, c *api.Client) error { return c.DeleteNetwork(ctx, "n", true) }},
	} {
		subtest(t, tt.call, func(t *testing.T) {
			for _, token := range []string{"", "operator", faulty.RefusedToken} {
				a := newHost(t, memory.New(), "a").start()
				a.ready()
				if tt.call == "RemoveReservation" {
					v := registry.Reservation{Network: "n", Slot: uint64(slot(a).Addr().As4()[2]), Subnet: slot(a), Node: "z"}
					n, err := a.store.Client().Network(ctx, "n")
					if err != nil {
						t.Fatal(err)
					}
					if err := a.store.Client().AddReservation(ctx, n, v, false); err != nil {
						t.Fatal(err)
					}
				}
				before := a.registry.Count("own " + tt.call)
				err := tt.write(a, a.clientWith(token))
				if token == faulty.RefusedToken {
					agenttest.WantCode(t, "a token without rights", err, http.StatusForbidden)
				} else if err != nil {
					t.Errorf("token %q: %v", token, err)
				} else if n := a.registry.Count("token " + token + " " + tt.call); n != 1 {
					t.Errorf("token %q was used %d times", token, n)
				}
				if err := a.stop(); err != nil {
					t.Error(err)
				}
				if n := a.registry.Count("own " + tt.call); n != before && tt.call != "Renew" { // the agent renews by itself
					t.Errorf("token %q: the agent's own was used", token)
				}
			}
		})
	}
}
