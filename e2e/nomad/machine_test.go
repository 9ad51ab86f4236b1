package nomad

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/internal/testkit/programs"
)

// A machine is a host of the lab with its own file system, processes and host name, so that Nomad
// finds its files in their usual places and everything it starts ends with the machine.
type machine struct {
	*lab.Host
	dir    string // the directory of everything that is mounted
	script string // the shell script that mounts it
	init   *lab.Process
	nomad  *lab.Process
}

// own are the directories that the machine does not share.
var own = []string{"/opt", "/run", "/var/lib", "/usr/local/bin"}

// configuration is the directory of Nomad's configuration. It is only read, so it is not mounted.
const configuration = "/etc/nomad.d"

func newMachine(ctx context.Context, h *lab.Host, c *programPaths) (*machine, error) {
	m := &machine{Host: h, dir: filepath.Join(h.Dir, "machine")}
	m.script = "hostname " + h.Name + "\n"
	for _, dir := range own {
		if err := os.MkdirAll(m.path(dir), 0o755); err != nil {
			return nil, err
		}
		m.script += fmt.Sprintf("mount --bind %s %s\n", m.path(dir), dir)
	}
	accounts, err := m.accounts()
	if err != nil {
		return nil, err
	}
	m.script += accounts
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(m.path("source/bin"), 0o755); err != nil {
		return nil, err
	}
	for link, target := range map[string]string{"/usr/local/bin/nomad": c.nomad, "source/bin/leno": c.leno, "source/examples": examples} {
		if err := os.Symlink(target, m.path(link)); err != nil {
			return nil, err
		}
	}
	return m, m.start(ctx)
}

// start boots the machine with nothing running.
func (m *machine) start(ctx context.Context) (err error) {
	m.init, err = m.Start("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", "-euc", m.script+"echo mounted\nsleep infinity & wait") // the shell is init and must reap children
	if err != nil {
		return err
	}
	return m.init.WaitFor(ctx, "the mounts of "+m.Name, func(context.Context) error {
		if !strings.Contains(m.init.Output(), "mounted") {
			return errors.New("not yet")
		}
		return nil
	})
}

// installPlugins puts CNI's reference plugins where Nomad looks for them.
func (m *machine) installPlugins(from string) error {
	dir := m.path("/opt/cni/bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"host-local", "loopback", "portmap"} {
		if err := os.Symlink(filepath.Join(from, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	// Like the released plugin, bridge prints its version: since 1.3.0 Nomad has networks checked
	// when it restarts.
	bridge := fmt.Sprintf("#!/bin/sh\n[ -n \"$CNI_COMMAND\" ] || { echo CNI bridge plugin v1.9.0; exit; }\nexec %s/bridge\n", from)
	return programs.Write(filepath.Join(dir, "bridge"), []byte(bridge))
}

// path returns the path of a machine's file as seen from outside.
func (m *machine) path(inside string) string { return filepath.Join(m.dir, inside) }

// write creates a file on the machine.
func (m *machine) write(path, text string) error {
	path = m.path(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// inside returns the command line that runs a command on the machine.
func (m *machine) inside(command ...string) []string {
	// With --kill-child, unshare makes its child the first process of the machine.
	first, err := child(m.init.Pid())
	if err != nil {
		return []string{"sh", "-c", "echo >&2 " + err.Error() + "; exit 1"}
	}
	return append([]string{"nsenter", fmt.Sprintf("--target=%d", first), "--mount", "--uts", "--pid",
		"env", "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"}, command...)
}

// run runs a command on the machine to its end and returns its output.
func (m *machine) run(ctx context.Context, command ...string) (string, error) {
	return m.Exec(ctx, m.inside(command...)...)
}

// startNomad starts the Nomad client.
func (m *machine) startNomad() (err error) {
	m.nomad, err = m.Start(m.inside("nomad", "agent", "-config="+m.path(configuration))...)
	return err
}

// signalNomad signals the client only: its tasks are in process groups of their own, and nsenter,
// which waits for the client, does not forward signals.
func (m *machine) signalNomad(s syscall.Signal) error {
	pid, err := child(m.nomad.Pid())
	if err != nil {
		return err
	}
	return syscall.Kill(pid, s)
}

// stopNomad ends the client; its tasks keep running.
func (m *machine) stopNomad(ctx context.Context, s syscall.Signal) error {
	if err := m.signalNomad(s); err != nil {
		return err
	}
	err := m.nomad.Wait(ctx)
	if m.nomad.IsRunning() {
		return err
	}
	return nil // the exit code does not matter
}

// child returns the only child of a process.
func child(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// subnet returns the subnet in the machine's subnet file.
func (m *machine) subnet() (netip.Prefix, error) {
	f, err := lab.ReadSubnetFile(m.path("/run/leno/default.env"))
	if err != nil {
		return netip.Prefix{}, err
	}
	return f.Subnet.Masked(), nil
}
