package agent

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func TestWatchDefinition(t *testing.T) {
	mine := registry.Network{Name: "n", Plan: mustPlan(t, "10.5.0.0/22"), Backend: mustBackend(t, "recorder", ""), ModifyIndex: 10}
	with := func(change func(n *registry.Network)) []registry.Network {
		n := mine
		change(&n)
		return []registry.Network{n}
	}
	bad := []registry.BadRecord{{Key: memory.Prefix + "/networks/n", Reason: "nonsense"}}
	otherBad := []registry.BadRecord{{Key: memory.Prefix + "/networks/m", Reason: "nonsense"}}
	for _, tt := range []struct {
		name  string
		set   registry.NetworkSet
		index uint64
		want  error
	}{
		{"nothing read yet", registry.NetworkSet{}, 0, context.Canceled},
		{"the same", registry.NetworkSet{Networks: []registry.Network{mine}}, 10, context.Canceled},
		{"written again with the same content", registry.NetworkSet{Networks: with(func(n *registry.Network) { n.ModifyIndex = 12 })}, 12, context.Canceled},
		{"another pool", registry.NetworkSet{Networks: with(func(n *registry.Network) {
			n.ModifyIndex, n.Plan = 12, mustPlan(t, "10.6.0.0/22")
		})}, 12, errDefinitionChanged},
		{"another backend", registry.NetworkSet{Networks: with(func(n *registry.Network) {
			n.ModifyIndex, n.Backend = 12, mustBackend(t, "other", "")
		})}, 12, errDefinitionChanged},
		{"another, read before this was written", registry.NetworkSet{Networks: with(func(n *registry.Network) {
			n.ModifyIndex, n.Backend = 8, mustBackend(t, "other", "")
		})}, 9, context.Canceled},
		{"gone", registry.NetworkSet{}, 12, errNetworkGone},
		{"gone beside another bad record", registry.NetworkSet{Bad: otherBad}, 12, errNetworkGone},
		{"its record is bad", registry.NetworkSet{Bad: bad}, 12, context.Canceled},
		{"read before it was written", registry.NetworkSet{}, 9, context.Canceled},
		{"read as it was written", registry.NetworkSet{}, 10, context.Canceled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, memory.New(), "a")
			r := h.part()
			if tt.index > 0 {
				r.env.networks.set(networkSet{tt.set, tt.index})
			}
			ctx, cancel := context.WithCancel(context.Background())
			cancel() // what is known is looked at first
			if err := r.watchDefinition(ctx, mine); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// TestBadDefinitionStopsNothing: a record somebody broke is not its end.
func TestBadDefinitionStopsNothing(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	subnet := a.subnet()
	key := memory.Prefix + "/networks/n"
	good, _, _ := a.store.Get(key)
	a.store.Put(key, []byte("{"))
	eventually(t, func() error {
		if known, _, _ := a.agent.env.networks.get(); !known.bad("n") {
			return errors.New("not seen yet")
		}
		return nil
	})
	a.store.Put(key, good)
	a.define(func(n *registry.Network) { n.Backend = mustBackend(t, "recorder", `{"colour":"blue"}`) })
	eventually(t, func() error {
		if v := mustRunner(t, a).shown(); !strings.Contains(string(v.definition.Backend.Object), "blue") {
			return errors.New("not followed yet")
		}
		return nil
	})
	a.applies(subnet.String() + " <- ")
	if got := a.recorder.all(); len(got) != 1 {
		t.Errorf("the datapath was disturbed: %q", got)
	}
}

// TestDeletedAgain: a network that was deleted, defined by somebody and deleted
// again is left each time, and lost by the store it is put back.
func TestDeletedAgain(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	client := a.store.Client()
	for range 2 {
		a.ready()
		subnet := a.subnet()
		must(t, client.DeleteNetwork(context.Background(), "n"))
		a.check(checkNetwork, api.Critical, "leno network apply")
		if _, _, ok := a.store.Get(leaseKey(subnet)); ok {
			t.Error("the lease stays")
		}
		if _, err := client.Network(context.Background(), "n"); !errors.Is(err, registry.ErrNetworkNotFound) {
			t.Errorf("put back: %v", err)
		}
		n, err := Definition(a.config.Networks[0])
		must(t, err)
		must(t, client.PutNetwork(context.Background(), n))
	}
	a.ready()
	if mustRunner(t, a).local.Name != "n" {
		t.Error("another runner")
	}
}

func TestDeletedFlagIsCleared(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	n, err := Definition(h.config.Networks[0])
	must(t, err)
	must(t, h.store.Client().PutNetwork(context.Background(), n))
	r := h.part()
	r.deleted = true
	if _, err := r.awaitDefinition(context.Background()); err != nil || r.deleted {
		t.Errorf("deleted %t, %v", r.deleted, err)
	}
	if r.shown().definition.Name != "n" || !r.shown().defined {
		t.Error("the definition is not shown")
	}
	// Deleted between two rounds, although others had defined it.
	must(t, h.store.Client().DeleteNetwork(context.Background(), "n"))
	if _, err := r.awaitDefinition(context.Background()); !errors.Is(err, errNetworkGone) {
		t.Errorf("after the end: %v", err)
	}
}

func TestDifferences(t *testing.T) {
	v4 := registry.Network{Name: "n", Plan: mustPlan(t, "10.5.0.0/22"), Backend: mustBackend(t, "recorder", "")}
	dual := registry.Network{Name: "n", Plan: mustPlan(t, "10.5.0.0/22", "fd00:5::/48"), Backend: v4.Backend}
	narrow := registry.Network{Name: "n", Plan: mustPlan(t, "10.5.0.0/22"), Backend: mustBackend(t, "other", "")}
	narrow.Plan[0].Max = netip.MustParseAddr("10.5.2.0")
	for _, tt := range []struct {
		name       string
		want, have registry.Network
		says       []string
	}{
		{"none", v4, v4, nil},
		{"a family more", dual, v4, []string{"fd00:5::/48 is not in the store"}},
		{"a family less", v4, dual, []string{"fd00:5::/48 is only in the store"}},
		{"range and backend", narrow, v4, []string{"10.5.2.0", `"other"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Differences(tt.want, tt.have)
			if len(got) != len(tt.says) {
				t.Fatalf("%q", got)
			}
			for i := range got {
				if !strings.Contains(got[i], tt.says[i]) {
					t.Errorf("%q does not say %q", got[i], tt.says[i])
				}
			}
		})
	}
	if _, err := Definition(config.Network{Name: "n", Pools: []config.Pool{{Prefix: v4.Plan[0].Prefix}}}); !errors.Is(err, registry.ErrInvalid) {
		t.Errorf("without a backend: %v", err)
	}
}

// TestJoin: a watched network whose record is bad is not left, nor one that this
// process has not seen yet; one that went is.
func TestJoin(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	local := h.config.Networks[0]
	h.config.Networks, h.config.WatchNetworks, h.config.AllowedNetworks = nil, true, []string{"*"}
	a := h.build()
	h.agent = a
	stopped := false
	run := &running{runner: newRunner(a.env, h.config, local)}
	run.cancel = func() { stopped = true; close(run.done) }
	a.runners["n"] = run
	ctx := context.Background()
	a.join(ctx) // nothing is known yet
	a.env.networks.set(networkSet{registry.NetworkSet{Bad: []registry.BadRecord{{Key: memory.Prefix + "/networks/n"}}}, 5})
	a.join(ctx)
	if stopped || run.leaving {
		t.Fatal("a network whose record is bad was left")
	}
	a.env.networks.set(networkSet{registry.NetworkSet{}, 6})
	a.join(ctx)
	if stopped || run.leaving {
		t.Fatal("a network of an earlier process was left at once")
	}
	a.env.networks.set(networkSet{registry.NetworkSet{Networks: []registry.Network{{Name: "n"}}}, 7})
	a.join(ctx)
	run.show(func(v *view) { v.definition.ModifyIndex = 8 })
	for _, index := range []uint64{7, 8} {
		a.env.networks.set(networkSet{registry.NetworkSet{}, index})
		a.join(ctx)
		if stopped || run.leaving {
			t.Fatalf("left by what was read at %d, before it was written", index)
		}
	}
	a.env.networks.set(networkSet{registry.NetworkSet{}, 9})
	a.join(ctx)
	if !stopped || !run.leaving || len(a.self().Networks) != 0 {
		t.Error("a network that went was not left")
	}
}

// TestGoneAfterAnOutage: a network must be missing for a while in which the store
// answers, before what is left of it goes.
func TestGoneAfterAnOutage(t *testing.T) {
	for _, tt := range []struct {
		name   string
		during func(a *host)
	}{
		{"away", func(a *host) { a.registry.set(registry.ErrUnavailable) }},
		{"away again", func(a *host) {
			time.Sleep(goneFor * 3 / 4)
			a.registry.set(registry.ErrUnavailable)
		}},
		{"token revoked", func(a *host) { a.registry.set(registry.ErrDenied) }},
		{"not certain", func(a *host) { a.registry.set(registry.ErrUncertain) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newHost(t, memory.New(), "a")
				a.config.Networks[0].Pools, a.config.Networks[0].Backend = nil, nil
				r := a.part()
				must(t, storeSaved(a.config.DataDir, saved{Network: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}}))
				r.env.networks.set(networkSet{registry.NetworkSet{}, 5})
				left := make(chan error)
				go func() {
					_, err := r.awaitDefinition(t.Context())
					left <- err
				}()
				tt.during(a)
				time.Sleep(10 * goneFor)
				a.registry.set(nil)
				back := time.Now()
				if err := <-left; !errors.Is(err, errNetworkGone) {
					t.Error(err)
				}
				if took := time.Since(back); took < goneFor || took > 2*goneFor {
					t.Errorf("left %v after the store's return", took)
				}
			})
		})
	}
}
