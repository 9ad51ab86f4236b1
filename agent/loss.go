package agent

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/state"
)

// A configuration file may have been cut off by a full disk, or by a program that was interrupted while writing it. The
// agent cannot always tell such a file from an intended change. If in doubt, it removes nothing until an operator
// confirms the change.

// takesPart reports whether a configuration makes its host take part in any network. names are the networks in which
// the host takes part already: watch_networks must include one of them, if there are any.
func takesPart(c config.Config, names []string) bool {
	return len(c.Networks) > 0 || c.WatchNetworks && (len(names) == 0 ||
		slices.ContainsFunc(names, func(name string) bool { return watches(c, name) }))
}

// checkLoss refuses a configuration that looks cut off: one of its files is empty now and had options when it was last
// read, or it has no network block and includes none of names, the networks in which this host takes part.
func checkLoss(old, now config.Config, names []string) error {
	var reasons []string
	for _, file := range now.Empty {
		if slices.Contains(old.Files, file) && !slices.Contains(old.Empty, file) {
			reasons = append(reasons, file+" is empty, and was not when it was read last")
		}
	}
	for _, n := range old.Networks {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	if names = slices.Compact(names); takesPart(old, names) && !takesPart(now, names) && len(names) > 0 {
		reasons = append(reasons, "no network is left, this host would leave "+strings.Join(names, ", "))
	}
	if len(reasons) == 0 {
		return nil
	}
	return fmt.Errorf("nothing was changed: %s; if that is what you want, run `leno reload -force`",
		strings.Join(reasons, "; "))
}

// emptied returns the files of a configuration that are empty now, but had options when this process or an earlier one
// applied them.
func emptied(c config.Config) []string {
	known := state.LoadConfigFiles(c.DataDir)
	return slices.DeleteFunc(slices.Clone(c.Empty), func(file string) bool {
		return !slices.Contains(known, absolute(file))
	})
}

// absolute returns the path in a form that does not depend on the directory in which the agent was started.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
