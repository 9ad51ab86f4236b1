package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry/memory"
)

const (
	ownFile     = "LENO_NETWORK=10.5.0.0/22\nLENO_SUBNET=10.5.1.1/24\nLENO_MTU=1450\n"
	foreignFile = "SECRET=1\n"
)

// fileCase is a host in network n with its subnet file.
type fileCase struct {
	*host
	file *subnetFile
}

func newFileCase(t *testing.T) *fileCase {
	t.Helper()
	h := newHost(t, memory.New(), "a")
	return &fileCase{h, h.runner().file}
}

func (c *fileCase) write(path, text string) {
	c.t.Helper()
	must(c.t, os.WriteFile(path, []byte(text), 0o600))
}

// content returns what a file contains, "" if there is none.
func (c *fileCase) content(path string) string {
	c.t.Helper()
	text, err := os.ReadFile(path)
	if !errors.Is(err, os.ErrNotExist) {
		must(c.t, err)
	}
	return string(text)
}

// beside returns a path in the directory of the subnet file.
func (c *fileCase) beside(name string) string { return filepath.Join(filepath.Dir(c.file.path), name) }

// TestSubnetFileStands checks which changes of the file by other programs are noticed, and that each of them is repaired.
func TestSubnetFileStands(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(path string) error
		stands bool
	}{
		{"nothing", func(string) error { return nil }, true},
		{"read by others", func(path string) error { return os.Chmod(path, 0o600) }, true},
		{"removed", os.Remove, false},
		{"other content", func(path string) error { return os.WriteFile(path, []byte(foreignFile), 0o600) }, false},
		{"replaced by a file with its content", func(path string) error {
			return errors.Join(os.WriteFile(path+".new", []byte(ownFile), 0o600), os.Rename(path+".new", path))
		}, false},
		{"replaced by a link", func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.Symlink(path+".old", path))
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newFileCase(t)
			if !c.file.stands() || c.file.isWritten() {
				t.Error("it is missed before it is wanted")
			}
			must(t, c.file.write([]byte(ownFile), netip.MustParsePrefix("10.5.1.0/24"), 1450))
			must(t, tt.change(c.file.path))
			if got := c.file.stands(); got != tt.stands || !c.file.isWritten() {
				t.Errorf("stands %t, written %t", got, c.file.isWritten())
			}
			c.file.repair()
			if got := c.content(c.file.path); got != ownFile || !c.file.stands() {
				t.Errorf("after a repair: %q, stands %t", got, c.file.stands())
			}
			must(t, c.file.remove(""))
			c.file.repair() // which had begun to wait before
			if exists(c.file.path) {
				t.Error("it is there again when it is not wanted any more")
			}
		})
	}
}

// TestSubnetFileLinked checks that a link to a file with the right content stays until its target is removed or changed.
func TestSubnetFileLinked(t *testing.T) {
	for name, change := range map[string]func(target string) error{
		"removed": os.Remove,
		"changed": func(target string) error { return os.WriteFile(target, []byte(foreignFile), 0o600) },
	} {
		c := newFileCase(t)
		target := c.beside("target.env")
		c.write(target, ownFile)
		must(t, os.Symlink(target, c.file.path))
		must(t, c.file.write([]byte(ownFile), netip.MustParsePrefix("10.5.1.0/24"), 1450))
		if got, err := os.Readlink(c.file.path); got != target || !c.file.stands() {
			t.Errorf("%s: the link is %q, %v, stands %t", name, got, err, c.file.stands())
		}
		must(t, change(target))
		if c.file.stands() {
			t.Errorf("%s: it is not missed", name)
		}
		c.file.repair()
		if got := c.content(c.file.path); got != ownFile || !c.file.stands() {
			t.Errorf("%s: after a repair: %q, stands %t", name, got, c.file.stands())
		}
	}
}

