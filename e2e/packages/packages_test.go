// Package packages holds the tests of what `make release` makes: that it can be made
// again, and how the packages install, upgrade and go. They are installed on a fresh
// Debian in a directory; systemd does not run there, and a program in its place writes
// down what it is asked to do.
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
)

const source = "../../" // the top of the source, from this folder

// made is where tools/release-test has put its releases.
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

// file is the one whose name matches below what was made.
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

// output is what a program prints, which must succeed.
func output(t *testing.T, command ...string) string {
	t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	return string(out)
}

// machine is a fresh Debian in a directory.
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

// inside makes a command that runs in the directory, with what a program expects
// there. The mounts are gone with it.
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

// run runs a command there and returns what it prints, and why it failed.
func (m *machine) run(command ...string) (string, error) {
	// Processes of its own, all of which end with it.
	line := append([]string{"--mount", "--net", "--pid", "--fork", "--kill-child"}, m.inside(command...)...)
	c := exec.CommandContext(m.ctx, "unshare", line...)
	c.Env = append(os.Environ(), "TMPDIR=/tmp") // the tests' own is not in the machine
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, out)
	}
	return string(out), err
}

// must is run that has to succeed.
func (m *machine) must(command ...string) string {
	m.t.Helper()
	out, err := m.run(command...)
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

// put brings a file to the machine, by its name, into /tmp.
func (m *machine) put(file string) string {
	m.t.Helper()
	name := filepath.Join("/tmp", filepath.Base(file))
	output(m.t, "cp", file, m.path(name))
	return name
}

// exists says whether there is a file, or a link to nowhere.
func (m *machine) exists(name string) bool {
	_, err := os.Lstat(m.path(name))
	return err == nil
}

// files are all, but for those in which the machine keeps its own accounts.
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

// calls is where the program in the place of systemctl writes.
const calls = "/run/systemctl-calls"

// systemd has the machine look as if systemd ran on it.
func (m *machine) systemd() {
	m.t.Helper()
	m.write("/usr/bin/systemctl", "#!/bin/sh\necho \"$*\" >>"+calls+"\n", 0o755)
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

func (m *machine) read(name string) string {
	m.t.Helper()
	text, err := os.ReadFile(m.path(name))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

// called is what systemctl was asked since the last time.
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

// stat is mode, owner and group of files, one a line.
func (m *machine) stat(names ...string) string {
	m.t.Helper()
	return strings.TrimSpace(m.must(append([]string{"stat", "-c", "%n %a %U:%G"}, names...)...))
}
