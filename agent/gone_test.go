package agent

import (
	"errors"
	"testing"

	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry/memory"
)

// TestDepartureAndReload: if a reload adds a network that the agent is leaving at its start, the network begins when
// the agent has left it. If the reload comes before that, the network is not left at all.
func TestDepartureAndReload(t *testing.T) {
	for _, tt := range []struct {
		name  string
		early bool // the reload comes before the network is left
	}{{"before it is left", true}, {"while it is left", false}} {
		subtest(t, tt.name, func(t *testing.T) {
			a := newHost(t, memory.New(), "a")
			second := a.second()
			both := append(a.config.Networks[:1:1], second)
			a.config.Networks = both
			a.start().ready()
			subnet, file := mustPart(t, a, "m").Status().Local.Subnets[0], second.SubnetFile
			must(t, a.stop())

			a.config.Networks = both[:1]
			more := a.config
			more.Networks = both
			reloaded := make(chan error, 1)
			releasing := make(chan struct{})
			a.registry.SetBefore(func(call string) {
				if call == "Release" {
					<-releasing
				}
			})
			if tt.early {
				agent := a.build()
				agent.env.Identity.SetNode("a")
				agent.env.Identity.SetNodeID("id")
				agent.settings.set(more, false)
				agent.networks.leaveUnwanted(t.Context())
				if a.registry.Count("own Release") > 0 || !exists(state.Path(a.config.DataDir, "m")) {
					t.Error("left although it is wanted again")
				}
				return
			}
			a.start()
			a.more("releases", 0, func() int { return a.registry.Count("own Release") })
			go func() { reloaded <- a.agent.Reload(t.Context(), more) }()
			eventually(t, func() error {
				if len(a.agent.settings.get().Networks) != 2 {
					return errors.New("not reloaded yet")
				}
				return nil
			})
			if _, runs := a.agent.networks.get("m"); runs {
				t.Error("it began while it was being left")
			}
			close(releasing)
			must(t, <-reloaded)
			a.ready()
			if now := mustPart(t, a, "m").Status().Local.Subnets; len(now) != 1 || !exists(file) || !exists(state.Path(a.config.DataDir, "m")) {
				t.Errorf("subnets %v, before %s; subnet file %t, state %t", now, subnet, exists(file), exists(state.Path(a.config.DataDir, "m")))
			}
		})
	}
}

// mustPart returns this host's part in a network.
func mustPart(t *testing.T, h *host, name string) *network.Runner {
	t.Helper()
	r, ok := h.agent.networks.get(name)
	if !ok {
		t.Fatalf("no part in network %s", name)
	}
	return r
}