// TestSubnetFileReady checks that the network is not ready without the file, that it is ready again with it, and that a
// network that was not ready for another reason stays so.
func TestSubnetFileReady(t *testing.T) {
	for _, tt := range []struct {
		name    string
		ready   bool                    // before
		file    func(path string) error // what is there when the file cannot be written
		without bool                    // ready while it cannot be written
	}{
		{"no file", true, func(string) error { return nil }, false},
		{"a directory", true, func(path string) error { return os.Mkdir(path, 0o700) }, false},
		{"an old file", true, func(path string) error { return os.WriteFile(path, []byte(ownFile), 0o600) }, true},
		{"not ready before", false, func(string) error { return nil }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newFileCase(t)
			ready := func() bool {
				report, _ := c.deps.Reports.Health.Report()
				return report.Networks[0].Ready
			}
			c.file.report.SetReady(tt.ready)
			must(t, tt.file(c.file.path))
			c.file.reportResult(errors.New("no space left"))
			if got := c.reason(health.SubnetFile); ready() != tt.without || !strings.Contains(got, "no space left") {
				t.Errorf("ready %t, the check says %q", ready(), got)
			}
			c.file.reportResult(nil)
			if got := c.reason(health.SubnetFile); ready() != tt.ready || got != c.file.path+" is written" {
				t.Errorf("once it can be written, ready %t, the check says %q", ready(), got)
			}
		})
	}
}

// TestSubnetFileOfAnother checks that a network without a block leaves the path to the network that is configured with it,
// and that a file that is not a regular one is left alone and does not block the host.
func TestSubnetFileOfAnother(t *testing.T) {
	c := newFileCase(t)
	c.file.subnetFileOf = func(path, except string) string {
		if path == c.file.path && except != "m" {
			return "m"
		}
		return ""
	}
	must(t, c.file.write([]byte(ownFile), netip.MustParsePrefix("10.5.1.0/24"), 1450)) // its block names the path
	must(t, os.Remove(c.file.path))
	c.file.isConfigured = false
	if err := c.file.write([]byte(ownFile), netip.MustParsePrefix("10.5.1.0/24"), 1450); err == nil || !strings.Contains(err.Error(), "is the subnet file of network m") || exists(c.file.path) {
		t.Errorf("the path of another network: %v", err)
	}
	c.file.repair()
	if got := c.reason(health.SubnetFile); exists(c.file.path) || !strings.Contains(got, "is the subnet file of network m") {
		t.Errorf("after a repair, the file is there: %t, the check says %q", exists(c.file.path), got)
	}

	c = newFileCase(t)
	must(t, os.Symlink(os.DevNull, c.file.path))
	if err := c.file.write([]byte(ownFile), netip.MustParsePrefix("10.5.1.0/24"), 1450); err == nil {
		t.Error("a device was written over")
	}
	if target, err := os.Readlink(c.file.path); err != nil || target != os.DevNull {
		t.Errorf("%q, %v", target, err)
	}

	// A named pipe would block its readers.
	c = newFileCase(t)
	must(t, unix.Mkfifo(c.file.path, 0o600))
	err := c.file.write([]byte(ownFile), netip.MustParsePrefix("10.5.1.0/24"), 1450)
	if err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("a named pipe: %v", err)
	}
	c.file.repair()
	_ = c.file.copyTo(c.beside("next.env")) // it may fail, and does not block
	must(t, c.file.remove(""))
	if info, err := os.Lstat(c.file.path); err != nil || info.Mode().IsRegular() {
		t.Errorf("%v, %v", info, err)
	}
}

