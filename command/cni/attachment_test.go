package cni

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/internal/testkit/programs"
)

// container is a namespace, and a plugin that notes its calls instead of making interfaces.
type container struct {
	t       *testing.T
	ns      *nstest.NS
	dataDir string
	plugins string // directory of the plugin "fake"
	netns   string
}

func newContainer(t *testing.T) container {
	t.Helper()
	ns := nstest.New(t)
	c := container{t: t, ns: ns, dataDir: ownDir(t), plugins: t.TempDir(), netns: pathOf(ns)}
	const script = `#!/bin/sh
echo $CNI_COMMAND >> %[1]s/calls
echo $CNI_NETNS > %[1]s/netns
[ -e %[1]s/refusing ] && { echo '{"code": 7, "msg": "refused"}'; exit 1; }
[ $CNI_COMMAND = ADD ] || { [ -z "$CNI_ARGS" ]; exit; }
[ -e %[1]s/broken ] && { echo '{"code": 7, "msg": "broken"}'; exit 1; }
echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "veth1", "mac": "0a:58:00:00:00:01"}]}'
`
	if err := programs.Write(filepath.Join(c.plugins, "fake"), fmt.Appendf(nil, script, c.plugins)); err != nil {
		t.Fatal(err)
	}
	return c
}

// pathOf returns the path of a namespace, also for the plugins that this process runs.
func pathOf(ns *nstest.NS) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd()) }

