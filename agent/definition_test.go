package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

const networkKey = memory.Prefix + "/networks/n"

// inStore returns network n as the store has it.
func (h *host) inStore() registry.Network {
	h.t.Helper()
	n, err := h.store.Client().Network(h.t.Context(), "n")
	must(h.t, err)
	return n
}

// TestJoin: a watched network is stopped only after its runner has left it because it was deleted, whatever the store
// shows of all networks.
func TestJoin(t *testing.T) {
	simulated(t, func(t *testing.T) {
		h := newHost(t, memory.New(), "a")
		local := h.config.Networks[0]
		h.config.Networks, h.config.WatchNetworks, h.config.AllowedNetworks = nil, true, []string{"*"}
		h.agent = h.build()
		a, client := h.agent, h.store.Client()
		a.env.Identity.SetNode("a")
		a.env.Identity.SetNodeID("id-a")
		a.env.Identity.Settle()
		n := registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22"), Backend: agenttest.Backend(t, "recorder", "")}
		must(t, client.PutNetwork(t.Context(), n))
		defer a.networks.leave("n")
		a.networks.start(t.Context(), local)
		run := mustRunner(t, h)
		eventually(t, func() error {
			if _, held := run.Lease(); !held {
				return errors.New("no lease")
			}
			return nil
		})
		a.networks.join(t.Context()) // no networks have been read yet
		for _, set := range []registry.NetworkSet{
			{Bad: []registry.BadRecord{{Key: networkKey, Network: "n"}}},
			{},
			{Networks: []registry.Network{{Name: "n"}}},
			{Deleted: []registry.Deletion{{Network: "n"}}},
		} {
			a.env.Store.Networks.Set(network.Networks{Set: set, Index: 5})
			a.networks.join(t.Context())
			if now, ok := a.networks.get("n"); !ok || now != run {
				t.Fatalf("left by what was read of all networks: %+v", set)
			}
		}
		_, _, left := a.env.Left.Get()
		must(t, client.DeleteNetwork(t.Context(), "n"))
		a.env.Store.Networks.Set(network.Networks{Index: 6})
		select {
		case <-left:
		case <-time.After(time.Minute):
			t.Fatal("the runner does not leave")
		}
		a.networks.join(t.Context())
		if len(a.self().Networks) != 0 {
			t.Error("a network that was deleted was not left")
		}
	})
}
