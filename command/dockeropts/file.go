package dockeropts

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/lenonet/leno/agent/state"
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

// ReplaceFile replaces the content of a file atomically. It keeps the mode of an existing file, and
// a symlink to it. The directory must exist.
func ReplaceFile(path string, data []byte) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	return state.WriteFile(path, data, mode)
}
