package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/api"
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

// reasonOf returns the reason of a network's check, "" if there is no such check.
func reasonOf(a *Agent, network, check string) string {
	report, _ := a.env.Reports.Health.Report()
	for _, n := range report.Networks {
		for _, c := range n.Checks {
			if n.Network == network && c.Name == check {
				return c.Reason
			}
		}
	}
	return ""
}

// TestBadDefinitionStopsNothing: a network goes on while its record is broken, and follows the record once it is
// repaired.
func TestBadDefinitionStopsNothing(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	subnet := a.subnet()
	key := memory.Prefix + "/networks/n"
	good, _, _ := a.store.Get(key)
	a.store.Put(key, []byte("{"))
	eventually(t, func() error {
		known, _, _ := a.agent.env.Store.Networks.Get()
		if _, unusable := known.Set.Unusable("n"); !unusable {
			return errors.New("not seen yet")
		}
		return nil
	})
	a.store.Put(key, good)
	a.define(func(n *registry.Network) { n.Backend = agenttest.Backend(t, "recorder", `{"colour":"blue"}`) })
	eventually(t, func() error {
		if v := mustRunner(t, a).Status(); !strings.Contains(string(v.Definition.Backend.Object), "blue") {
			return errors.New("not followed yet")
		}
		return nil
	})
	a.applies(subnet.String() + " <- ")
	if got := a.recorder.all(); len(got) != 1 {
		t.Errorf("the datapath was disturbed: %q", got)
	}
}

// TestDefinitionInForce: a host shows the version of the definition that its datapath was made from. It becomes the
// version in the store once the datapath could be changed.
func TestDefinitionInForce(t *testing.T) {
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
	key := memory.Prefix + "/networks/n"
	value, _, _ := a.store.Get(key)
	a.store.Put(key, append(value, '\n')) // as an operator may do by hand
	same, err := a.store.Client().Network(t.Context(), "n")
	must(t, err)
	if same.ModifyIndex == second.ModifyIndex {
		t.Fatal("not written again")
	}
	shows(same.ModifyIndex, same.ModifyIndex)
}

// TestDeletedAgain: a network that is deleted, defined by an operator and deleted again is left each time. Only a
// network that the store has lost is put back.
func TestDeletedAgain(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	client := a.store.Client()
	for range 2 {
		a.ready()
		subnet := a.subnet()
		must(t, client.DeleteNetwork(context.Background(), "n"))
		a.check(health.Network, api.Critical, "leno network apply")
		if _, _, ok := a.store.Get(leaseKey(subnet)); ok {
			t.Error("the lease stays")
		}
		if _, err := client.Network(context.Background(), "n"); !errors.Is(err, registry.ErrNetworkNotFound) {
			t.Errorf("put back: %v", err)
		}
		n, err := definition.FromBlock(a.config.Networks[0])
		must(t, err)
		must(t, client.PutNetwork(context.Background(), n))
	}
	a.ready()
	if mustRunner(t, a).Local().Name != "n" {
		t.Error("another runner")
	}
}

// TestJoin: a watched network is stopped only after its runner has left it because it was deleted, whatever the store
// shows of all networks.
func TestJoin(t *testing.T) {
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
}

// TestDeletedIsNotDefinedAgain: a block with pools does not define a deleted network again, even on a host that
// remembers nothing of the network.
func TestDeletedIsNotDefinedAgain(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a")
	n, err := definition.FromBlock(a.config.Networks[0])
	must(t, err)
	must(t, store.Client().PutNetwork(t.Context(), n))
	must(t, store.Client().DeleteNetwork(t.Context(), "n"))
	a.start()
	a.check(health.Network, api.Critical, "leno network apply")
	if _, err := store.Client().Network(t.Context(), "n"); !errors.Is(err, registry.ErrNetworkNotFound) {
		t.Errorf("defined again: %v", err)
	}
	if _, err := a.client.Network(t.Context(), "n"); err == nil || !strings.Contains(err.Error(), "deleted") {
		t.Errorf("the API: %v", err)
	}
	must(t, errOf(a.client.PutNetwork(t.Context(), api.Network{Name: "n", Pools: []api.Pool{{Prefix: n.Plan[0].Prefix}}, Backend: n.Backend.Object}, false)))
	a.ready()
	a.check(health.Network, api.Passing)
}

// TestNotDefinedBesideAnother: a block does not define a network that hosts could not carry next to an existing one. It
// defines the network once the other one is gone.
func TestNotDefinedBesideAnother(t *testing.T) {
	store := memory.New()
	overlapping := registry.Network{Name: "m", Plan: agenttest.Plan(t, "10.5.2.0/23"), Backend: agenttest.Backend(t, "recorder", "")}
	must(t, store.Client().PutNetwork(t.Context(), overlapping))
	a := newHost(t, store, "a").start()
	a.check(health.Network, api.Critical, "overlaps 10.5.2.0/23 of network m", "leno network apply -force")
	if _, err := store.Client().Network(t.Context(), "n"); !errors.Is(err, registry.ErrNetworkNotFound) {
		t.Errorf("it was defined: %v", err)
	}
	must(t, store.Client().DeleteNetwork(t.Context(), "m"))
	a.ready()
}

// TestNotDefinedWhileOthersTakePart: a host that remembers nothing of a network leaves it to the hosts that take part
// in the network to put its definition back, and does not claim a lease until they have claimed theirs again.
func TestNotDefinedWhileOthersTakePart(t *testing.T) {
	t.Parallel()
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	definition, err := store.Client().Network(t.Context(), "n")
	must(t, err)
	subnet := a.subnet()
	must(t, a.stop())
	empty(store)
	b := newHost(t, store, "b")
	b.config.Networks[0].Pools = []config.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/22")}}
	b.start()
	b.check(health.Network, api.Critical, "waiting for a to put it back")
	if _, err := store.Client().Network(t.Context(), "n"); !errors.Is(err, registry.ErrNetworkNotFound) {
		t.Fatalf("it was defined: %v", err)
	}
	definition.CreateIndex, definition.ModifyIndex = 0, 0
	must(t, store.Client().PutNetwork(t.Context(), definition))
	b.check(health.Lease, api.Critical, "waiting for a to claim again")
	a.start()
	b.ready()
	if got := a.subnet(); got != subnet || b.subnet() == subnet {
		t.Errorf("a has %s, before %s, and b %s", got, subnet, b.subnet())
	}
}