// attachment returns the container's attachment in a configuration of that name.
func (c container) attachment(name string) (attachment, networkConf) {
	c.t.Helper()
	text := fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"type":"leno-cni","dataDir":%q,"delegate":{"type":"fake"}}`, name, c.dataDir)
	conf, err := parseConf([]byte(text))
	if err != nil {
		c.t.Fatal(err)
	}
	return newAttachment(&skel.CmdArgs{ContainerID: "c1", IfName: "eth0", Netns: c.netns, Path: c.plugins, Args: "K=V", StdinData: []byte(text)}, conf), conf
}

func (c container) add(name string) error {
	c.t.Helper()
	c.t.Setenv("CNI_COMMAND", "ADD") // the specification's library passes the environment on
	c.t.Setenv("CNI_PATH", c.plugins)
	a, conf := c.attachment(name)
	if err := a.prepare(c.t.Context()); err != nil {
		return err
	}
	_, err := a.attach(c.t.Context(), conf, dual)
	return err
}

func (c container) del(name string, inNamespace bool) error {
	c.t.Helper()
	a, _ := c.attachment(name)
	if !inNamespace {
		a.args.Netns = ""
	}
	return a.release(c.t.Context())
}

// refuse makes the plugin refuse every command, as one that does not accept its configuration.
func (c container) refuse() error {
	return os.WriteFile(filepath.Join(c.plugins, "refusing"), nil, 0o644)
}

// given returns what the container has: the interface, and its address in host-local's store.
func (c container) given() (out []string) {
	c.t.Helper()
	if _, err := c.ns.Try("ip link show eth0"); err == nil {
		out = append(out, "interface")
	}
	if _, err := os.Stat(c.address()); err == nil {
		out = append(out, "address")
	}
	return out
}

func (c container) address() string {
	return filepath.Join(addressDir(c.dataDir), "default", "10.5.34.2")
}

// write writes a record's file as a crash leaves it.
func (c container) write(name string, change func(*record)) {
	c.t.Helper()
	a, conf := c.attachment(name)
	d, err := newDelegation(conf, dual)
	if err != nil {
		c.t.Fatal(err)
	}
	r := newRecord(name, a.key(), c.netns, d)
	change(&r)
	if err := a.records.write(r); err != nil {
		c.t.Fatal(err)
	}
}

// state returns the calls of the plugin and the phase of each record: "ADD DEL a:attached".
func (c container) state() string {
	c.t.Helper()
	calls, err := os.ReadFile(filepath.Join(c.plugins, "calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		c.t.Fatal(err)
	}
	out := strings.Fields(string(calls))
	a, _ := c.attachment("a")
	all, err := a.records.all()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, file := range all {
		name := map[phase]string{phaseUnreadable: "unreadable", phaseBegun: "begun", phaseAttached: "attached", phaseRefused: "refused"}[file.phase]
		out = append(out, file.Name+":"+name)
	}
	return strings.Join(out, " ")
}

// TestAttachment takes an attachment from each phase to the next.
func TestAttachment(t *testing.T) {
	begun := func(c container) { c.write("a", func(*record) {}) }
	detached := func(c container) { c.write("a", func(r *record) { r.Done = true }) }
	attached := func(c container) {
		detached(c)
		c.ns.Sh("ip link add eth0 type bridge")
	}
	// The path of the former namespace leads to another one.
	moved := func(c container) {
		c.write("a", func(r *record) { r.Done, r.Netns, r.NetnsID = true, pathOf(nstest.New(c.t)), "0:0" })
	}
	temporary := func(c container) {
		begun(c)
		a, _ := c.attachment("a")
		for _, file := range []string{".c1:eth0.123", ".c2:eth0.123"} {
			if err := os.WriteFile(a.records.path("a", file), nil, 0o600); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	// refused makes the ADD of b fail.
	refused := func(c container) error {
		var e *types.Error
		if err := c.add("b"); !errors.As(err, &e) || e.Code != codeAttached {
			return fmt.Errorf("ADD by b: %w", err)
		}
		return nil
	}
	// halfGiven is what a plugin that ended in its middle leaves.
	halfGiven := func(c container) {
		begun(c)
		c.ns.Sh("ip link add eth0 type bridge")
		err := errors.Join(c.refuse(), os.MkdirAll(filepath.Dir(c.address()), 0o700),
			os.WriteFile(c.address(), []byte("c1\r\neth0"), 0o600))
		if err != nil {
			c.t.Fatal(err)
		}
	}
	// withNothing calls do, after which the container must have nothing.
	withNothing := func(do func(container) error) func(container) error {
		return func(c container) error {
			err := do(c)
			if given := c.given(); len(given) > 0 {
				c.t.Errorf("the container still has %q", given)
			}
			return err
		}
	}
	unreadable := func(c container) { c.write("a", func(r *record) { r.Version++ }) }
	for _, tt := range []struct {
		name   string
		before func(container)
		do     func(container) error
		code   uint // of the error, 0 for none
		want   string
	}{
		{name: "ADD", do: func(c container) error { return c.add("a") }, want: "ADD a:attached"},
		{name: "ADD fails", do: func(c container) error {
			return errors.Join(os.WriteFile(filepath.Join(c.plugins, "broken"), nil, 0o644), c.add("a"))
		}, code: 7, want: "ADD DEL"},
		{name: "ADD fails, and so does its DEL", do: func(c container) error {
			return errors.Join(c.refuse(), c.add("a"))
		}, code: 7, want: "ADD DEL"},
		{name: "ADD by a plugin that does not exist", do: func(c container) error {
			return errors.Join(os.Remove(filepath.Join(c.plugins, "fake")), c.add("a"))
		}, code: codeNoPlugin, want: ""},
		{name: "ADD after one that the plugin refuses to undo", before: halfGiven, do: withNothing(func(c container) error {
			a, _ := c.attachment("a")
			return a.prepare(c.t.Context())
		}), want: "DEL"},
		{name: "DEL that the plugin refuses, after a crash", before: halfGiven, do: withNothing(func(c container) error {
			return c.del("a", true)
		}), want: "DEL"},
		{name: "DEL that the plugin refuses", before: attached, do: func(c container) error {
			return errors.Join(c.refuse(), c.del("a", true))
		}, code: 7, want: "DEL a:attached"},
		{name: "GC that the plugin refuses", before: halfGiven, do: withNothing(func(c container) error {
			a, _ := c.attachment("a")
			return collector{a.records, c.plugins}.collect(t.Context(), found(t, a)[0])
		}), want: "DEL"},
		{name: "ADD after a crash", before: begun, do: func(c container) error { return c.add("a") }, want: "DEL ADD a:attached"},
		{name: "ADD after a crash that left no record", before: unreadable, do: func(c container) error { return c.add("a") }, want: "ADD a:attached"},
		{name: "ADD again", before: attached, do: func(c container) error { return c.add("a") }, code: codeAttached, want: "a:attached"},
		{name: "ADD by another configuration", before: attached, do: func(c container) error { return c.add("b") }, code: codeAttached, want: "a:attached b:refused"},
		{name: "and its DEL", before: attached, do: func(c container) error {
			return errors.Join(refused(c), c.del("b", true), c.del("b", true))
		}, want: "a:attached b:refused"},
		{name: "and its DEL after another ADD", before: attached, do: func(c container) error {
			return errors.Join(refused(c), refused(c), c.del("b", true))
		}, want: "a:attached b:refused"},
		{name: "and both DELs", before: attached, do: func(c container) error {
			return errors.Join(refused(c), c.del("b", true), c.del("a", true), c.del("b", true))
		}, want: "DEL"},
		{name: "and both DELs, in the order of the ADDs", before: attached, do: func(c container) error {
			return errors.Join(refused(c), c.del("a", true), c.del("b", true))
		}, want: "DEL"},
		{name: "ADD by another configuration that is wrong, and its DEL", before: attached, do: func(c container) error {
			a, _ := c.attachment("b")
			a.args.StdinData = []byte(strings.Replace(string(a.args.StdinData), "delegate", "delegat", 1))
			if err := new(plugin).add(c.t.Context(), a.args); err == nil {
				return errors.New("the second ADD succeeded")
			}
			return c.del("b", true)
		}, want: "a:attached b:refused"},
		{name: "ADD when the interface is gone", before: detached, do: func(c container) error { return c.add("a") }, want: "DEL ADD a:attached"},
		{name: "ADD when the namespace is gone", before: moved, do: func(c container) error { return c.add("a") }, want: "DEL ADD a:attached"},
		{name: "DEL of an unfinished record", before: temporary, do: func(c container) error {
			a, _ := c.attachment("a")
			err := c.del("a", true)
			left, globErr := filepath.Glob(a.records.path("a", ".*"))
			if len(left) != 1 || filepath.Base(left[0]) != ".c2:eth0.123" {
				c.t.Errorf("left: %q", left)
			}
			return errors.Join(err, globErr)
		}, want: "DEL"},
		{name: "DEL", before: attached, do: func(c container) error { return c.del("a", true) }, want: "DEL"},
		{name: "DEL without a namespace", before: attached, do: func(c container) error { return c.del("a", false) }, want: "DEL"},
		{name: "DEL by a renamed configuration", before: attached, do: func(c container) error { return c.del("new", true) }, want: "DEL"},
		{name: "DEL after a crash", before: begun, do: func(c container) error { return c.del("a", true) }, want: "DEL"},
		{name: "DEL of an unreadable record", before: unreadable, do: func(c container) error { return c.del("a", true) }, want: ""},
		{name: "DEL of nothing", do: func(c container) error { return c.del("a", true) }, want: ""},
		{name: "GC", before: begun, do: func(c container) error {
			a, _ := c.attachment("a")
			return collector{a.records, c.plugins}.collect(t.Context(), found(t, a)[0])
		}, want: "DEL"},
		{name: "GC of an unreadable record", before: unreadable, do: func(c container) error {
			a, _ := c.attachment("a")
			return collector{a.records, c.plugins}.collect(t.Context(), found(t, a)[0])
		}, want: ""},
		{name: "the container is not gone", before: attached, do: func(c container) error {
			a, _ := c.attachment("a")
			if (collector{a.records, c.plugins}).releaseGone(t.Context(), "default") {
				return errors.New("released it")
			}
			return nil
		}, want: "a:attached"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newContainer(t)
			if tt.before != nil {
				tt.before(c)
			}
			err := tt.do(c)
			var e *types.Error
			if tt.code == 0 && err != nil || tt.code != 0 && (!errors.As(err, &e) || e.Code != tt.code) {
				t.Errorf("%v, want code %d", err, tt.code)
			}
			if got := c.state(); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestLocksOfGoneContainers: with what is left of a container that is gone, its lock file is removed.
func TestLocksOfGoneContainers(t *testing.T) {
	c := newContainer(t)
	c.write("a", func(r *record) { r.Done, r.Netns = true, "/run/netns/gone" })
	c.write("a", func(r *record) { r.Done, r.ContainerID = true, "c2" })
	for _, id := range []string{"c1", "c2"} {
		unlock, err := lockContainer(t.Context(), c.dataDir, id, false)
		if err != nil {
			t.Fatal(err)
		}
		unlock()
	}
	a, _ := c.attachment("a")
	if !(collector{a.records, c.plugins}).releaseGone(t.Context(), "default") {
		t.Error("released nothing")
	}
	locks, err := filepath.Glob(filepath.Join(lockDir(c.dataDir), "*"))
	if err != nil || len(locks) != 1 || filepath.Base(locks[0]) != "c2" {
		t.Errorf("%v: lock files %q", err, locks)
	}
	if got := c.state(); got != "DEL a:attached" {
		t.Error(got)
	}
}

// TestOtherNamespace: DEL and GC remove the interface where it is, whatever namespace DEL names, before its address is
// released.
func TestOtherNamespace(t *testing.T) {
	host, other := nstest.New(t), nstest.New(t)
	for _, tt := range []struct {
		name   string
		named  string // by DEL
		change func(*record)
		netns  bool // the plugin is told the namespace
	}{
		{name: "another namespace", named: pathOf(other), netns: true},
		{name: "no namespace", netns: true},
		{name: "after a crash", named: pathOf(other), change: func(r *record) { r.Done, r.Link, r.MAC = false, "", "" }, netns: true},
		{name: "recorded by an earlier version", named: pathOf(other), change: func(r *record) { r.NetnsID = "" }, netns: true},
		{name: "renamed in the namespace", named: pathOf(other), change: func(r *record) { r.IfName = "eth7" }, netns: true},
		{name: "the namespace has no path any more", named: pathOf(other), change: func(r *record) { r.Netns = "/run/netns/gone" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newContainer(t)
			const mac = "0a:58:00:00:00:01"
			host.Sh(fmt.Sprintf("ip link add leno0 address %s type veth peer name eth0 netns %s", mac, c.netns))
			other.Sh("ip link add eth0 type bridge")
			t.Cleanup(func() {
				_, _ = host.Try("ip link del leno0")
				other.Sh("ip link del eth0")
			})
			script := fmt.Sprintf(`#!/bin/sh
