package agent

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// silentNetworks answers a blocking read of the networks only when ctx ends, as Consul does after a tree was deleted
// in which keys had been deleted before.
type silentNetworks struct{ registry.Registry }

func (s silentNetworks) WatchNetworks(ctx context.Context, after uint64) (registry.NetworkSet, uint64, error) {
	if after > 0 {
		<-ctx.Done()
		return registry.NetworkSet{}, 0, ctx.Err()
	}
	return s.Registry.WatchNetworks(ctx, after)
}

// TestNetworksAfterALoss: the networks are read again each time the leases show that the store lost records. The check of
// the store has the store's name.
func TestNetworksAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, memory.New(), "a")
		h.config.Etcd.Endpoints = []string{"http://192.0.2.1:2379"}
		h.part()
		h.agent.env.Store.Registry = silentNetworks{h.agent.env.Store.Registry}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- h.agent.watchNetworks(ctx) }()
		synctest.Wait()
		defined := func(want bool) {
			t.Helper()
			known, _, _ := h.agent.env.Store.Networks.Get()
			if _, found := known.Set.Find("n"); found != want {
				t.Errorf("defined: %t, want %t", found, want)
			}
		}
		for range 3 {
			n := registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22"), Backend: agenttest.Backend(t, "recorder", "")}
			must(t, h.store.Client().PutNetwork(t.Context(), n))
			h.agent.env.Store.SetBack.Set(struct{}{})
			synctest.Wait()
			defined(true)
			h.store.Delete(networkKey)
			time.Sleep(time.Hour)
			defined(true)
			h.agent.env.Store.SetBack.Set(struct{}{})
			synctest.Wait()
			defined(false)
		}
		h.check(health.Etcd, api.Passing)
		h.registry.Set(fmt.Errorf("no luck: %w", registry.ErrUnavailable))
		h.agent.env.Store.SetBack.Set(struct{}{})
		h.check(health.Etcd, api.Warning, "no luck")
		if report, _ := h.agent.env.Reports.Health.Report(); slices.ContainsFunc(report.Checks, func(c api.Check) bool { return c.Name == health.Consul }) {
			t.Errorf("the agent has checks %+v", report.Checks)
		}
		cancel()
		<-ended
	})
}
