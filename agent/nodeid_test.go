package agent

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/hashicorp/go-hclog"

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

// TestStateLost: a host that has lost its state directory keeps its id if its datapath still exists, so that its peers
// see no change. Any other host gets a new id.
func TestStateLost(t *testing.T) {
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
	} {
		subtest(t, tt.name, func(t *testing.T) {
			a, b, subnet, applied := pair(t)
			before := leaseOf(t, a, subnet)
			must(t, os.RemoveAll(a.config.DataDir))
			tt.change(a, subnet)
			states := b.recorder.all()
			a.start()
			a.ready()
			a.applies(applied)
			now := leaseOf(t, a, subnet)
			if same := now.NodeID == before.NodeID; same != tt.same {
				t.Errorf("node id %s, before %s", now.NodeID, before.NodeID)
			}
			if stored, err := state.LoadNodeID(a.config.DataDir, hclog.NewNullLogger()); err != nil || stored != now.NodeID {
				t.Errorf("%s is stored, %v", stored, err)
			}
			if !tt.same || now.Session != before.Session && tt.name == "its lease has lapsed" {
				return
			}
			if now.ModifyIndex != before.ModifyIndex || now.Session != before.Session {
				t.Errorf("the record was written: %+v, before %+v", now, before)
			}
			if now := b.recorder.all(); !slices.Equal(now, states) {
				t.Errorf("the peer applied %q, before %q", now, states)
			}
		})
	}
}

// TestAnotherHostIsNotTakenForThisOne: the datapath is this host's, and the lease is that of a host that could be this
// one but has another name or address. This host does not adopt the other's id.
func TestAnotherHostIsNotTakenForThisOne(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(a *host)
	}{
		{"another name", func(a *host) { a.config.NodeName = "c" }},
		{"another address", func(a *host) { a.place.Addrs = []netip.Addr{netip.MustParseAddr("192.0.2.200")} }},
	} {
		subtest(t, tt.name, func(t *testing.T) {
			a, _, subnet, _ := pair(t)
			before := leaseOf(t, a, subnet)
			must(t, os.RemoveAll(a.config.DataDir))
			a.remains = flowing(subnet)
			tt.change(a)
			a.start()
			a.check(health.Lease, api.Critical, before.NodeID)
			id, err := state.LoadNodeID(a.config.DataDir, hclog.NewNullLogger())
			if err != nil || id == "" || id == before.NodeID {
				t.Errorf("node id %q, %v; the other host's is %s", id, err, before.NodeID)
			}
		})
	}
}

// TestStateLostWithoutAnAnswer: nothing is decided before the store can be asked and every record can be read, because the
// datapath may belong to the network whose record is broken. Packets flow on.
func TestStateLostWithoutAnAnswer(t *testing.T) {
	const key = memory.Prefix + "/networks/n"
	for _, tt := range []struct {
		name string
		fail func(a *host) (repair func())
		says []string
	}{
		{"the store is away", func(a *host) func() {
			a.registry.Set(registry.ErrUnavailable)
			return func() { a.registry.Set(nil) }
		}, []string{"node id was lost", "packets flow"}},
		{"the record is broken", func(a *host) func() {
			good, _, _ := a.store.Get(key)
			a.store.Put(key, []byte("{"))
			return func() { a.store.Put(key, good) }
		}, []string{"packets flow", key}},
	} {
		subtest(t, tt.name, func(t *testing.T) {
			a, _, subnet, applied := pair(t)
			before := leaseOf(t, a, subnet)
			must(t, os.RemoveAll(a.config.DataDir))
			a.remains = flowing(subnet)
			repair := tt.fail(a)
			tries := len(a.recorder.tries())
			a.start()
			a.check(health.Node, api.Critical, tt.says...)
			if exists(state.NodeIDPath(a.config.DataDir)) || len(a.recorder.tries()) != tries {
				t.Error("an id was made, or the datapath touched")
			}
			repair()
			a.ready()
			a.applies(applied)
			if now := leaseOf(t, a, subnet); now.NodeID != before.NodeID || now.Session != before.Session {
				t.Errorf("%+v, before %+v", now, before)
			}
		})
	}
}

// TestNewHostWhileTheStoreIsAway: a host without a datapath does not wait for an id, and says what it waits for, even
// if only the store has the plan of its network.
func TestNewHostWhileTheStoreIsAway(t *testing.T) {
	for name, change := range map[string]func(*host){
		"a whole block":               func(*host) {},
		"only the store has the plan": func(a *host) { a.config.Networks[0].Pools, a.config.Networks[0].Backend = nil, nil },
		"any network": func(a *host) {
			a.config.Networks, a.config.WatchNetworks = nil, true
		},
	} {
		subtest(t, name, func(t *testing.T) {
			a := newHost(t, memory.New(), "a")
			change(a)
			a.registry.Set(registry.ErrUnavailable)
			a.start()
			eventually(t, func() error {
				_, err := os.Stat(state.NodeIDPath(a.config.DataDir))
				return err
			})
			if len(a.config.Networks) > 0 {
				a.check(health.Network, api.Critical, "waiting for the store")
			}
		})
	}
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
