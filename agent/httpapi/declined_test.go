package httpapi

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestDeclined: while hosts decline the definition in the store, an operator changes the one that they have in force. The
// change to the declined one is planned and refused like any other, and the one in force can be put back.
func TestDeclined(t *testing.T) {
	for _, tt := range []struct {
		name, pool string
		force      bool // it is needed, and the plan names the other pool
	}{
		{"the declined one", "10.6.0.0/22", true},
		{"the one in force", "10.5.0.0/22", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, nil)
			h.serve("127.0.0.1:0")
			inForce, err := h.registry.Network(t.Context(), "n")
			must(t, err)
			h.n.set(func() { h.n.decline = true })
			_, err = h.registry.Acquire(t.Context(), inForce, registry.Claim{Node: "b", NodeID: "id-b", MTU: 1450,
				PublicIPs: lease(2, "b", "s").PublicIPs, Backend: inForce.Backend, TTL: time.Minute, Hold: time.Hour})
			must(t, err)
			edited := inForce
			edited.Plan = agenttest.Plan(t, "10.6.0.0/22")
			must(t, h.registry.PutNetwork(t.Context(), edited))
			edited, err = h.registry.Network(t.Context(), "n")
			must(t, err)

			body := api.Network{Name: "n", Pools: []api.Pool{{Prefix: agenttest.Plan(t, tt.pool)[0].Prefix}},
				Backend: []byte(`{"type":"recorder"}`)}
			plan, err := h.client.PlanNetwork(t.Context(), body)
			must(t, err)
			isNamed := slices.ContainsFunc(plan.Changes, func(c api.Change) bool { return c.Field == "ipv4.prefix" })
			if plan.Action != api.ActionUpdate || isNamed != tt.force || (len(plan.Refused) > 0) != tt.force ||
				plan.ModifyIndex != edited.ModifyIndex {
				t.Errorf("planned %+v", plan)
			}
			body.ModifyIndex = plan.ModifyIndex
			if tt.force {
				_, err = h.client.PutNetwork(t.Context(), body, false)
				agenttest.WantCode(t, "without force", err, http.StatusConflict, "would", "lose")
			}
			_, err = h.client.PutNetwork(t.Context(), body, tt.force)
			must(t, err)
			now, err := h.registry.Network(t.Context(), "n")
			must(t, err)
			if got := now.Plan[0].Prefix.String(); got != tt.pool || !now.Replaced(inForce) || !now.Restored.IsZero() {
				t.Errorf("stored %+v", now)
			}
		})
	}
	t.Run("list", func(t *testing.T) {
		h := newHost(t, nil)
		h.serve("127.0.0.1:0")
		h.n.set(func() { h.n.decline, h.n.status.Definition.Plan = true, agenttest.Plan(t, "10.7.0.0/22") })
		list, err := h.client.Networks(t.Context())
		must(t, err)
		if got := list.Networks[0].Pools[0].Prefix.String(); !strings.HasPrefix(got, "10.7.") {
			t.Errorf("listed with pool %s", got)
		}
	})
}

// TestUnusableFlannelConfiguration: a configuration of flannel's that leno cannot use, such as one of its wireguard, may be
// in use: nothing suggests to delete it, and leno does not. Records of leno's own can be deleted.
func TestUnusableFlannelConfiguration(t *testing.T) {
	for name, isFlannels := range map[string]bool{"default": true, "blue": false} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, nil)
			h.options.Store, h.agent.config.Etcd.Network = config.StoreEtcd, "default"
			key := memory.Prefix + "/networks/" + name
			h.store.Put(key, []byte(`{"version":2}`))
			h.serve("127.0.0.1:0")
			_, err := h.client.Network(t.Context(), name)
			want := "leno network delete -force"
			if isFlannels {
				want = "leave it as it is"
			}
			agenttest.WantCode(t, "show", err, http.StatusConflict, want, "etcdctl put")
			if advised := strings.Contains(err.Error(), "delete"); advised == isFlannels {
				t.Error(err)
			}
			err = h.client.DeleteNetwork(t.Context(), name, true)
			if isFlannels {
				agenttest.WantCode(t, "delete", err, http.StatusConflict, "flannel's configuration")
			} else {
				must(t, err)
			}
			if value, _, _ := h.store.Get(key); strings.Contains(string(value), "deleted") == isFlannels {
				t.Errorf("the store has %s", value)
			}
		})
	}
}
