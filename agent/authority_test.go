package agent

import (
	"context"
	"net/http"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/health"
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
		t.Run(tt.call, func(t *testing.T) {
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
				client, err := api.New(api.Config{Address: a.config.HTTP.Address, Token: token})
				if err != nil {
					t.Fatal(err)
				}
				err = tt.write(a, client)
				client.Close()
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

// TestDeleteLooksWithTheCallersRights: deleting a network reads its leases with the caller's token, so that only a
// caller who may read them learns which hosts are in the way.
func TestDeleteLooksWithTheCallersRights(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	err := a.client.DeleteNetwork(context.Background(), "n", false)
	agenttest.WantCode(t, "a network in use", err, http.StatusConflict, "a")
	if a.registry.Count("token  WatchLeases") != 1 {
		t.Error("the leases were not read under the caller's token")
	}
}

func TestRefusedReleaseChangesNothing(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	subnet := a.subnet()
	statuses := func() map[string]string {
		out := map[string]string{}
		report, _ := a.agent.env.Reports.Health.Report()
		for _, c := range append(report.Checks, report.Networks[0].Checks...) {
			out[c.Name] = c.Status
		}
		return out
	}
	a.check(health.Snapshot, api.Passing)
	before := statuses()
	lease, _ := mustRunner(t, a).Lease()
	client, err := api.New(api.Config{Address: a.config.HTTP.Address, Token: faulty.RefusedToken})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	agenttest.WantCode(t, "release", client.ReleaseLease(context.Background(), "n"), http.StatusForbidden)

	if diff := cmp.Diff(before, statuses()); diff != "" {
		t.Errorf("health changed: %s", diff)
	}
	if _, session, ok := a.store.Get(leaseKey(subnet)); !ok || session != lease.Session {
		t.Errorf("record there: %t, session %q", ok, session)
	}
	renewals, tries := a.registry.Count("own Renew"), len(a.recorder.tries())
	a.kick()
	a.more("renewals", renewals, func() int { return a.registry.Count("own Renew") })
	a.more("applies", tries, func() int { return len(a.recorder.tries()) })
	if got := a.recorder.all(); len(got) != 1 {
		t.Errorf("the datapath was disturbed: %q", got)
	}
	// The next request, from a caller with the right to make it, succeeds.
	if err := a.client.ReleaseLease(context.Background(), "n"); err != nil {
		t.Error(err)
	}
	a.applies("zero")
}
