package docs

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lenonet/leno/e2e/docpages"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
	"github.com/lenonet/leno/internal/testkit/programs"
)

// written are the directories of /etc to which the commands of the documentation write. Each machine has its own, even
// if this one has such a directory, too.
var written = []string{"cni", "consul-template", "docker", "leno.d", "systemd", "tmpfiles.d"}

// A machine is a host of a lab on which commands can be run as they are written for a user's
// machine. A mount namespace gives it its own /etc, /run, /var/lib and /usr/local/bin, so that
// everything the commands write stays in the lab.
type machine struct {
	*lab.Host
	w     *world.World
	dir   string // the mounted directories, and "source", where commands start
	mount *lab.Process
	agent *lab.Process
}

func newMachine(w *world.World, h *lab.Host) *machine {
	w.T.Helper()
	m := &machine{Host: h, w: w, dir: filepath.Join(h.Dir, "machine")}
	for _, dir := range []string{"etc/systemd/system", "etc-real", "run", "var-lib", "usr-local-bin", "bin", "source/bin"} {
		w.Must(os.MkdirAll(filepath.Join(m.dir, dir), 0o755))
	}
	// The files of the real /etc are there too, to be read.
	entries, err := os.ReadDir("/etc")
	w.Must(err)
	for _, e := range entries {
		if slices.Contains(written, e.Name()) {
			continue
		}
		w.Must(os.Symlink(filepath.Join(m.dir, "etc-real", e.Name()), filepath.Join(m.dir, "etc", e.Name())))
	}
	// The tests use the machine as root, without sudo.
	w.Must(programs.Write(filepath.Join(m.dir, "bin/sudo"), []byte("#!/bin/sh\nexec \"$@\"\n")))
	m.write("bin/consul", "", 0o755)
	m.write("source/config.hcl.example", docpages.Source(w.T, "config.hcl.example"), 0o644)
	for _, file := range []string{"consul/policy.hcl", "container/container.sh", "docker/leno.conf", "systemd/leno.service", "systemd/leno.sysusers",
		"consul-template/leno.hcl", "consul-template/hosts.json.ctmpl"} {
		m.write("source/examples/"+file, docpages.Source(w.T, "examples/"+file), 0o644)
	}
	w.Must(os.Symlink(world.Leno(), filepath.Join(m.dir, "source/bin/leno")))

	consul, err := lab.FindConsul()
	w.Must(err)
	m.mount, err = h.Start("unshare", "--mount", "sh", "-euc", `
		mount --bind /etc "$1/etc-real"
		mount -o remount,bind,ro "$1/etc-real"
		mount --bind "$2" "$1/bin/consul"
		mount --bind "$1/etc" /etc
		mount --bind "$1/run" /run
		mount --bind "$1/var-lib" /var/lib
		mount --bind "$1/usr-local-bin" /usr/local/bin
		echo mounted
		exec sleep infinity`, "sh", m.dir, consul)
	w.Must(err)
	w.Must(m.mount.WaitFor(w.Ctx, "the mounts of "+h.Name, func(context.Context) error {
		if !strings.Contains(m.mount.Output(), "mounted") {
			return fmt.Errorf("not yet")
		}
		return nil
	}))
	return m
}

// write creates a file below the machine's directory.
func (m *machine) write(path, text string, mode os.FileMode) {
	m.w.T.Helper()
	path = filepath.Join(m.dir, path)
	m.w.Must(os.MkdirAll(filepath.Dir(path), 0o755))
	m.w.Must(os.WriteFile(path, []byte(text), mode))
}

// shell returns the program and arguments that run a line on the machine.
func (m *machine) shell(line string) []string {
	const setup = `cd "$1/source"; export PATH="$1/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"; `
	return []string{"nsenter", fmt.Sprintf("--target=%d", m.mount.Pid()), "--mount", "sh", "-euc", setup + line, "sh", m.dir}
}

// run runs a line to its end and returns its output.
func (m *machine) run(line string) (string, error) { return m.Exec(m.w.Ctx, m.shell(line)...) }

// startAgent runs a line that starts the agent, and waits until it is ready.
func (m *machine) startAgent(line string) {
	m.w.T.Helper()
	var err error
	m.agent, err = m.Start(m.shell("exec " + strings.TrimPrefix(line, "sudo "))...)
	m.w.Must(err)
	m.w.Must(m.agent.WaitFor(m.w.Ctx, m.Name+" to be ready", m.ready))
}

func (m *machine) ready(ctx context.Context) error {
	status, body, err := m.Get(ctx, "/readyz")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("/readyz answers %d: %s", status, body)
	}
	return err
}
