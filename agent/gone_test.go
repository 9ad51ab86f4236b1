package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestDeletedWhileTheAgentWasAway: what an earlier process left of a network goes
// when the store has had none for a while, not at once, and not for a host that
// defines it.
func TestDeletedWhileTheAgentWasAway(t *testing.T) {
	for _, tt := range []struct {
		name    string
		local   func(c *config.Config)
		goneFor time.Duration
		leaves  bool
	}{
		{"with a block that defines nothing", func(c *config.Config) { c.Networks[0].Pools, c.Networks[0].Backend = nil, nil }, time.Millisecond, true},
		{"watched", func(c *config.Config) { c.Networks, c.WatchNetworks, c.AllowedNetworks = nil, true, []string{"*"} }, time.Millisecond, true},
		{"watched, a moment ago", func(c *config.Config) { c.Networks, c.WatchNetworks, c.AllowedNetworks = nil, true, []string{"*"} }, time.Hour, false},
		{"with a block, a moment ago", func(c *config.Config) { c.Networks[0].Pools, c.Networks[0].Backend = nil, nil }, time.Hour, false},
		{"defined by the host", func(*config.Config) {}, time.Millisecond, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store := memory.New()
			a := newHost(t, store, "a")
			n, err := Definition(a.config.Networks[0])
			must(t, err)
			must(t, store.Client().PutNetwork(context.Background(), n))
			tt.local(&a.config)
			a.goneFor = tt.goneFor
			started := a.start()
			eventually(t, func() error {
				if r, ok := a.agent.runner("n"); !ok || r.shown().local.Applied.IsZero() {
					return errors.New("not there yet")
				}
				return nil
			})
			lease, _, _ := mustRunner(t, a).lease.get()
			file := mustRunner(t, a).local.SubnetFile
			must(t, started.stop())
			must(t, store.Client().DeleteNetwork(context.Background(), "n"))
			a.start()
			if !tt.leaves {
				if tt.name == "defined by the host" {
					a.ready()
				} else {
					eventually(t, func() error {
						if !a.agent.env.missing("n") {
							return errors.New("not read yet")
						}
						return nil
					})
					a.agent.join(context.Background())
				}
				if _, _, there := store.Get(leaseKey(lease.Subnet())); !there || !exists(file) || a.recorder.last() == "zero" {
					t.Error("it was left")
				}
				return
			}
			a.applies("zero")
			eventually(t, func() error {
				if _, _, there := store.Get(leaseKey(lease.Subnet())); there || exists(file) || exists(savedPath(a.config.DataDir, "n")) {
					return errors.New("something stays")
				}
				return nil
			})
			// Whoever defines it again has it back.
			must(t, store.Client().PutNetwork(context.Background(), n))
			a.ready()
			a.check(checkNetwork, api.Passing)
		})
	}
}

func TestMissing(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	env := h.build().env
	if env.missing("n") {
		t.Error("missing although nothing was read")
	}
	for _, tt := range []struct {
		name string
		set  registry.NetworkSet
		want bool
	}{
		{"none", registry.NetworkSet{}, true},
		{"there", registry.NetworkSet{Networks: []registry.Network{{Name: "n"}}}, false},
		{"its record is bad", registry.NetworkSet{Bad: []registry.BadRecord{{Key: memory.Prefix + "/networks/n"}}}, false},
	} {
		env.networks.set(networkSet{tt.set, 5})
		if got := env.missing("n"); got != tt.want {
			t.Errorf("%s: missing %t", tt.name, got)
		}
	}
}