// TestSubnetFileCopied checks from where a file is copied to the path of the next configuration: what this process has
// written, or what an earlier one has, if it is of the subnet that this host remembers.
func TestSubnetFileCopied(t *testing.T) {
	for _, tt := range []struct {
		name       string
		written    string // by this process, "" for nothing
		there      string // by an earlier one, "" for nothing
		remembered string // subnet, "" for none
		want       string
	}{
		{"nothing", "", "", "", ""},
		{"written", ownFile, "", "", ownFile},
		{"an earlier process's", "", ownFile, "10.5.1.0/24", ownFile},
		{"of another subnet", "", ownFile, "10.5.2.0/24", ""},
		{"no subnet is remembered", "", ownFile, "", ""},
		{"another program's", "", foreignFile + ownFile, "10.5.1.0/24", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newFileCase(t)
			if tt.remembered != "" {
				must(t, c.file.state.Update(func(before state.Network, _ error) state.Network {
					before.Subnets = []netip.Prefix{netip.MustParsePrefix(tt.remembered)}
					return before
				}))
			}
			if tt.there != "" {
				c.write(c.file.path, tt.there)
			}
			if tt.written != "" {
				must(t, c.file.write([]byte(tt.written), netip.MustParsePrefix("10.5.1.0/24"), 1450))
			}
			to := c.beside("next.env")
			must(t, c.file.copyTo(to))
			if got := c.content(to); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
			must(t, c.file.copyTo(c.file.path)) // the same path: nothing to do
		})
	}
}

// TestOldSubnetFileRemoved checks which file at a path of an earlier configuration is removed.
func TestOldSubnetFileRemoved(t *testing.T) {
	for _, tt := range []struct {
		name, content string
		of            string // the network whose file it is now
		stays         bool
	}{
		{"leno's", ownFile, "", false},
		{"another program's", foreignFile, "", true},
		{"of another network", ownFile, "m", true},
	} {
		c := newFileCase(t)
		c.file.subnetFileOf = func(string, string) string { return tt.of }
		old := c.beside("old.env")
		c.write(old, tt.content)
		c.file.removeAt(old)
		if exists(old) != tt.stays {
			t.Errorf("%s: there %t", tt.name, exists(old))
		}
	}
	c := newFileCase(t)
	c.write(c.file.path, ownFile)
	for _, path := range []string{"", c.file.path, filepath.Dir(c.file.path) + "/./n.env", c.beside("none.env")} {
		c.file.removeAt(path)
		if !exists(c.file.path) {
			t.Fatalf("%q removed the file in use", path)
		}
	}
}

// has waits until the file at path names the subnet of the host.
func (m *member) has(path string) {
	m.t.Helper()
	agenttest.Eventually(m.t, func() error {
		if got := state.SubnetInFile(path); got != m.subnet() {
			return fmt.Errorf("%s has %s, the host has %s", path, got, m.subnet())
		}
		return nil
	})
}

// TestSubnetFileIsKept: a subnet file that another program removes or changes is put back. A host on which that fails
// is not ready.
func TestSubnetFileIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a")
		path := filepath.Join(t.TempDir(), "run", "n.env")
		a.config.Networks[0].SubnetFile = path
		must(t, os.MkdirAll(filepath.Join(path, "x"), 0o755))
		a.start()
		isReady := func() bool {
			report, _ := a.deps.Reports.Health.Report()
			return report.Ready
		}
		a.check(health.SubnetFile, api.Critical)
		a.more("writes of the firewall", 0, func() int { return len(a.wall.asked()) }) // it does not wait for the file
		if isReady() {
			t.Error("ready without a subnet file")
		}
		must(t, os.RemoveAll(path))
		a.ready()
		a.check(health.SubnetFile, api.Passing, path)
		for name, damage := range map[string]func() error{
			"removed":        func() error { return os.Remove(path) },
			"folder removed": func() error { return os.RemoveAll(filepath.Dir(path)) },
			"changed":        func() error { return os.WriteFile(path, []byte("LENO_SUBNET=10.5.9.1/24\n"), 0o600) },
			"replaced":       func() error { return state.WriteFile(path, []byte("nothing"), 0o600) },
		} {
			must(t, damage())
			a.has(path)
			if t.Failed() {
				t.Fatal(name)
			}
		}
		must(t, os.Remove(path))
		must(t, os.MkdirAll(filepath.Join(path, "x"), 0o755))
		a.check(health.SubnetFile, api.Critical)
		agenttest.Eventually(t, func() error {
			if isReady() {
				return errors.New("it is ready")
			}
			return nil
		})
		must(t, os.RemoveAll(path))
		a.has(path)
		a.check(health.SubnetFile, api.Passing)
		a.ready()
	})
}
