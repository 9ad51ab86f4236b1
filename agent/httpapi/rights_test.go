package httpapi

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/internal/testkit/faulty"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestWritesAreMadeUnderTheCallersToken: the API writes to the store with the caller's token, and never lends the
// agent's own rights. Leases are renewed and released by their networks: see lease.TestRenewNow and lease.TestRelease.
func TestWritesAreMadeUnderTheCallersToken(t *testing.T) {
	third := netip.MustParsePrefix("10.5.3.0/24") // of no host
	m := api.Network{Name: "m", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/16")}}, Backend: []byte(`{"type":"recorder"}`)}
	for _, tt := range []struct {
		call  string
		write func(ctx context.Context, c *api.Client) error
	}{
		{"PutNetwork", func(ctx context.Context, c *api.Client) error { _, err := c.PutNetwork(ctx, m, false); return err }},
		{"AddReservation", func(ctx context.Context, c *api.Client) error {
			return c.AddReservation(ctx, "n", api.Reservation{Subnet: third, Node: "z"}, false)
		}},
		{"RemoveReservation", func(ctx context.Context, c *api.Client) error { return c.RemoveReservation(ctx, "n", third) }},
		{"Revoke", func(ctx context.Context, c *api.Client) error { return c.RevokeLease(ctx, "n", third) }},
		{"DeleteNetwork", func(ctx context.Context, c *api.Client) error { return c.DeleteNetwork(ctx, "n", true) }},
	} {
		for _, token := range []string{"", "operator", faulty.RefusedToken} {
			t.Run(tt.call+" with token "+token, func(t *testing.T) {
				h := newHost(t, nil)
				store := faulty.New(h.registry)
				n, err := h.registry.Network(t.Context(), "n")
				must(t, err)
				switch tt.call {
				case "RemoveReservation":
					must(t, h.registry.AddReservation(t.Context(), n, registry.Reservation{Slot: 3, Subnet: third, Node: "z"}, false))
				case "Revoke":
					_, err := h.registry.Acquire(t.Context(), n, claimOf("z", third, n))
					must(t, err)
				}
				h.registry, h.options.Registry = store, store
				h.serve("127.0.0.1:0")
				err = tt.write(t.Context(), h.clientWith(token))
				if token == faulty.RefusedToken {
					agenttest.WantCode(t, "a token without rights", err, http.StatusForbidden)
				} else if must(t, err); store.Count("token "+token+" "+tt.call) != 1 {
					t.Errorf("token %q was used %d times", token, store.Count("token "+token+" "+tt.call))
				}
				if store.Count("own "+tt.call) != 0 {
					t.Error("the agent's own token was used")
				}
			})
		}
	}
}

// certified is a store that knows the agent by a certificate.
type certified struct{ registry.Registry }

func (c certified) Abilities() registry.Abilities {
	out := c.Registry.Abilities()
	out.IsCertified = true
	return out
}

// TestCertificate: a store that knows the agent by a certificate is used with the rights of the agent only for callers
// without a token on a socket.
func TestCertificate(t *testing.T) {
	socket, tcp := &net.UnixAddr{Name: "/run/leno/leno.sock", Net: "unix"}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5366}
	for _, tt := range []struct {
		at          net.Addr
		isCertified bool
		token       string
		want        string
	}{
		{socket, true, "", "own"},
		{socket, true, "x:y", "token x:y"},
		{socket, false, "", "token "},
		{tcp, true, "", "token "},
		{tcp, false, "", "token "},
		{nil, true, "", "token "},
	} {
		store := faulty.New(memory.New().Client())
		d := directory{store: store}
		if tt.isCertified {
			d.store = certified{store}
		}
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, tt.at), "GET", "/", nil)
		if tt.token != "" {
			r.Header.Set("X-Consul-Token", tt.token)
		}
		_, _ = d.storeFor(r).Network(t.Context(), "n")
		if store.Count(tt.want+" Network") != 1 {
			t.Errorf("%+v: another token was used", tt)
		}
	}
}

// TestDeletionOfANetworkInUse: a network with leases is deleted only with force. Only a caller who may read the leases
// learns which hosts are in the way.
func TestDeletionOfANetworkInUse(t *testing.T) {
	h := newHost(t, nil)
	n, err := h.registry.Network(t.Context(), "n")
	must(t, err)
	_, err = h.registry.Acquire(t.Context(), n, claimOf("z", netip.MustParsePrefix("10.5.3.0/24"), n))
	must(t, err)
	store := faulty.New(h.registry)
	h.registry, h.options.Registry = store, store
	h.serve("127.0.0.1:0")
	agenttest.WantCode(t, "in use", h.client.DeleteNetwork(t.Context(), "n", false), http.StatusConflict, "z")
	if got := store.Count("token  WatchLeases"); got != 1 {
		t.Errorf("the leases were read %d times under the caller's token", got)
	}
	if _, err := h.store.Client().Network(t.Context(), "n"); err != nil {
		t.Errorf("it was deleted: %v", err)
	}
	must(t, h.client.DeleteNetwork(t.Context(), "n", true))
}

// TestUnusableRecordOfANetwork: every request about a network whose record cannot be used says so. Only a deletion with
// force is made.
func TestUnusableRecordOfANetwork(t *testing.T) {
	h := newHost(t, nil)
	h.store.Put(memory.Prefix+"/networks/other", []byte(`{"version":2}`))
	h.serve("127.0.0.1:0")
	ctx, c := t.Context(), h.client
	says := "its record in the store cannot be used: invalid: version 2"
	_, err := c.Network(ctx, "other")
	agenttest.WantCode(t, "show", err, http.StatusConflict, says)
	_, err = c.Leases(ctx, "other")
	agenttest.WantCode(t, "leases", err, http.StatusConflict, says)
	_, err = c.Reservations(ctx, "other")
	agenttest.WantCode(t, "reservations", err, http.StatusConflict, says)
	_, err = c.Peers(ctx, "other")
	agenttest.WantCode(t, "peers", err, http.StatusConflict, says)
	o := api.Network{Name: "other", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/16")}}, Backend: []byte(`{"type":"recorder"}`)}
	_, err = c.PutNetwork(ctx, o, false)
	agenttest.WantCode(t, "put", err, http.StatusConflict, "cannot be used", "consul kv put")
	_, err = c.PlanNetwork(ctx, o)
	agenttest.WantCode(t, "plan", err, http.StatusConflict, "cannot be used", "consul kv put")
	agenttest.WantCode(t, "delete", c.DeleteNetwork(ctx, "other", false), http.StatusConflict)
	must(t, c.DeleteNetwork(ctx, "other", true))
	_, err = c.Network(ctx, "other")
	agenttest.WantCode(t, "show after the deletion", err, http.StatusNotFound)
}

// claimOf returns the claim of a host on a subnet.
func claimOf(node string, subnet netip.Prefix, n registry.Network) registry.Claim {
	like := agenttest.Lease(node, 0, "", 0)
	return registry.Claim{Node: node, NodeID: like.NodeID, PublicIPs: like.PublicIPs, MTU: 1450, Backend: n.Backend,
		Prefer: subnet, TTL: time.Hour, Hold: time.Hour}
}

// clientWith returns a client of the host's API with a token.
func (h *host) clientWith(token string) *api.Client {
	h.t.Helper()
	out, err := api.New(api.Config{Address: h.address, Token: token})
	must(h.t, err)
	h.t.Cleanup(out.Close)
	return out
}
