package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestReload: a reload joins and leaves networks, and leaves the others alone. A network that comes back has its former
// subnet.
func TestReload(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store, ctx := memory.New(), t.Context()
		a := newHost(t, store, "a").wide().start()
		a.ready()
		lines := agenttest.FollowLog(t, a.client, api.Monitor{Level: "trace"})
		run, less, more := mustRunner(t, a), a.config, a.config
		second := a.second()
		second.Pools = []config.Pool{{Prefix: netip.MustParsePrefix("10.6.0.0/16"), SubnetLen: 30}}
		more.Networks = append(more.Networks[:1:1], second)
		must(t, a.agent.Reload(ctx, more))
		agenttest.AwaitLine(t, lines, "configuration reloaded")
		a.has(second.SubnetFile, "m")
		subnet := state.SubnetInFile(second.SubnetFile)
		a.measures(is(1), telemetry.LeaseHeld, "m")

		must(t, a.agent.Reload(ctx, less))
		if v, ok := a.metric(telemetry.LeaseHeld, "m"); ok {
			t.Errorf("the metrics still have the network that was left, %v", v)
		}
		a.measures(is(1), telemetry.LeaseHeld, "n")
		if mustRunner(t, a) != run {
			t.Error("an unchanged network was started again")
		}
		if exists(second.SubnetFile) || exists(state.Path(a.config.DataDir, "m")) {
			t.Error("the network that left the configuration has its files")
		}
		if keys := store.Keys(memory.Prefix + "/leases/m/1"); len(keys) != 0 {
			t.Errorf("its lease stays: %v", keys)
		}
		a.ready()

		must(t, a.agent.Reload(ctx, more))
		a.has(second.SubnetFile, "m")
		if now := state.SubnetInFile(second.SubnetFile); now != subnet {
			t.Errorf("subnet %s, was %s", now, subnet)
		}
		a.forgets("m")
	})
}

// TestWatchNetworks: the agent joins networks that match, and leaves those that are deleted. It does not wait for one that
// was deleted before the agent read its definition.
func TestWatchNetworks(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store, ctx := memory.New(), t.Context()
		a := newHost(t, store, "a")
		a.config.WatchNetworks, a.config.AllowedNetworks = true, []string{"team-*"}
		put := func(name, pool string) {
			t.Helper()
			n := registry.Network{Name: name, Plan: agenttest.Plan(t, pool), Backend: agenttest.Backend(t, "recorder", "")}
			must(t, store.Client().PutNetwork(ctx, n))
		}
		networks := func(want ...string) {
			t.Helper()
			eventually(t, func() error {
				if got := a.agent.self().Networks; !slices.Equal(got, want) {
					return fmt.Errorf("takes part in %q, want %q", got, want)
				}
				return nil
			})
		}
		a.start()
		put("other", "10.7.0.0/22")
		put("team-red", "10.8.0.0/22")
		networks("n", "team-red")
		a.ready()
		must(t, store.Client().DeleteNetwork(ctx, "team-red"))
		networks("n")
		a.registry.SetOne("Network", registry.ErrUnavailable)
		put("team-short", "10.8.0.0/22")
		networks("n", "team-short")
		must(t, store.Client().DeleteNetwork(ctx, "team-short"))
		a.registry.SetOne("Network", nil)
		networks("n")
		a.ready()
	})
}

// TestNewHostWithWatchedNetworks: a new host with watch_networks is not ready before it has read which networks there are
// and joined them. A store without networks has been read as well.
func TestNewHostWithWatchedNetworks(t *testing.T) {
	for name, defined := range map[string]bool{"one network": true, "no network": false} {
		subtest(t, name, func(t *testing.T) {
			a := newHost(t, memory.New(), "a")
			a.config.Networks, a.config.WatchNetworks, a.config.AllowedNetworks = nil, true, []string{"*"}
			n := registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22"), Backend: agenttest.Backend(t, "recorder", "")}
			if defined {
				must(t, a.store.Client().PutNetwork(t.Context(), n))
			}
			a.registry.Set(registry.ErrUnavailable)
			a.start()
			a.check(health.Node, api.Critical, "waiting for the list of networks")
			if a.agent.Ready() {
				t.Error("ready before the networks are known")
			}
			a.registry.Set(nil)
			a.ready()
			report, _ := a.agent.env.Reports.Health.Report()
			if joined := len(report.Networks) == 1; joined != defined || slices.ContainsFunc(report.Checks, func(c api.Check) bool { return c.Name == health.Node }) {
				t.Errorf("ready with %+v", report)
			}
		})
	}
}
