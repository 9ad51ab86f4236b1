package httpapi

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
)

// TestPutNetwork: the next request sees a network that was defined. An old version of it is refused.
func TestPutNetwork(t *testing.T) {
	h := onSocket(t)
	ctx, c := t.Context(), h.client
	m := api.Network{Name: "m", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/16")}}, Backend: []byte(`{"type":"recorder"}`)}
	small := m
	small.Pools = []api.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/30")}}
	_, err := c.PutNetwork(ctx, small, false)
	agenttest.WantCode(t, "a pool too small", err, http.StatusBadRequest, "10.7.0.0/30")
	_, err = c.PlanNetwork(ctx, small)
	agenttest.WantCode(t, "a plan with a pool too small", err, http.StatusBadRequest, "10.7.0.0/30")
	_, err = c.Network(ctx, "m")
	agenttest.WantCode(t, "an unknown network", err, http.StatusNotFound, "n")

	m, err = c.PutNetwork(ctx, m, false)
	if err != nil || m.ModifyIndex == 0 || m.Pools[0].SubnetLen != 24 || m.Local != nil {
		t.Errorf("put %+v, %v", m, err)
	}
	must(t, c.AddReservation(ctx, "m", api.Reservation{Subnet: netip.MustParsePrefix("10.7.9.0/24"), Node: "z"}, false))
	if list, err := c.Networks(ctx); err != nil || len(list.Networks) != 2 {
		t.Errorf("networks %+v, %v", list, err)
	}
	m.ModifyIndex--
	_, err = c.PutNetwork(ctx, m, false)
	agenttest.WantCode(t, "an old version", err, http.StatusConflict)
}

// TestReservations: a subnet is reserved for one host, and, without force, not while another host holds it.
func TestReservations(t *testing.T) {
	h := onSocket(t)
	ctx, c := t.Context(), h.client
	n, err := h.registry.Network(ctx, "n")
	must(t, err)
	lease, err := h.registry.Acquire(ctx, n, claimOf("b", netip.MustParsePrefix("10.5.2.0/24"), n))
	must(t, err)
	kept := api.Reservation{Subnet: netip.MustParsePrefix("10.5.3.0/24"), Node: "z"}
	must(t, c.AddReservation(ctx, "n", kept, false))
	if list, err := c.Reservations(ctx, "n"); err != nil || len(list.Reservations) != 1 || list.Reservations[0] != kept {
		t.Errorf("reservations %+v, %v", list, err)
	}
	taken := kept
	taken.Node = "y"
	agenttest.WantCode(t, "a slot reserved twice", c.AddReservation(ctx, "n", taken, false), http.StatusConflict, "z")
	must(t, c.RemoveReservation(ctx, "n", kept.Subnet))
	agenttest.WantCode(t, "a reservation removed twice", c.RemoveReservation(ctx, "n", kept.Subnet), http.StatusNotFound)
	held := api.Reservation{Subnet: lease.Subnet(), Node: "z"}
	agenttest.WantCode(t, "a slot that another host holds", c.AddReservation(ctx, "n", held, false), http.StatusConflict,
		`"b"`, lease.PublicIPs[0].String(), "force")
	must(t, c.AddReservation(ctx, "n", held, true))
	must(t, c.RemoveReservation(ctx, "n", held.Subnet))
	outside := api.Reservation{Subnet: netip.MustParsePrefix("10.5.0.0/24"), Node: "z"}
	agenttest.WantCode(t, "a slot out of range", c.AddReservation(ctx, "n", outside, true), http.StatusBadRequest, "10.5.1.0/24 to 10.5.3.0/24")
}

// TestChangesAreRefused: the agent refuses a change that harms hosts unless the change is forced, and always refuses
// one that cannot work. A plan changes nothing.
func TestChangesAreRefused(t *testing.T) {
	h := onSocket(t)
	ctx, c := t.Context(), h.client
	first, err := h.registry.Network(ctx, "n")
	must(t, err)
	_, err = h.registry.Acquire(ctx, first, claimOf("a", netip.MustParsePrefix("10.5.1.0/24"), first))
	must(t, err)
	n, err := c.Network(ctx, "n")
	must(t, err)
	own := func(prefix string, change func(*api.Pool)) api.Network {
		out := n
		out.Pools = []api.Pool{{Prefix: netip.MustParsePrefix(prefix), SubnetLen: 24}}
		if change != nil {
			change(&out.Pools[0])
		}
		return out
	}
	beyond := func(p *api.Pool) { // a range without a's slot
		p.Min, p.Max = netip.MustParseAddr("10.5.2.0"), netip.MustParseAddr("10.5.3.0")
	}
	for _, tt := range []struct {
		name  string
		n     api.Network
		force bool
		words []string // words of the refusal; none if the change is made
	}{
		{"range without its host", own("10.5.0.0/22", beyond), false, []string{"a (10.5.1.0/24)", "outside the new range", "reserve"}},
		{"pool over its host", own("192.0.0.0/20", nil), true, []string{"contains the address between hosts"}},
		{"another network over it", api.Network{Name: "m", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.5.2.0/23"), SubnetLen: 26}}, Backend: n.Backend},
			false, []string{"overlaps 10.5.0.0/22 of network n"}},
		{"another version", func() api.Network { o := own("10.9.0.0/22", nil); o.ModifyIndex = 1; return o }(), false, []string{"changed since it was read"}},
		{"range that grows", own("10.5.0.0/22", func(p *api.Pool) { p.Min = netip.MustParseAddr("10.5.0.0") }), false, nil},
	} {
		plan, err := c.PlanNetwork(ctx, tt.n)
		must(t, err)
		stored, err := c.PutNetwork(ctx, tt.n, tt.force)
		if len(tt.words) > 0 {
			agenttest.WantCode(t, tt.name, err, http.StatusConflict, tt.words...)
			if now, err := c.Network(ctx, "n"); err != nil || now.ModifyIndex != n.ModifyIndex {
				t.Errorf("%s: refused, but changed: %+v, %v", tt.name, now, err)
			}
			continue
		}
		if must(t, err); len(plan.Refused) != 0 || plan.Action != api.ActionUpdate || plan.ModifyIndex != n.ModifyIndex ||
			len(plan.Hosts) != 2 || strings.Join(plan.Hosts[0].What, "") != "keeps 10.5.1.0/24" {
			t.Errorf("%s: planned %+v", tt.name, plan)
		}
		n = stored
	}
	// With force, the change is made.
	forced := own("10.5.0.0/22", beyond)
	forced.ModifyIndex = n.ModifyIndex
	_, err = c.PutNetwork(ctx, forced, true)
	must(t, err)
	now, err := h.registry.Network(ctx, "n")
	if must(t, err); !now.Replaced(first) || now.Generation != first.Generation+2 {
		t.Errorf("%+v: not the second change of %+v", now.Lineage, first.Lineage)
	}
	fresh, err := c.PlanNetwork(ctx, api.Network{Name: "new", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.8.0.0/16")}}, Backend: n.Backend})
	if must(t, err); fresh.Action != api.ActionCreate || len(fresh.Refused) != 0 {
		t.Errorf("planned %+v", fresh)
	}
}
