package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry/memory"
)

// TestChangesAreRefused: the agent refuses a change that harms hosts unless the change is forced, and always refuses
// one that cannot work. A plan changes nothing.
func TestChangesAreRefused(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		a.ready()
		ctx, c := context.Background(), a.client
		n, err := c.Network(ctx, "n")
		must(t, err)
		subnet := a.subnet()
		first := a.inStore()
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
			if subnet.Addr() != netip.MustParseAddr("10.5.1.0") {
				p.Min, p.Max = netip.MustParseAddr("10.5.0.0"), netip.MustParseAddr("10.5.1.0")
			}
		}
		for _, tt := range []struct {
			name  string
			n     api.Network
			force bool
			words []string // words of the refusal; none if the change is made
		}{
			{"range without its host", own("10.5.0.0/22", beyond), false, []string{"a (" + subnet.String() + ")", "outside the new range", "reserve"}},
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
				len(plan.Hosts) != 1 || strings.Join(plan.Hosts[0].What, "") != "keeps "+subnet.String() {
				t.Errorf("%s: planned %+v", tt.name, plan)
			}
			n = stored
		}
		// With force, the change is made.
		forced := own("10.5.0.0/22", beyond)
		forced.ModifyIndex = n.ModifyIndex
		_, err = c.PutNetwork(ctx, forced, true)
		must(t, err)
		if now := a.inStore(); first.Revision == "" || !now.Replaced(first) || now.Generation != first.Generation+2 {
			t.Errorf("%+v: not the second change of %+v", now.Lineage, first.Lineage)
		}
		r := mustRunner(t, a)
		eventually(t, func() error {
			lease, _ := r.Lease()
			if lease.Subnet() == subnet || !forced.Pools[0].Prefix.Contains(lease.Subnet().Addr()) || a.subnet() != lease.Subnet() {
				return fmt.Errorf("has %s", lease.Subnet())
			}
			return nil
		})
		if keys := a.store.Keys(memory.Prefix + "/leases/n/1"); len(keys) != 1 {
			t.Errorf("leases %v", keys)
		}
		_, err = c.PlanNetwork(ctx, api.Network{Name: "n", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.5.0.0/30")}}, Backend: n.Backend})
		agenttest.WantCode(t, "a plan with a pool that cannot be used", err, http.StatusBadRequest, "10.5.0.0/30")
		fresh, err := c.PlanNetwork(ctx, api.Network{Name: "new", Pools: []api.Pool{{Prefix: netip.MustParsePrefix("10.8.0.0/16")}}, Backend: n.Backend})
		if must(t, err); fresh.Action != api.ActionCreate || len(fresh.Refused) != 0 {
			t.Errorf("planned %+v", fresh)
		}
	})
}
