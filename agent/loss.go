package agent

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
)

// A configuration file may have been cut off by a full disk, or by a program that was interrupted while writing it. The
// agent cannot always tell such a file from an intended change. If in doubt, it removes nothing until an operator
// confirms the change.

// takesPart reports whether a configuration makes its host take part in any network.
func takesPart(c config.Config) bool { return len(c.Networks) > 0 || c.WatchNetworks }

// checkLoss refuses a configuration that looks cut off: one of its files is empty now and had options when it was last
// read, or it no longer has any network.
func (a *Agent) checkLoss(old, now config.Config) error {
	var reasons []string
	for _, file := range now.Empty {
		if slices.Contains(old.Files, file) && !slices.Contains(old.Empty, file) {
			reasons = append(reasons, file+" is empty, and was not when it was read last")
		}
	}
	names := a.self().Networks
	for _, n := range old.Networks {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	if names = slices.Compact(names); takesPart(old) && !takesPart(now) && len(names) > 0 {
		reasons = append(reasons, "no network is left, this host would leave "+strings.Join(names, ", "))
	}
	if len(reasons) == 0 {
		return nil
	}
	return fmt.Errorf("nothing was changed: %s; if that is what you want, run `leno reload -force`", strings.Join(reasons, "; "))
}

// emptied returns the files of a configuration that are empty now, but had options when this process or an earlier one
// applied them.
func emptied(c config.Config) []string {
	known := state.LoadConfigFiles(c.DataDir)
	return slices.DeleteFunc(slices.Clone(c.Empty), func(file string) bool { return !slices.Contains(known, absolute(file)) })
}

// rememberFiles writes the list of files with options for emptied.
func (a *Agent) rememberFiles(c config.Config) {
	var files []string
	for _, file := range c.Files {
		if !slices.Contains(c.Empty, file) {
			files = append(files, absolute(file))
		}
	}
	if err := state.SaveConfigFiles(c.DataDir, files); err != nil {
		a.log.Warn("the list of configuration files cannot be written down",
			"path", state.ConfigFilesPath(c.DataDir), "error", err)
	}
}

// absolute returns the path in a form that does not depend on the directory in which the agent was started.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// unmanaged returns the networks that an earlier process took part in and that a configuration that looks cut off does
// not name: it has no network at all, or one of its files is empty and had options before. The agent leaves these
// networks as they are. With -dev there are none, because the directory may belong to another agent.
func (a *Agent) unmanaged(c config.Config) (names []string) {
	if c.Dev || takesPart(c) && len(emptied(c)) == 0 {
		return nil
	}
	for _, name := range state.Networks(c.DataDir) {
		if _, wanted := a.wantedBy(c, name); !wanted {
			names = append(names, name)
		}
	}
	return names
}

// checkConfigured updates the agent's check about its networks: it warns if none is configured, and fails if some are
// left as they are because the configuration looks cut off.
func (a *Agent) checkConfigured(c config.Config) {
	names, networks := a.unmanaged(c), ""
	if len(names) > 0 {
		networks = strings.Join(names, ", ")
		a.log.Error("the configuration looks cut off, what it does not name stays as it is", "networks", names, "empty", emptied(c))
	}
	stays := fmt.Sprintf("this host takes part in %s: that is left as it is, packets flow, and nothing keeps the lease; "+
		"put the network blocks back, or run `leno reload -force` to leave", networks)
	switch {
	case len(names) > 0 && takesPart(c):
		a.env.Reports.Health.Set("", health.Network, api.Critical, fmt.Sprintf("%s is empty, and %s", strings.Join(emptied(c), ", "), stays))
	case len(names) > 0:
		a.env.Reports.Health.Set("", health.Network, api.Critical, "no network is configured, and "+stays)
	case takesPart(c):
		a.env.Reports.Health.Clear("", health.Network)
	default:
		a.env.Reports.Health.Set("", health.Network, api.Warning, "no network is configured: add a network block, or set watch_networks")
		a.log.Warn("no network is configured")
	}
}

// stands returns this host's part in a network if the agent keeps the datapath that an earlier process left, because
// the configuration wants the network or the agent leaves it as it is.
func (a *Agent) stands(name string) (local config.Network, ok bool) {
	c := a.current()
	if local, ok = a.wantedBy(c, name); ok || !slices.Contains(a.unmanaged(c), name) {
		return local, ok
	}
	return a.o.WatchedNetwork(name), true
}
