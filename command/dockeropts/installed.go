package dockeropts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// versionTimeout bounds dockerd, which reports its version without running. It is long because on a slow host that
// boots, dockerd takes seconds. askTimeout bounds questions to the running Docker: while systemd starts it, its socket
// accepts connections and nothing answers.
const (
	versionTimeout = 30 * time.Second
	askTimeout     = 3 * time.Second
)

// InstalledVersion returns the version of the installed Docker, or the zero value if it is
// unknown. It asks dockerd first: the options are for its next start, and it can respond without
// running.
func InstalledVersion(ctx context.Context) Version {
	for _, ask := range []struct {
		timeout time.Duration
		command []string
	}{
		{versionTimeout, []string{"dockerd", "--version"}}, // Docker version 28.3.2, build e77ff99
		{askTimeout, []string{"docker", "version", "--format", "{{.Server.Version}}"}},
		{askTimeout, []string{"docker", "version", "--format", "{{.Client.Version}}"}},
	} {
		for word := range strings.FieldsSeq(output(ctx, ask.timeout, ask.command...)) {
			if v, err := ParseVersion(strings.TrimSuffix(word, ",")); err == nil {
				return v
			}
		}
	}
	return Version{}
}

// HasNFTables reports whether the running Docker keeps its rules in its own nftables tables.
func HasNFTables(ctx context.Context) bool {
	driver := output(ctx, askTimeout, "docker", "info", "--format", "{{with .FirewallBackend}}{{.Driver}}{{end}}")
	return strings.HasPrefix(driver, "nftables")
}

// Validate asks dockerd whether it would start with a new content of the daemon.json at path. It returns no error if
// dockerd is not installed or cannot tell: before 23.0 it has no such option.
func Validate(ctx context.Context, path string, daemonJSON []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".leno-*.json") // some dockerd can read no other directory
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(daemonJSON)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "dockerd", "--validate", "--config-file="+file.Name())
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	text := strings.TrimSpace(string(out))
	if !errors.As(err, &failed) || ctx.Err() != nil || text == "" || strings.Contains(text, "unknown flag") {
		return nil
	}
	return fmt.Errorf("dockerd --validate refuses it: %s", strings.ReplaceAll(text, file.Name(), "the file"))
}

// output returns what a program prints on standard output, whatever its exit code: without a
// daemon, the docker client still reports its own version. A missing program prints nothing.
func output(ctx context.Context, timeout time.Duration, command ...string) string {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.WaitDelay = time.Second
	out, _ := cmd.Output()
	return string(out)
}
