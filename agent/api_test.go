package agent

import (
	"context"
	"net/http"
	"net/netip"
	"testing"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry/memory"
)

// TestAPI calls the endpoints through the client that the commands use.
func TestAPI(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a, b := newHost(t, store, "a"), newHost(t, store, "b").start()
		a.wall.report = firewall.Report{Choice: firewall.Choice{Kind: "iptables-nft", Reason: "it works"}}
		a.start()
		a.applies(a.subnet().String() + " <- b@" + b.subnet().String())
		a.ready()
		ctx := context.Background()
		c := a.client

		self, err := c.Self(ctx)
		if err != nil || self.NodeName != "a" || self.Version != "test" || len(self.Networks) != 1 {
			t.Errorf("self %+v, %v", self, err)
		}
		if self.Firewall == nil || self.Firewall.Kind != "iptables-nft" {
			t.Errorf("self says %+v of the firewall", self.Firewall)
		}
		networks, err := c.Networks(ctx)
		if err != nil || len(networks.Networks) != 1 || networks.Index == 0 {
			t.Errorf("networks %+v, %v", networks, err)
		}
		n, err := c.Network(ctx, "n")
		if err != nil || n.Local == nil || n.Local.State != "running" || n.Local.Peers != 1 || n.Local.Subnets[0] != a.subnet() {
			t.Errorf("network %+v, %v", n.Local, err)
		}
		leases, err := c.Leases(ctx, "n")
		if err != nil || len(leases.Leases) != 2 || leases.Skipped == nil || leases.Index == 0 {
			t.Errorf("leases %+v, %v", leases, err)
		}
		own, err := c.Lease(ctx, "n", a.subnet())
		if err != nil || !own.Own || !own.Held || own.Node != "a" {
			t.Errorf("own lease %+v, %v", own, err)
		}
		peers, err := c.Peers(ctx, "n")
		if err != nil || len(peers.Peers) != 1 || peers.Peers[0].Node != "b" || !peers.Peers[0].Held {
			t.Errorf("peers %+v, %v", peers, err)
		}

		kept := api.Reservation{Subnet: free(a, b), Node: "z"}
		if err := c.AddReservation(ctx, "n", kept, false); err != nil {
			t.Error(err)
		}
		if list, err := c.Reservations(ctx, "n"); err != nil || len(list.Reservations) != 1 || list.Reservations[0] != kept {
			t.Errorf("reservations %+v, %v", list, err)
		}
		taken := kept
		taken.Node = "y"
		agenttest.WantCode(t, "a slot reserved twice", c.AddReservation(ctx, "n", taken, false), http.StatusConflict, "z")
		if err := c.RemoveReservation(ctx, "n", kept.Subnet); err != nil {
			t.Error(err)
		}
		agenttest.WantCode(t, "a reservation removed twice", c.RemoveReservation(ctx, "n", kept.Subnet), http.StatusNotFound)
		held := api.Reservation{Subnet: b.subnet(), Node: "z"}
		agenttest.WantCode(t, "a slot that another host holds", c.AddReservation(ctx, "n", held, false), http.StatusConflict, `"b"`, "192.0.2.98", "force")
		if err := c.AddReservation(ctx, "n", held, true); err != nil {
			t.Error(err)
		}
		if err := c.RemoveReservation(ctx, "n", held.Subnet); err != nil {
			t.Error(err)
		}
		outside := api.Reservation{Subnet: netip.MustParsePrefix("10.5.0.0/24"), Node: "z"}
		agenttest.WantCode(t, "a slot out of range", c.AddReservation(ctx, "n", outside, true), http.StatusBadRequest, "10.5.1.0/24 to 10.5.3.0/24")

		_, err = c.Network(ctx, "m")
		agenttest.WantCode(t, "an unknown network", err, http.StatusNotFound, "n")
		_, err = c.Lease(ctx, "n", netip.MustParsePrefix("10.9.0.0/24"))
		agenttest.WantCode(t, "an unknown lease", err, http.StatusNotFound, "10.9.0.0/24")
		agenttest.WantCode(t, "revoking one that is not there", c.RevokeLease(ctx, "n", netip.MustParsePrefix("10.5.0.0/24")), http.StatusNotFound)
		_, err = c.PutNetwork(ctx, api.Network{Name: "m", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/30")}}, Backend: []byte(`{"type":"recorder"}`)}, false)
		agenttest.WantCode(t, "a pool too small", err, http.StatusBadRequest, "10.7.0.0/30")
		_, err = c.PutNetwork(ctx, api.Network{Name: "m", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/16")}}, Backend: []byte(`{"type":"pigeon"}`)}, false)
		agenttest.WantCode(t, "an unknown backend", err, http.StatusBadRequest, "pigeon")
		agenttest.WantCode(t, "a reload without files", errOf(c.Reload(ctx, false)), http.StatusConflict)

		m, err := c.PutNetwork(ctx, api.Network{Name: "m", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/16")}}, Backend: []byte(`{"type":"recorder"}`)}, false)
		if err != nil || m.ModifyIndex == 0 || m.Pools[0].SubnetLen != 24 || m.Local != nil {
			t.Errorf("put %+v, %v", m, err)
		}
		// The next request already sees what was written.
		if err := c.AddReservation(ctx, "m", api.Reservation{Subnet: netip.MustParsePrefix("10.7.9.0/24"), Node: "z"}, false); err != nil {
			t.Error(err)
		}
		if list, err := c.Networks(ctx); err != nil || len(list.Networks) != 2 {
			t.Errorf("networks %+v, %v", list, err)
		}
		m.ModifyIndex--
		_, err = c.PutNetwork(ctx, m, false)
		agenttest.WantCode(t, "an old version", err, http.StatusConflict)
	})
}
