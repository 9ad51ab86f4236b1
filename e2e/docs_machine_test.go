package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/lenonet/leno/e2e/lab"
)

// machine is a host of a lab on which commands can be run as they are written
// for a machine of one's own: /etc, /run, /var/lib and /usr/local/bin are its
// own, by a mount namespace, and what they do there stays in the lab.
type machine struct {
	*lab.Host
	w     *world
	dir   string // what is mounted, and "source", where commands begin
	mount *lab.Process
	agent *lab.Process
}

func newMachine(w *world, h *lab.Host) *machine {
	w.t.Helper()
	m := &machine{Host: h, w: w, dir: filepath.Join(h.Dir, "machine")}
	for _, dir := range []string{"etc", "etc-real", "run", "var-lib", "usr-local-bin", "bin", "source/bin"} {
		w.must(os.MkdirAll(filepath.Join(m.dir, dir), 0o755))
	}
	// The real /etc is there too, to be read.
	entries, err := os.ReadDir("/etc")
	w.must(err)
	for _, e := range entries {
		w.must(os.Symlink(filepath.Join(m.dir, "etc-real", e.Name()), filepath.Join(m.dir, "etc", e.Name())))
	}
	// A machine of the tests is used as root, without sudo.
	m.write("bin/sudo", "#!/bin/sh\nexec \"$@\"\n", 0o755)
	m.write("bin/consul", "", 0o755)
	m.write("source/config.hcl.example", source(w.t, "config.hcl.example"), 0o644)
	for _, file := range []string{"consul/policy.hcl", "container/container.sh", "docker/leno.conf", "systemd/leno.service", "systemd/leno.sysusers",
		"consul-template/leno.hcl", "consul-template/hosts.json.ctmpl"} {
		m.write("source/examples/"+file, source(w.t, "examples/"+file), 0o644)
	}
	w.must(os.Symlink(binary, filepath.Join(m.dir, "source/bin/leno")))

	consul, err := lab.FindConsul()
	w.must(err)
	m.mount, err = h.Start("unshare", "--mount", "sh", "-euc", `
		mount --bind /etc "$1/etc-real"
		mount --bind "$2" "$1/bin/consul"
		mount --bind "$1/etc" /etc
		mount --bind "$1/run" /run
		mount --bind "$1/var-lib" /var/lib
		mount --bind "$1/usr-local-bin" /usr/local/bin
		echo mounted
		exec sleep infinity`, "sh", m.dir, consul)
	w.must(err)
	w.must(m.mount.WaitFor(w.ctx, "the mounts of "+h.Name, func(context.Context) error {
		if !strings.Contains(m.mount.Output(), "mounted") {
			return fmt.Errorf("not yet")
		}
		return nil
	}))
	return m
}

// write puts a file below the machine's directory.
func (m *machine) write(path, text string, mode os.FileMode) {
	m.w.t.Helper()
	path = filepath.Join(m.dir, path)
	m.w.must(os.MkdirAll(filepath.Dir(path), 0o755))
	m.w.must(os.WriteFile(path, []byte(text), mode))
}

// shell is the program and arguments that run a line on the machine.
func (m *machine) shell(line string) []string {
	// The race detector would have every command take a second to end.
	const setup = `cd "$1/source"; export GORACE=atexit_sleep_ms=0 PATH="$1/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"; `
	return []string{"nsenter", fmt.Sprintf("--target=%d", m.mount.Pid()), "--mount", "sh", "-euc", setup + line, "sh", m.dir}
}

// run runs a line to its end and returns what it printed.
func (m *machine) run(line string) (string, error) { return m.Exec(m.w.ctx, m.shell(line)...) }

// startAgent runs a line that runs the agent, and waits until it is ready.
func (m *machine) startAgent(line string) {
	m.w.t.Helper()
	var err error
	m.agent, err = m.Start(m.shell("exec " + strings.TrimPrefix(line, "sudo "))...)
	m.w.must(err)
	m.w.must(m.agent.WaitFor(m.w.ctx, m.Name+" to be ready", m.ready))
}

func (m *machine) ready(ctx context.Context) error {
	status, body, err := m.Get(ctx, "/readyz")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("/readyz answers %d: %s", status, body)
	}
	return err
}
