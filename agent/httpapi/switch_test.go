package httpapi

import (
	"context"
	"net/http"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

// flannelHosts is a registry in which all other hosts run flannel.
type flannelHosts struct{ registry.Registry }

func (f flannelHosts) As(string) registry.Registry { return f }

func (f flannelHosts) WatchLeases(ctx context.Context, n registry.Network, after uint64) (registry.LeaseSet, uint64, error) {
	set, index, err := f.Registry.WatchLeases(ctx, n, after)
	for i := range set.Leases {
		set.Leases[i].Foreign = true
	}
	return set, index, err
}

// TestSwitchBesideFlannel: hosts that run flannel cannot follow a switch. Ending one that cuts them off and a
// definition with another backend are refused, and nothing is stored. What keeps them connected is not.
func TestSwitchBesideFlannel(t *testing.T) {
	const toUDP = `{"epoch":{"number":5},"switch":{"to":{"type":"udp"}}}`
	for _, tt := range []struct {
		name    string
		options string // of the definition in the store, whose backend is vxlan
		action  string // of the switch, "" to apply a definition with another backend
		refused bool
	}{
		{"end", toUDP, api.EndSwitch, true},
		{"stop", toUDP, api.StopSwitch, false},
		{"reverse", toUDP, api.ReverseSwitch, false},
		{"begin", `{"epoch":{"number":5}}`, "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, _ := newSwitchable(t, "vxlan", tt.options)
			h.registry = flannelHosts{h.registry}
			h.options.Registry = h.registry
			h.serve("127.0.0.1:0")
			before, err := h.registry.Network(t.Context(), "n")
			must(t, err)
			h.n.set(func() { h.n.status.Definition = before })
			if tt.action != "" {
				_, err = h.client.ChangeSwitch(t.Context(), "n", tt.action)
			} else {
				wanted := api.Network{Name: "n", Pools: []api.Pool{{Prefix: before.Plan[0].Prefix}},
					Backend: []byte(`{"type":"udp"}`), ModifyIndex: before.ModifyIndex}
				_, err = h.client.PutNetwork(t.Context(), wanted, false)
			}
			now, readErr := h.registry.Network(t.Context(), "n")
			must(t, readErr)
			if !tt.refused {
				must(t, err)
				if now.ModifyIndex == before.ModifyIndex {
					t.Error("nothing was stored")
				}
				return
			}
			agenttest.WantCode(t, tt.name, err, http.StatusConflict, "flannel", "b")
			if now.ModifyIndex != before.ModifyIndex {
				t.Errorf("refused, and stored: %s", carriers(t, now))
			}
		})
	}
}
