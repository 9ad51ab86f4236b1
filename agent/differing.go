package agent

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/lenonet/leno/agent/config"
)

// definedReason returns the reason of the check `network` for a network that is defined.
func (r *runner) definedReason() string {
	if differs := r.shown().local.Differs; len(differs) > 0 {
		return "defined; " + differing(r.config, r.local.Name, differs)
	}
	return "defined"
}

// differing returns a sentence which says that a network's block has no effect where it differs from the definition in
// the store, and which command makes it take effect.
func differing(c config.Config, network string, differs []string) string {
	return fmt.Sprintf("the definition in Consul stays in force, and the block differs from it: %s; to change the network on all hosts, run: leno network apply %s",
		strings.Join(differs, "; "), blockFile(c, network))
}

// blockFile returns the path of the file with a network's block, quoted for a shell if necessary, or "FILE" if the path
// is not known.
func blockFile(c config.Config, network string) string {
	file := c.NetworkFiles[network]
	if file == "" {
		return "FILE"
	}
	if whole, err := filepath.Abs(file); err == nil {
		file = whole
	}
	if strings.ContainsAny(file, " \t'\"\\$`*?[]{}()<>|&;#~!") {
		return "'" + strings.ReplaceAll(file, "'", `'\''`) + "'"
	}
	return file
}

// warnDiffering returns a warning about each network whose block differs from the definition that was last read from
// the store.
func (a *Agent) warnDiffering(c config.Config) (warnings []string) {
	known, _, _ := a.env.networks.Get()
	for _, local := range c.Networks {
		now, defined := known.set.Find(local.Name)
		run, runs := a.runner(local.Name)
		if !defined || !runs {
			continue
		}
		if differs := run.differs(now); len(differs) > 0 {
			warnings = append(warnings, fmt.Sprintf("network %s: %s", local.Name, differing(c, local.Name, differs)))
		}
	}
	return warnings
}
