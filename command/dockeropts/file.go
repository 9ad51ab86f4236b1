package dockeropts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// Merge returns the content of a daemon.json, which may be empty, with the options set. Options that
// leno may set but does not set now are removed; everything else stays.
func (d Daemon) Merge(daemonJSON []byte) (map[string]any, error) {
	all := map[string]any{}
	if len(bytes.TrimSpace(daemonJSON)) > 0 {
		dec := json.NewDecoder(bytes.NewReader(daemonJSON))
		dec.UseNumber()
		if err := dec.Decode(&all); err != nil {
			return nil, fmt.Errorf("is not a JSON object: %w", err)
		}
		if all == nil {
			return nil, errors.New("is not a JSON object, but null")
		}
		if _, err := dec.Token(); !errors.Is(err, io.EOF) {
			return nil, errors.New("has more after its JSON object")
		}
	}
	for _, key := range keys() {
		delete(all, key)
	}
	for _, option := range d.Options {
		all[option.Name] = option.Value
	}
	return all, nil
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