echo "$CNI_NETNS" >%s/netns
[ -z "$CNI_NETNS" ] || nsenter --net="$CNI_NETNS" ip link del eth0 2>/dev/null || true
`, c.plugins)
			if err := programs.Write(filepath.Join(c.plugins, "fake"), []byte(script)); err != nil {
				t.Fatal(err)
			}
			c.write("a", func(r *record) {
				r.Done, r.Link, r.MAC = true, "leno0", mac
				if tt.change != nil {
					tt.change(r)
				}
			})
			a, _ := c.attachment("a")
			all, err := a.records.all()
			if err != nil {
				t.Fatal(err)
			}
			host.Do(func() { err = collector{a.records, c.plugins}.undo(t.Context(), all[0].Record, tt.named) })
			if err != nil {
				t.Fatal(err)
			}
			if out, err := host.Try("ip link show leno0"); err == nil {
				t.Errorf("the interface is there: %s", out)
			}
			other.Sh("ip link show eth0")
			told, err := os.ReadFile(filepath.Join(c.plugins, "netns"))
			if got := strings.TrimSpace(string(told)); err != nil || (got != "") != tt.netns || tt.netns && got != c.netns {
				t.Errorf("%v: the plugin was told %q", err, got)
			}
		})
	}
}

func found(t *testing.T, a attachment) []recordFile {
	t.Helper()
	files, err := a.find()
	if err != nil {
		t.Fatal(err)
	}
	return files
}
