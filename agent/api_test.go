package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// TestAPI calls the endpoints through the client that the commands use: they show what the parts of the agent know, and
// at once what was changed through the agent.
func TestAPI(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a, b := newHost(t, store, "a").slow(), newHost(t, store, "b")
		a.wall.report = firewall.Report{Choice: firewall.Choice{Kind: "iptables-nft", Reason: "it works"}}
		a.start().ready()
		b.start()
		a.applies(a.subnet().String() + " <- b@" + b.subnet().String())
		own, other := a.subnet(), b.subnet()
		a.shows(own)
		a.showsEvents("agent info: agent started, version test", "network info: taking part in the network", "lease info: this host holds "+own.String(),
			"peer info: 0 other hosts have a lease", "peer info: b appeared with "+other.String())

		ctx, c := t.Context(), a.client
		time.Sleep(time.Minute)
		r, err := c.RenewLease(ctx, "n")
		if err != nil || r.Subnet != own || r.SafeUntil.Sub(r.Renewed) != a.config.Lease.TTL {
			t.Errorf("%+v, %v", r, err)
		}
		if n, err := c.Network(ctx, "n"); err != nil || n.Local == nil || !n.Local.Renewed.Equal(r.Renewed) {
			t.Errorf("renewed at %s, shown is %+v, %v", r.Renewed, n.Local, err)
		}
		lists := func(node string, subnet netip.Prefix) bool {
			list, err := c.Leases(ctx, "n")
			must(t, err)
			return slices.ContainsFunc(list.Leases, func(l api.Lease) bool { return l.Node == node && l.Subnet == subnet })
		}
		if !lists("a", own) || !lists("b", other) {
			t.Fatal("the leases are not listed")
		}
		must(t, c.RevokeLease(ctx, "n", other))
		if lists("b", other) {
			t.Error("a lease that was revoked is listed")
		}
		must(t, c.ReleaseLease(ctx, "n"))
		if lists("a", own) {
			t.Error("a lease that was released is listed")
		}
		a.showsEvents("lease warning: the lease was released")
	})
}

// TestNothingIsNullWithoutNetworks: no list is null on a host without networks.
func TestNothingIsNullWithoutNetworks(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.config.Networks = nil
		a.start()
		for _, request := range []string{"GET /v1/agent/self", "GET /v1/agent/config", "GET /v1/agent/events", "GET /v1/agent/metrics",
			"PUT /v1/agent/doctor", "GET /v1/networks"} {
			method, path, _ := strings.Cut(request, " ")
			eventually(t, func() error {
				if code, body := a.request(method, path, ""); code != 200 || strings.Contains(body, "null") {
					return fmt.Errorf("%s: %d %s", request, code, body)
				}
				return nil
			})
		}
	})
}

// shows fails the test unless the API shows host a with its subnet and its peer b.
func (h *host) shows(subnet netip.Prefix) {
	h.t.Helper()
	ctx, c := h.t.Context(), h.client
	self, err := c.Self(ctx)
	if err != nil || self.NodeName != "a" || self.Version != "test" || len(self.Networks) != 1 {
		h.t.Errorf("self %+v, %v", self, err)
	}
	if self.Firewall == nil || self.Firewall.Kind != "iptables-nft" {
		h.t.Errorf("self says %+v of the firewall", self.Firewall)
	}
	networks, err := c.Networks(ctx)
	if err != nil || len(networks.Networks) != 1 || networks.Index == 0 {
		h.t.Errorf("networks %+v, %v", networks, err)
	}
	n, err := c.Network(ctx, "n")
	if err != nil || n.Local == nil || n.Local.State != "running" || n.Local.Peers != 1 || n.Local.Subnets[0] != subnet ||
		n.ModifyIndex == 0 || n.Local.ModifyIndex != n.ModifyIndex {
		h.t.Errorf("network %+v, %+v, %v", n, n.Local, err)
	}
	leases, err := c.Leases(ctx, "n")
	if err != nil || len(leases.Leases) != 2 || leases.Skipped == nil || leases.Index == 0 {
		h.t.Errorf("leases %+v, %v", leases, err)
	}
	own, err := c.Lease(ctx, "n", subnet)
	if err != nil || !own.Own || !own.Held || own.Node != "a" {
		h.t.Errorf("own lease %+v, %v", own, err)
	}
	peers, err := c.Peers(ctx, "n")
	if err != nil || len(peers.Peers) != 1 || peers.Peers[0].Node != "b" || !peers.Peers[0].Held {
		h.t.Errorf("peers %+v, %v", peers, err)
	}
}

// showsEvents waits until the API shows events that begin with these texts, such as "lease info: this host", in any
// order.
func (h *host) showsEvents(texts ...string) {
	h.t.Helper()
	eventually(h.t, func() error {
		list, err := h.client.Events(h.t.Context(), "")
		if err != nil {
			return err
		}
		for _, text := range texts {
			if !slices.ContainsFunc(list.Events, func(e api.Event) bool {
				return strings.HasPrefix(fmt.Sprintf("%s %s: %s", e.Kind, e.Severity, e.Message), text) && e.Index <= list.Index
			}) {
				return fmt.Errorf("no event %q: %+v", text, list.Events)
			}
		}
		return nil
	})
}
