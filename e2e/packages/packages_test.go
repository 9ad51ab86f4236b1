// Package packages tests the results of `make release`: that the build is reproducible, and how the
// packages are installed, upgraded and removed. They are installed on a fresh Debian in a
// directory. systemd does not run there; a program in its place records what it is asked to do.
package packages

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/internal/testkit/programs"
)

const source = "../../" // the top of the source tree, relative to this folder

// made is the directory with the releases of tools/release-test.
var made string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if made = os.Getenv("LENO_TEST_PACKAGES"); made != "" {
			return m.Run()
		}
		dir, err := os.MkdirTemp("", "leno-packages-")
		if err == nil {
			defer os.RemoveAll(dir)
			made = dir
			var out []byte
			if out, err = exec.Command(source+"tools/release-test", dir).CombinedOutput(); err != nil {
				err = fmt.Errorf("tools/release-test: %w: %s", err, out)
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// file returns the only file of the releases whose name matches.
func file(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(made, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	path, err := filepath.Abs(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// output runs a program that must succeed and returns its output.
func output(t *testing.T, command ...string) string {
	t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	return string(out)
}

// A machine is a fresh Debian in a directory.
type machine struct {
	t   *testing.T
	ctx context.Context
	dir string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: chroot")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	t.Cleanup(cancel)
	archive, err := lab.FindDebianRoot()
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, ctx: ctx, dir: t.TempDir()}
	output(t, "tar", "-xpf", archive, "-C", m.dir)
	return m
}

// inside returns a command that runs in the directory with the mounts that programs expect. The
// mounts disappear with the command.
func (m *machine) inside(command ...string) []string {
	const script = `
mount -t proc proc "$1/proc"
mount -t sysfs sys "$1/sys"
mount -t tmpfs -o mode=755 dev "$1/dev"
for node in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "$1/dev/${node%:*}" c 1 "${node#*:}"; done
dir=$1
shift
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
exec chroot "$dir" "$@"
`
	return append([]string{"sh", "-euc", script, "sh", m.dir}, command...)
}

// run runs a command in the machine and returns its output, and an error if it failed.
func (m *machine) run(command ...string) (string, error) {
	// A PID namespace of its own: all its processes end with it.
	line := append([]string{"--mount", "--net", "--pid", "--fork", "--kill-child"}, m.inside(command...)...)
	c := exec.CommandContext(m.ctx, "unshare", line...)
	c.Env = append(os.Environ(), "TMPDIR=/tmp") // the tests' own TMPDIR is not in the machine
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, out)
	}
	return string(out), err
}

// must is like run but fails the test on an error.
func (m *machine) must(command ...string) string {
	m.t.Helper()
	out, err := m.run(command...)
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

// put copies a file to the machine's /tmp, under its own name.
func (m *machine) put(file string) string {
	m.t.Helper()
	name := filepath.Join("/tmp", filepath.Base(file))
	output(m.t, "cp", file, m.path(name))
	return name
}

// exists reports whether there is a file, or a dangling link.
func (m *machine) exists(name string) bool {
	_, err := os.Lstat(m.path(name))
	return err == nil
}

// files returns all files except those that the machine changes by itself.
func (m *machine) files() []string {
	m.t.Helper()
	out := output(m.t, "find", m.dir, "-mindepth", "1", "-printf", "%P %M %u %l\n")
	lines := slices.DeleteFunc(strings.Split(out, "\n"), func(line string) bool {
		for _, of := range []string{"var/lib/dpkg/", "var/log/", "tmp/", "etc/passwd", "etc/group", "etc/shadow", "etc/gshadow", "etc/subuid", "etc/subgid", "etc/.pwd.lock", "run/adduser"} {
			if strings.HasPrefix(line, of) {
				return true
			}
		}
		return false
	})
	slices.Sort(lines)
	return lines
}

// managersReload is what an installation or an upgrade asks of programs that manage networks.
const managersReload = "--no-block reload systemd-networkd.service NetworkManager.service"

// calls is the file to which the fake systemctl writes.
const calls = "/run/systemctl-calls"

// systemd makes the machine look as if systemd ran on it.
func (m *machine) systemd() {
	m.t.Helper()
	m.program("/usr/bin/systemctl", "echo \"$*\" >>"+calls)
	if err := os.MkdirAll(m.path("/run/systemd/system"), 0o755); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) write(name, text string, mode os.FileMode) {
	m.t.Helper()
	if err := os.WriteFile(m.path(name), []byte(text), mode); err != nil {
		m.t.Fatal(err)
	}
}

// program writes a program whose text is for the shell.
func (m *machine) program(name, text string) {
	m.t.Helper()
	if err := programs.Write(m.path(name), []byte("#!/bin/sh\n"+text+"\n")); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) read(name string) string {
	m.t.Helper()
	text, err := os.ReadFile(m.path(name))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

// called checks what systemctl was asked to do since the last call.
func (m *machine) called(what string, want ...string) {
	m.t.Helper()
	var got []string
	if m.exists(calls) {
		got = strings.Split(strings.TrimSpace(m.read(calls)), "\n")
		if err := os.Remove(m.path(calls)); err != nil {
			m.t.Fatal(err)
		}
	}
	if !slices.Equal(got, want) {
		m.t.Errorf("%s: systemctl was asked %q, want %q", what, got, want)
	}
}

// stat returns mode, owner and group of files, one per line.
func (m *machine) stat(names ...string) string {
	m.t.Helper()
	return strings.TrimSpace(m.must(append([]string{"stat", "-c", "%n %a %U:%G"}, names...)...))
}
