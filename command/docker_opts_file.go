package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/command/dockeropts"
)

// environment returns an environment file for systemd and shells: each option in its own variable,
// and all of them in one.
func (o *dockerOpts) environment(d dockeropts.Daemon, network string) string {
	var b strings.Builder
	comment(&b, "docker0 in network "+network+", by `leno docker-opts -format=env`")
	for _, note := range d.Notes {
		comment(&b, note)
	}
	for _, line := range d.Environment {
		fmt.Fprintln(&b, line)
	}
	for _, option := range d.Options {
		fmt.Fprintf(&b, "%s=%q\n", option.Variable, option.Flag())
	}
	fmt.Fprintf(&b, "%s=%q\n", o.key, strings.Join(d.Flags(), " "))
	return b.String()
}

// daemonJSON returns old, a daemon.json or nothing, with the options set. Options that leno may
// set but does not set now are removed; everything else stays.
func daemonJSON(d dockeropts.Daemon, old []byte) (string, error) {
	all := map[string]any{}
	if len(bytes.TrimSpace(old)) > 0 {
		dec := json.NewDecoder(bytes.NewReader(old))
		dec.UseNumber()
		if err := dec.Decode(&all); err != nil {
			return "", fmt.Errorf("is not a JSON object: %w", err)
		}
		if all == nil {
			return "", errors.New("is not a JSON object, but null")
		}
		if _, err := dec.Token(); !errors.Is(err, io.EOF) {
			return "", errors.New("has more after its JSON object")
		}
	}
	for _, key := range dockeropts.Keys() {
		delete(all, key)
	}
	for _, option := range d.Options {
		all[option.Name] = option.Value
	}
	var b strings.Builder
	err := cli.WriteJSON(&b, all)
	return b.String(), err
}

// replaceFile replaces the content of path atomically: a reader sees either the whole old or the
// whole new content. It keeps the mode of an existing file, and a symlink to it.
func replaceFile(path string, data []byte) (err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	mode := os.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
