package agent

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestAPI goes through the endpoints with the client that commands use.
func TestAPI(t *testing.T) {
	store := memory.New()
	a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
	a.applies(a.subnet().String() + " <- b@" + b.subnet().String())
	a.ready()
	ctx := context.Background()
	c := a.client

	self, err := c.Self(ctx)
	if err != nil || self.NodeName != "a" || self.Version != "test" || len(self.Networks) != 1 {
		t.Errorf("self %+v, %v", self, err)
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
	wantCode(t, "a slot reserved twice", c.AddReservation(ctx, "n", taken, false), http.StatusConflict, "z")
	if err := c.RemoveReservation(ctx, "n", kept.Subnet); err != nil {
		t.Error(err)
	}
	wantCode(t, "a reservation removed twice", c.RemoveReservation(ctx, "n", kept.Subnet), http.StatusNotFound)
	held := api.Reservation{Subnet: b.subnet(), Node: "z"}
	wantCode(t, "a slot somebody holds", c.AddReservation(ctx, "n", held, false), http.StatusConflict, `"b"`, "192.0.2.98", "force")
	if err := c.AddReservation(ctx, "n", held, true); err != nil {
		t.Error(err)
	}
	if err := c.RemoveReservation(ctx, "n", held.Subnet); err != nil {
		t.Error(err)
	}
	outside := api.Reservation{Subnet: netip.MustParsePrefix("10.5.0.0/24"), Node: "z"}
	wantCode(t, "a slot out of range", c.AddReservation(ctx, "n", outside, true), http.StatusBadRequest, "10.5.1.0/24 to 10.5.3.0/24")

	_, err = c.Network(ctx, "m")
	wantCode(t, "an unknown network", err, http.StatusNotFound, "n")
	_, err = c.Lease(ctx, "n", netip.MustParsePrefix("10.9.0.0/24"))
	wantCode(t, "an unknown lease", err, http.StatusNotFound, "10.9.0.0/24")
	wantCode(t, "revoking one that is not there", c.RevokeLease(ctx, "n", netip.MustParsePrefix("10.5.0.0/24")), http.StatusNotFound)
	_, err = c.PutNetwork(ctx, api.Network{Name: "m", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/30")}}, Backend: []byte(`{"type":"recorder"}`)}, false)
	wantCode(t, "a pool too small", err, http.StatusBadRequest, "10.7.0.0/30")
	_, err = c.PutNetwork(ctx, api.Network{Name: "m", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/16")}}, Backend: []byte(`{"type":"pigeon"}`)}, false)
	wantCode(t, "an unknown backend", err, http.StatusBadRequest, "pigeon")
	wantCode(t, "a reload without files", errOf(c.Reload(ctx, false)), http.StatusConflict)

	m, err := c.PutNetwork(ctx, api.Network{Name: "m", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/16")}}, Backend: []byte(`{"type":"recorder"}`)}, false)
	if err != nil || m.ModifyIndex == 0 || m.Pools[0].SubnetLen != 24 || m.Local != nil {
		t.Errorf("put %+v, %v", m, err)
	}
	// What was written is seen by whatever is asked next.
	if err := c.AddReservation(ctx, "m", api.Reservation{Subnet: netip.MustParsePrefix("10.7.9.0/24"), Node: "z"}, false); err != nil {
		t.Error(err)
	}
	if list, err := c.Networks(ctx); err != nil || len(list.Networks) != 2 {
		t.Errorf("networks %+v, %v", list, err)
	}
	m.ModifyIndex--
	_, err = c.PutNetwork(ctx, m, false)
	wantCode(t, "an old version", err, http.StatusConflict)
}

func wantCode(t *testing.T, what string, err error, code int, words ...string) {
	t.Helper()
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Code != code {
		t.Errorf("%s: %v, want %d", what, err, code)
		return
	}
	for _, w := range words {
		if !strings.Contains(refused.Message, w) {
			t.Errorf("%s: %q does not name %s", what, refused.Message, w)
		}
	}
}

func TestRawRequests(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	for _, tt := range []struct {
		name, method, path, body string
		code                     int
		says                     string
	}{
		{"unknown endpoint", "GET", "/v1/nothing", "", 404, "no such endpoint"},
		{"wrong method", "POST", "/v1/networks", "", 405, "/v1/networks takes GET, HEAD, not POST"},
		{"bad subnet", "GET", "/v1/network/n/lease/10.5.1.0", "", 400, "subnet"},
		{"no JSON", "PUT", "/v1/network/m", "{", 400, "request body"},
		{"unknown member", "PUT", "/v1/network/m", `{"poolz":[]}`, 400, "poolz"},
		{"another name", "PUT", "/v1/network/m", `{"name":"k"}`, 400, "contradicts"},
		{"no pools", "PUT", "/v1/network/m", `{}`, 400, "pool"},
		{"no backend", "PUT", "/v1/network/m", `{"pools":[{"prefix":"10.7.0.0/22"}]}`, 400, `backend: it is missing, want an object with a type, which is one of metered, other, recorder`},
		{"no backend to plan", "POST", "/v1/network/m/plan", `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":null}`, 400, "backend: it is missing"},
		{"a backend without a type", "PUT", "/v1/network/m", `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"vni":2}}`, 400, "backend: its type is missing, which is one of metered, other, recorder"},
		{"an unknown backend", "PUT", "/v1/network/m", `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"type":"pigeon"}}`, 400, `backend: this leno has no \"pigeon\", the type is one of metered, other, recorder`},
		{"a backend that is no object", "PUT", "/v1/network/m", `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":"vxlan"}`, 400, `"backend: not a JSON object"`},
		{"bad name", "PUT", "/v1/network/-m", `{}`, 400, "name"},
		{"huge", "PUT", "/v1/network/m", `{"name":"` + strings.Repeat("m", 1<<20) + `"}`, 413, "larger than 1048576 bytes"},
		{"reservation of nobody", "PUT", "/v1/network/n/reservation/10.5.3.0-24", `{}`, 400, "node"},
		{"reservation elsewhere", "PUT", "/v1/network/n/reservation/10.5.3.0-24", `{"subnet":"10.5.2.0/24","node":"x"}`, 400, "contradicts"},
		{"reservation of a name no host has", "PUT", "/v1/network/n/reservation/10.5.3.0-24", `{"node":"host b"}`, 400, "is not a node name"},
		{"reservation of an id no host has", "PUT", "/v1/network/n/reservation/10.5.3.0-24", `{"node_id":"host-b"}`, 400, "is not a node id"},
		{"network with a reservation of nobody", "PUT", "/v1/network/m",
			`{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"type":"recorder"},"reservations":[{"subnet":"10.7.1.0/24","node_id":"b"}]}`, 400, "is not a node id"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, body := a.request(tt.method, tt.path, tt.body)
			if code != tt.code || !strings.Contains(body, tt.says) || !strings.HasPrefix(body, "{") {
				t.Errorf("%d %s", code, body)
			}
		})
	}
}

// TestNetworksBeforeTheWatchShowsThem: a host that is ready has its network in
// the list, although the watch of all networks comes a moment later.
func TestNetworksBeforeTheWatchShowsThem(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	known, _, _ := a.agent.env.networks.Get()
	for _, tt := range []struct {
		name string
		set  networkSet
	}{
		{"not yet", networkSet{index: 1}},
		{"shown", known},
	} {
		if got := a.agent.known(tt.set); len(got) != 1 || got[0].Name != "n" {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
	lost := networkSet{index: known.index + 100}
	if got := a.agent.known(lost); len(got) != 1 {
		t.Errorf("a network that the store has lost is not listed: %+v", got)
	}
	lost.set.Deleted = []registry.Deletion{{Network: "n", ModifyIndex: lost.index}}
	if got := a.agent.known(lost); len(got) != 0 {
		t.Errorf("a deleted network is still listed: %+v", got)
	}
}
