package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
)

// reloadRequest asks the supervising goroutine to take over a configuration.
type reloadRequest struct {
	config config.Config
	done   chan error
}

// Reload takes over a configuration as far as a running agent can: the log
// level, networks, leases, the underlay, the firewall, and the token file are read again. It
// refuses, by name, what needs a restart, and then changes nothing. It blocks
// until done.
func (a *Agent) Reload(ctx context.Context, c config.Config) error {
	request := reloadRequest{c, make(chan error, 1)}
	select {
	case a.reloads <- request:
	case <-a.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-request.done:
		return err
	case <-a.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errEnded = errors.New("the agent has stopped")

// Ready says whether every network is usable by container runtimes.
func (a *Agent) Ready() bool {
	report, _ := a.env.health.report()
	return report.Ready
}

// needsRestart names the settings that differ and cannot change in a running
// agent.
func needsRestart(old, new config.Config) []string {
	var out []string
	for _, setting := range []struct {
		name     string
		old, new any
	}{
		{"node_name", old.NodeName, new.NodeName},
		{"data_dir", old.DataDir, new.DataDir},
		{"consul", old.Consul, new.Consul},
		{"http", old.HTTP, new.HTTP},
		{"telemetry", old.Telemetry, new.Telemetry},
		{"log_json, log_file or log_rotate_*", withoutLevel(old.Log), withoutLevel(new.Log)},
	} {
		if !reflect.DeepEqual(setting.old, setting.new) {
			out = append(out, setting.name)
		}
	}
	return out
}

func withoutLevel(l config.Log) config.Log {
	l.Level = ""
	return l
}

func (a *Agent) reload(ctx context.Context, c config.Config) error {
	old := a.current()
	if names := needsRestart(old, c); len(names) > 0 {
		return fmt.Errorf("needs a restart, nothing was changed: %s", strings.Join(names, "; "))
	}
	if tokens, ok := a.env.registry.(interface{ ReloadToken() error }); ok {
		if err := tokens.ReloadToken(); err != nil {
			return fmt.Errorf("nothing was changed: %w", err)
		}
	}
	a.log.SetLevel(hclog.LevelFromString(c.Log.Level))
	a.mu.Lock()
	a.config = c
	running := maps.Clone(a.runners)
	a.mu.Unlock()

	if old.Firewall != c.Firewall {
		a.env.firewall.configure(c.Firewall)
	}
	again := !reflect.DeepEqual(old.Lease, c.Lease) || !reflect.DeepEqual(old.Underlay, c.Underlay)
	for name, run := range running {
		local, stays := a.wanted(name)
		switch {
		case !stays:
			a.log.Info("network is not configured any more, leaving it", "network", name)
			a.stop(name, true)
		case again || !reflect.DeepEqual(local, run.local) || run.shown().local.State == releasedAdvice:
			a.restart(ctx, local)
			if run.local.SubnetFile != local.SubnetFile {
				if err := os.Remove(run.local.SubnetFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
					a.log.Warn("old subnet file stays", "network", name, "error", err)
				}
			}
		}
	}
	a.adopt(ctx, c)
	a.log.Info("configuration reloaded", "files", c.Files)
	return nil
}

// wanted is this host's part in a network: its block, or what watch_networks
// makes of a network without one. ok is false when it takes no part.
func (a *Agent) wanted(name string) (local config.Network, ok bool) {
	for _, n := range a.current().Networks {
		if n.Name == name {
			return n, true
		}
	}
	return a.o.WatchedNetwork(name), a.watched(name)
}

// watched says whether the agent joins a network it has no block for.
func (a *Agent) watched(name string) bool {
	c := a.current()
	if !c.WatchNetworks {
		return false
	}
	for _, pattern := range c.AllowedNetworks {
		if ok, err := path.Match(pattern, name); err == nil && ok {
			return true
		}
	}
	return false
}

// join starts networks that appeared in the store where watch_networks asks for
// it, and leaves those again that went and have no block. What was read of all
// networks may be older than what the runner has read of its own.
func (a *Agent) join(ctx context.Context) {
	known, ok, _ := a.env.networks.get()
	if !ok {
		return
	}
	for _, n := range known.set.Networks {
		if _, runs := a.runner(n.Name); !runs && a.watched(n.Name) {
			a.expectRulesOf(ctx, n.Name, n.Plan.Prefixes())
		}
	}
	a.env.firewall.expected.meet(watchedNetworks)
	for _, n := range known.set.Networks {
		local, ok := a.wanted(n.Name)
		if !ok {
			continue
		}
		a.start(ctx, local)
		if run, ok := a.runner(n.Name); ok && !a.configured(n.Name) {
			run.seen.Store(true)
		}
	}
	for _, name := range a.self().Networks {
		_, found := known.find(name)
		if run, ok := a.runner(name); ok && run.seen.Load() && known.index > run.shown().definition.ModifyIndex &&
			!found && !a.configured(name) && !known.bad(name) {
			a.stop(name, true)
		}
	}
}

// configured says whether the network has a block.
func (a *Agent) configured(name string) bool {
	return slices.ContainsFunc(a.current().Networks, func(n config.Network) bool { return n.Name == name })
}

// refreshed reads the configuration again and takes it over; for the API.
func (a *Agent) refreshed(ctx context.Context) error {
	if a.refresh == nil {
		return errors.New("this agent cannot read its configuration again")
	}
	c, err := a.refresh()
	if err != nil {
		return a.reloaded(err)
	}
	return a.Reload(ctx, c)
}
