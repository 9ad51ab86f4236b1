package agent

import (
	"errors"
	"fmt"
	"strings"
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

// TestDefinitionInForce: a host shows the version of the definition that its datapath was made from. It becomes the
// version in the store once the datapath could be changed.
func TestDefinitionInForce(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		a.ready()
		shows := func(adopted, inForce uint64) {
			t.Helper()
			eventually(t, func() error {
				n, err := a.client.Network(t.Context(), "n")
				if err == nil && (n.Local == nil || n.ModifyIndex != adopted || n.Local.ModifyIndex != inForce) {
					err = fmt.Errorf("%+v, %+v: want version %d, %d in force", n, n.Local, adopted, inForce)
				}
				return err
			})
		}
		first, err := a.store.Client().Network(t.Context(), "n")
		must(t, err)
		shows(first.ModifyIndex, first.ModifyIndex)
		a.recorder.setFail(errors.New("no luck"))
		second := a.define(func(n *registry.Network) { n.Backend = agenttest.Backend(t, "recorder", `{"colour":"blue"}`) })
		shows(second.ModifyIndex, first.ModifyIndex)
		a.recorder.setFail(nil)
		shows(second.ModifyIndex, second.ModifyIndex)
		if n, err := a.client.Network(t.Context(), "n"); err != nil || len(n.Local.Differs) != 1 || !strings.Contains(n.Local.Differs[0], "blue") {
			t.Errorf("the difference from the block is not shown: %+v, %v", n.Local, err)
		}
		key := memory.Prefix + "/networks/n"
		value, _, _ := a.store.Get(key)
		a.store.Put(key, append(value, '\n')) // as an operator may do by hand
		same, err := a.store.Client().Network(t.Context(), "n")
		must(t, err)
		if same.ModifyIndex == second.ModifyIndex {
			t.Fatal("not written again")
		}
		shows(same.ModifyIndex, same.ModifyIndex)
	})
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
