package agent

import (
	"context"
	"net/netip"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/agent/rules"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
)

// newRules returns the keeper of this host's firewall rules and the monitor of those of other programs.
func newRules(o Options, c config.Firewall, e *network.Deps) network.Rules {
	to := e.Reports
	monitor := rules.NewForeignMonitor(e.Log, o.Obstacles, to.Health)
	keeper := rules.New(o.Firewall, c, e.Log, to.Health, rules.Hooks{
		Changed: monitor.Changed,
		Repaired: func(message string) {
			to.Events.Add(api.Event{Kind: api.EventDrift, Severity: api.Warning, Message: message})
		},
		Applied: func(p rules.Pass) {
			to.Telemetry.Time(telemetry.FirewallDuration, p.Took)
			to.Telemetry.Count(telemetry.FirewallLooks, 1, telemetry.Result(p.Err))
			to.Telemetry.Count(telemetry.FirewallWrites, p.Writes)
			to.Telemetry.Count(telemetry.FirewallRepairs, p.Repaired)
		},
	})
	return network.Rules{Keeper: keeper, Foreign: monitor}
}

// measureFirewall adds the gauges of the firewall to a reading.
func measureFirewall(to *telemetry.Reading, s rules.Status) {
	kind := s.Choice.Kind
	if kind == "" {
		kind = "none"
	}
	to.Gauge(telemetry.FirewallInfo, 1, kind)
	to.Gauge(telemetry.FirewallConflicts, float64(s.Flapping))
	to.Exists(telemetry.FirewallLooks, telemetry.OK)
	to.Exists(telemetry.FirewallLooks, telemetry.Failed)
}

// firewallChoice returns the kind of firewall that holds the rules, or nil if there are none.
func firewallChoice(s rules.Status) *api.Firewall {
	if s.Choice.Kind == "" {
		return nil
	}
	out := api.Firewall(s.Choice)
	return &out
}

// watchedNetworks is the name under which rules are expected of all networks that watch_networks joins, as long as the
// store was not read and their names are not known. No network has this name.
const watchedNetworks = ""

// expectRules makes the keeper expect rules of networks that exist in the kernel without a state file that describes
// them: those of this configuration and, if the whole state directory was lost, those that join finds in the store.
func (ns *networks) expectRules(ctx context.Context) {
	c := ns.settings.get()
	for _, local := range c.Networks {
		ns.expectRulesOf(ctx, local.Name, poolsOf(local))
	}
	if c.WatchNetworks && ns.env.Identity.NodeID() == "" {
		ns.env.Rules.Keeper.Expect(watchedNetworks)
	}
}

func (ns *networks) expectRulesOf(ctx context.Context, name string, pools []netip.Prefix) {
	if before, err := state.Load(ns.settings.get().DataDir, name); err == nil && len(before.Subnets) > 0 {
		return
	}
	if found, err := ns.env.ReadKernelState(ctx, backend.LinkName(name), pools); err == nil && !found.IsEmpty() {
		ns.env.Rules.Keeper.Expect(name)
	}
}
