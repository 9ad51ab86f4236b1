package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// TestLeavingLeavesNothing: nothing of a network stays on the host, whatever made the host leave.
func TestLeavingLeavesNothing(t *testing.T) {
	ctx := context.Background()
	for _, tt := range []struct {
		name  string
		leave func(a *host)
	}{
		{"network deleted", func(a *host) { must(a.t, a.store.Client().DeleteNetwork(ctx, "n")) }},
		{"released", func(a *host) { must(a.t, a.client.ReleaseLease(ctx, "n")) }},
		{"not configured any more", func(a *host) {
			c := a.config
			c.Networks = nil
			must(a.t, a.agent.Reload(ctx, c))
		}},
		{"stopped", func(a *host) { must(a.t, a.stop()) }},
		{"development agent stopped", func(a *host) { must(a.t, a.stop()) }},
	} {
		subtest(t, tt.name, func(t *testing.T) {
			a := newHost(t, memory.New(), "a")
			a.config.Lease.ReleaseOnStop, a.config.Dev = tt.name == "stopped", tt.name == "development agent stopped"
			a.start()
			a.ready()
			subnet := a.subnet()
			a.check(health.Snapshot, api.Passing)
			r := mustRunner(t, a)
			tt.leave(a)
			a.applies("zero")
			eventually(t, func() error {
				_, held := r.Lease()
				_, _, there := a.store.Get(leaseKey(subnet))
				_, read := r.Leases().Snapshot()
				names := a.wall.names()
				v := r.Status()
				report, _ := a.agent.env.Reports.Health.Report()
				for what, wrong := range map[string]bool{
					"subnet file": exists(r.Local().SubnetFile), "state file": exists(state.Path(a.config.DataDir, "n")),
					"lease": held, "record": there, "snapshot": read, "firewall": names[len(names)-1] != "",
					"ready":              len(report.Networks) > 0 && report.Networks[0].Ready,
					"what the API shows": len(v.Local.Subnets) != 0 || v.Local.Peers != 0 || v.Datapath.Abilities.Counters != nil,
				} {
					if wrong {
						return errors.New(what + " is still there")
					}
				}
				return nil
			})
			if built, open := a.recorder.open(); built != 1 || open != 0 {
				t.Errorf("%d of %d backends are open", open, built)
			}
			if tt.name == "released" {
				a.check(health.Lease, api.Warning, "restart or reload")
				must(t, a.agent.Reload(ctx, a.config))
				a.ready()
			}
		})
	}
}

// TestLeftOverRestart: a network that was removed from the configuration while the agent was down is left at the next
// start. The host gets its former subnet when the network comes back.
func TestLeftOverRestart(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").wide()
		with := a.config
		a.start().ready()
		subnet, local, second := a.subnet(), a.config.Networks[0], a.second()
		must(t, a.stop())
		state := state.Path(a.config.DataDir, "n")
		a.config.Networks, a.config.Dev = nil, true
		a.start().check(health.Network, api.Warning, "no network is configured")
		must(t, a.stop())
		if !exists(state) || !exists(local.SubnetFile) || a.recorder.last() == "zero" {
			t.Error("a development agent left a network that is another agent's")
		}
		a.config.Networks, a.config.Dev = []config.Network{second}, false
		a.start()
		eventually(t, func() error {
			if _, _, there := a.store.Get(leaseKey(subnet)); there || exists(state) || exists(local.SubnetFile) {
				return errors.New("something was left behind")
			}
			if !slices.Contains(a.recorder.all(), "zero") {
				return errors.New("the datapath stays")
			}
			if report, _ := a.agent.env.Reports.Health.Report(); len(report.Networks) != 1 {
				return fmt.Errorf("health of a network that was left: %+v", report.Networks)
			}
			return nil
		})
		if got := a.agent.env.Former.Subnet("n"); got != subnet {
			t.Errorf("%s is remembered", got)
		}
		must(t, a.stop())
		a.config = with
		a.start().ready()
		if got := a.subnet(); got != subnet {
			t.Errorf("subnet %s, was %s", got, subnet)
		}
		a.forgets("n")
	})
}

// forgets waits until the former subnet in a network is no longer remembered.
func (h *host) forgets(network string) {
	h.t.Helper()
	eventually(h.t, func() error {
		if got := h.agent.env.Former.Subnet(network); got.IsValid() {
			return fmt.Errorf("%s is remembered still", got)
		}
		return nil
	})
}
