package agent

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// flowing returns the state of a kernel with a device through which packets of the subnets flow.
func flowing(subnets ...netip.Prefix) datapath.KernelState {
	out := waiting(subnets...)
	out.Carrier = true
	return out
}

// lostState returns a host that has lost its state directory. The store has its lease.
func lostState(t *testing.T) (a *host, before registry.Lease) {
	t.Helper()
	a = newHost(t, memory.New(), "a")
	client := a.store.Client()
	n, err := definition.FromBlock(a.config.Networks[0])
	must(t, err)
	must(t, client.PutNetwork(t.Context(), n))
	n = a.inStore()
	before, err = client.Acquire(t.Context(), n, registry.Claim{Node: "a", NodeID: "6f1c9d1e-0000-4000-8000-00000000000a",
		PublicIPs: a.place.Addrs, MTU: 1450, Backend: n.Backend, TTL: time.Hour, Hold: time.Hour})
	must(t, err)
	return a, before
}

// identify begins to find out the host's id, as its agent does when it starts. The result is the id.
func (h *host) identify() <-chan string {
	h.t.Helper()
	h.agent = h.build()
	identity, found := h.agent.identity, make(chan string, 1)
	must(h.t, identity.lock(h.t.Context()))
	go func() {
		if err := errors.Join(identity.settle(h.t.Context()), identity.unlock()); err != nil {
			h.t.Error(err)
		}
		id := h.agent.env.Identity.NodeID()
		if stored, err := state.LoadNodeID(h.config.DataDir, hclog.NewNullLogger()); err != nil || stored != id || id == "" {
			h.t.Errorf("%q is stored, the id is %q, %v", stored, id, err)
		}
		found <- id
	}()
	return found
}

// TestNodeID: a host that has lost its state directory keeps its id if its datapath still exists. Any other host gets a
// new id, also one that could be this host and has another name or address.
func TestNodeID(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(a *host, subnet netip.Prefix)
		same   bool
	}{
		{"the device exists", func(a *host, subnet netip.Prefix) { a.remains = flowing(subnet) }, true},
		{"routes without a device", func(a *host, _ netip.Prefix) { a.remains = datapath.KernelState{Routes: 1, Refuses: true} }, true},
		{"no other host had joined yet", func(a *host, _ netip.Prefix) { a.remains = datapath.KernelState{Refuses: true} }, true},
		{"a device that no process reads", func(a *host, subnet netip.Prefix) { a.remains = waiting(subnet) }, true},
		{"only the store has the plan", func(a *host, subnet netip.Prefix) {
			a.remains = flowing(subnet)
			a.config.Networks[0].Pools, a.config.Networks[0].Backend = nil, nil
		}, true},
		{"its lease has lapsed", func(a *host, subnet netip.Prefix) {
			a.remains = flowing(subnet)
			a.store.EndSession(leaseOf(a.t, a, subnet).Session)
		}, true},
		{"after a boot", func(*host, netip.Prefix) {}, false},
		{"a device of another subnet", func(a *host, _ netip.Prefix) { a.remains = flowing(netip.MustParsePrefix("10.5.99.0/24")) }, false},
		{"a device without an address", func(a *host, _ netip.Prefix) { a.remains = flowing() }, false},
		{"another name", func(a *host, subnet netip.Prefix) { a.remains, a.config.NodeName = flowing(subnet), "c" }, false},
		{"another address", func(a *host, subnet netip.Prefix) {
			a.remains, a.place.Addrs = flowing(subnet), []netip.Addr{netip.MustParseAddr("192.0.2.200")}
		}, false},
	} {
		subtest(t, tt.name, func(t *testing.T) {
			a, before := lostState(t)
			tt.change(a, before.Subnet())
			if id := <-a.identify(); (id == before.NodeID) != tt.same {
				t.Errorf("node id %s, before %s", id, before.NodeID)
			}
		})
	}
}

// TestNodeIDOfABrokenRecord: nothing is decided before every record can be read, because the datapath may belong to the
// network whose record is broken.
func TestNodeIDOfABrokenRecord(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a, before := lostState(t)
		a.remains = flowing(before.Subnet())
		good, _, _ := a.store.Get(networkKey)
		a.store.Put(networkKey, []byte("{"))
		found := a.identify()
		a.check(health.Node, api.Critical, "packets flow", networkKey)
		if exists(state.NodeIDPath(a.config.DataDir)) {
			t.Error("an id was made")
		}
		a.store.Put(networkKey, good)
		if id := <-found; id != before.NodeID {
			t.Errorf("node id %s, before %s", id, before.NodeID)
		}
	})
}

// TestNodeIDWithoutTheStore: a host without a datapath does not wait for an id, even if only the store has the plan of its
// network.
func TestNodeIDWithoutTheStore(t *testing.T) {
	for name, change := range map[string]func(*host){
		"a whole block":               func(*host) {},
		"only the store has the plan": func(a *host) { a.config.Networks[0].Pools, a.config.Networks[0].Backend = nil, nil },
		"any network":                 func(a *host) { a.config.Networks, a.config.WatchNetworks = nil, true },
	} {
		subtest(t, name, func(t *testing.T) {
			a := newHost(t, memory.New(), "a")
			change(a)
			a.registry.Set(registry.ErrUnavailable)
			<-a.identify()
		})
	}
}

// TestStateLost: a host that has lost its state directory waits until the store can be asked for its id. Packets flow on
// untouched, and its peers see no change.
func TestStateLost(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a, b, subnet, applied := pair(t)
		before := leaseOf(t, a, subnet)
		must(t, os.RemoveAll(a.config.DataDir))
		a.remains = flowing(subnet)
		a.registry.Set(registry.ErrUnavailable)
		tries, states := len(a.recorder.tries()), b.recorder.all()
		a.start()
		a.check(health.Node, api.Critical, "node id was lost", "packets flow")
		if exists(state.NodeIDPath(a.config.DataDir)) || len(a.recorder.tries()) != tries {
			t.Error("an id was made, or the datapath touched")
		}
		a.registry.Set(nil)
		a.ready()
		a.applies(applied)
		if now := leaseOf(t, a, subnet); now.NodeID != before.NodeID || now.ModifyIndex != before.ModifyIndex || now.Session != before.Session {
			t.Errorf("the record was written: %+v, before %+v", now, before)
		}
		if now := b.recorder.all(); !slices.Equal(now, states) {
			t.Errorf("the peer applied %q, before %q", now, states)
		}
	})
}

// leaseOf returns the store's record of a subnet.
func leaseOf(t testing.TB, h *host, subnet netip.Prefix) registry.Lease {
	t.Helper()
	client := h.store.Client()
	n, err := client.Network(t.Context(), "n")
	must(t, err)
	lease, _, err := client.WatchLease(t.Context(), n, subnet, 0)
	must(t, err)
	return lease
}
