// Package mounts runs agents whose files are where they are on a real host: in /etc, /run, /var/lib and /usr/local/bin.
// Each agent has a mount namespace of its own, so that several hosts of a lab share one machine.
package mounts

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// A Host is a host of a lab with its own /etc, /run, /var/lib and /usr/local/bin.
type Host struct {
	*lab.Host
	Process *lab.Process // the agent that was launched last

	world *world.World
}

// Run is a script for Launch that changes nothing.
const Run = `exec "$@"`

// New creates the directories and the configuration. programs are links that take precedence over the machine's
// programs: "iptables" -> "/usr/sbin/iptables-legacy".
func New(w *world.World, h *lab.Host, config string, programs map[string]string) *Host {
	w.T.Helper()
	p := &Host{Host: h, world: w}
	for _, dir := range []string{"etc", "run/leno", "lib", "bin"} {
		w.Must(os.MkdirAll(filepath.Join(h.Dir, dir), 0o755))
	}
	_, err := h.Exec(w.Ctx, "cp", "-a", "/etc/.", filepath.Join(h.Dir, "etc"))
	w.Must(err)
	w.Must(os.MkdirAll(filepath.Join(h.Dir, "etc/leno.d"), 0o755))
	p.Configure(config)
	for name, target := range programs {
		w.Must(os.Symlink(target, filepath.Join(h.Dir, "bin", name)))
	}
	w.Must(os.WriteFile(filepath.Join(h.Dir, "bin/leno"), nil, 0o755)) // the program is mounted there
	w.T.Cleanup(func() {
		if w.T.Failed() && p.Process != nil {
			lines := strings.Split(strings.TrimSpace(p.Process.Output()), "\n")
			w.T.Logf("agent of %s:\n%s", p.Name, strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
	})
	return p
}

// Configure writes the configuration of the agent.
func (h *Host) Configure(config string) {
	h.world.T.Helper()
	h.world.Must(os.WriteFile(h.ConfigPath(), []byte(config), 0o644))
}

// ConfigPath returns the path of the configuration outside of the mounts.
func (h *Host) ConfigPath() string { return filepath.Join(h.Dir, "etc/leno.d/leno.hcl") }

// Launch starts the agent after a script that may change the mounts and ends with Run, or with another way to run its
// arguments. It does not wait until the agent is ready.
func (h *Host) Launch(script string) error {
	return h.LaunchCommand(script, "leno", "agent", "-config-dir=/etc/leno.d")
}

// LaunchCommand is like Launch for an agent with another command line.
func (h *Host) LaunchCommand(script string, command ...string) error {
	program, err := filepath.Abs(world.Leno())
	if err != nil {
		return err
	}
	const mounts = `
mount --bind "$1/etc" /etc
mount --bind "$1/run" /run
mount --bind "$1/lib" /var/lib
mount --bind "$2" "$1/bin/leno"
mount --rbind "$1/bin" /usr/local/bin
shift 2
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
`
	h.Process, err = h.Start(append([]string{"unshare", "--mount", "sh", "-euc", mounts + script, "sh", h.Dir, program}, command...)...)
	return err
}

// Inside runs a program in the mounts of the agent.
func (h *Host) Inside(command ...string) error {
	_, err := h.Exec(h.world.Ctx, append([]string{"nsenter", fmt.Sprintf("--target=%d", h.Process.Pid()), "--mount"}, command...)...)
	return err
}

// File returns the path outside of the mounts of a file that the agent has at path.
func (h *Host) File(path string) string { return fmt.Sprintf("/proc/%d/root%s", h.Process.Pid(), path) }

// Statuses returns the checks of the agent and of its networks, by network and name: "default/lease", or "/consul" for
// one of the whole agent.
func (h *Host) Statuses(ctx context.Context) (map[string]api.Check, error) {
	_, body, err := h.Get(ctx, "/healthz")
	if err != nil {
		return nil, err
	}
	var health api.Health
	if err := json.Unmarshal([]byte(body), &health); err != nil {
		return nil, err
	}
	out := map[string]api.Check{}
	for _, n := range append(health.Networks, api.NetworkHealth{Checks: health.Checks}) {
		for _, c := range n.Checks {
			out[n.Network+"/"+c.Name] = c
		}
	}
	return out, nil
}

// WaitCheck blocks until a check of the agent or of any network has the status, and a reason with the words.
func (h *Host) WaitCheck(name, status string, words ...string) error {
	return h.Process.WaitFor(h.world.Ctx, fmt.Sprintf("%s: %s to be %s", h.Name, name, status), func(ctx context.Context) error {
		checks, err := h.Statuses(ctx)
		if err != nil {
			return err
		}
		err = fmt.Errorf("no such check in %v", checks)
		for key, c := range checks {
			if !strings.HasSuffix(key, "/"+name) {
				continue
			}
			missing := false
			for _, word := range words {
				missing = missing || !strings.Contains(c.Reason, word)
			}
			if c.Status == status && !missing {
				return nil
			}
			err = fmt.Errorf("%s: %s", c.Status, c.Reason)
		}
		return err
	})
}

// WaitPassing blocks until all checks are passing and every network is ready.
func (h *Host) WaitPassing() error {
	return h.Process.WaitFor(h.world.Ctx, h.Name+" to pass all checks", func(ctx context.Context) error {
		status, body, err := h.Get(ctx, "/healthz")
		if err == nil && (status != http.StatusOK || !strings.Contains(body, `"ready":true`)) {
			err = fmt.Errorf("%d: %s", status, body)
		}
		return err
	})
}

// Faults returns how often the log reports the beginning and the end of a fault.
func (h *Host) Faults(check string) (begun, ended int) {
	for line := range strings.Lines(h.Process.Output()) {
		if strings.Contains(line, "check="+check) {
			begun += strings.Count(line, "operation failed on this host")
			ended += strings.Count(line, "operation works again")
		}
	}
	return begun, ended
}

// WaitFaults blocks until the log reports the beginning and the end of a fault as often as wanted, which may be a
// moment after the check has changed. It returns an error if there are more lines.
func (h *Host) WaitFaults(check string, begun, ended int) error {
	var b, e int
	err := h.Process.WaitFor(h.world.Ctx, fmt.Sprintf("%s: %d lines of the beginning of %s and %d of the end", h.Name, begun, check, ended),
		func(context.Context) error {
			if b, e = h.Faults(check); b < begun || e < ended {
				return fmt.Errorf("there are %d and %d", b, e)
			}
			return nil
		})
	if err == nil && (b > begun || e > ended) {
		err = fmt.Errorf("%d lines of the beginning of %s and %d of the end, want %d and %d", b, check, e, begun, ended)
	}
	return err
}
