package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"strings"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
)

// apply leaves networks that are no longer configured, restarts those whose configuration changed, and joins
// others. It returns warnings about subnet files that could not be copied or removed.
func (ns *networks) apply(ctx context.Context, old, c config.Config) (warnings []string) {
	again := !reflect.DeepEqual(old.Lease, c.Lease) || !reflect.DeepEqual(old.Underlay, c.Underlay)
	for _, name := range ns.names() {
		run, _ := ns.get(name) // only this goroutine removes one
		local, stays := ns.settings.wanted(name)
		switch {
		case !stays:
			ns.log.Info("network is not configured any more, leaving it", "network", name)
			ns.keepFormer(name)
			ns.leave(name)
		case again || !reflect.DeepEqual(local, run.Local()) || run.Status().Local.State == lease.ReleasedAdvice:
			err := ns.restart(ctx, local)
			// The old path may be another spelling of this network's current one.
			if err == nil && ns.subnetFileOf(run.Local().SubnetFile, "") == "" {
				err = state.RemoveSubnetFile(run.Local().SubnetFile)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				ns.log.Warn("old subnet file could not be removed", "network", name, "error", err)
				warnings = append(warnings, fmt.Sprintf("network %s: old subnet file could not be removed: %v", name, err))
			}
		}
	}
	if ns.hasBegun() {
		ns.adopt(ctx, c)
	}
	return warnings
}

// begin starts the runners. This host's id must be known.
func (ns *networks) begin(ctx context.Context) {
	ns.mu.Lock()
	ns.begun = true
	ns.mu.Unlock()
	ns.adopt(ctx, ns.settings.get())
}

// join starts networks that appeared in the store and that watch_networks includes, and stops the runners of deleted
// networks that have no block. The runner of one that was defined again goes on by itself. It returns false while a new
// host does not know its networks, because watch_networks is set and the store has not been read.
func (ns *networks) join(ctx context.Context) bool {
	known, ok, _ := ns.env.Store.Networks.Get()
	if !ok {
		return !ns.settings.get().WatchNetworks || len(ns.names()) > 0
	}
	for _, n := range known.Set.Networks {
		if _, runs := ns.get(n.Name); !runs && ns.settings.watched(n.Name) {
			ns.expectRulesOf(ctx, n.Name, n.Plan.Prefixes())
		}
	}
	ns.env.Rules.Keeper.Resolve(watchedNetworks)
	for _, n := range known.Set.Networks {
		local, ok := ns.settings.wanted(n.Name)
		if !ok {
			continue
		}
		ns.start(ctx, local)
	}
	for _, name := range ns.names() {
		_, defined := known.Set.Find(name)
		if run, ok := ns.get(name); ok && !defined && run.WasLeft() && !ns.settings.configured(name) {
			ns.leave(name)
		}
	}
	return true
}

// adopt starts runners for the networks of c that have none.
func (ns *networks) adopt(ctx context.Context, c config.Config) {
	ns.checkConfigured(c)
	for _, n := range c.Networks {
		ns.start(ctx, n)
	}
	if c.Dev {
		return // the saved state may be another agent's
	}
	// Networks of an earlier process start without waiting until they are found in the store.
	for _, name := range state.Networks(c.DataDir) {
		if local, ok := ns.settings.wanted(name); ok {
			ns.start(ctx, local)
		}
	}
}

// checkConfigured updates the agent's check about its networks: it warns if none is configured, and fails if some are
// left as they are because the configuration looks cut off.
func (ns *networks) checkConfigured(c config.Config) {
	board := ns.env.Reports.Health
	switch names := ns.settings.unmanaged(c); {
	case len(names) > 0:
		empty, remedy := emptied(c), "put the network blocks back"
		reason := "no network is configured"
		switch {
		case len(empty) > 0:
			reason = strings.Join(empty, ", ") + " is empty"
		case c.WatchNetworks:
			reason, remedy = "allowed_networks includes no network of this host", "correct allowed_networks"
		}
		ns.log.Error("the configuration may have been cut off: networks that it does not name are kept",
			"networks", names, "empty", empty)
		board.Set("", health.Network, api.Critical, fmt.Sprintf("%s, and this host takes part in %s: the network is kept, "+
			"and packets flow, but the lease is not renewed; %s, or run `leno reload -force` to leave",
			reason, strings.Join(names, ", "), remedy))
	case takesPart(c, nil):
		board.Clear("", health.Network)
	default:
		board.Set("", health.Network, api.Warning,
			"no network is configured: add a network block, or set watch_networks")
		ns.log.Warn("no network is configured")
	}
}

// warnDiffering returns a warning about each network whose block differs from the definition that was last read from
// the store.
func (ns *networks) warnDiffering(c config.Config) (warnings []string) {
	known, _, _ := ns.env.Store.Networks.Get()
	for _, local := range c.Networks {
		now, defined := known.Set.Find(local.Name)
		run, runs := ns.get(local.Name)
		if !defined || !runs {
			continue
		}
		if differs := run.Differs(now); len(differs) > 0 {
			warnings = append(warnings, fmt.Sprintf("network %s: %s", local.Name, network.Differing(c, local, now, differs)))
		}
	}
	return warnings
}
