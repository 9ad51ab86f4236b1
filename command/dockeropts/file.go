package dockeropts

import (
	"fmt"
	"strings"
)

// Variables returns the lines NAME=value of an environment file: the daemon's own environment, each
// option in its own variable, and all of them in the variable all, for example DOCKER_OPTS.
func (d Daemon) Variables(all string) []string {
	lines := append([]string{}, d.Environment...)
	for _, option := range d.Options {
		lines = append(lines, fmt.Sprintf("%s=%q", option.Variable, option.Flag()))
	}
	return append(lines, fmt.Sprintf("%s=%q", all, strings.Join(d.Flags(), " ")))
}
