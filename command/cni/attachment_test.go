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
)

// container is a namespace, and a plugin that notes its calls instead of making interfaces.
type container struct {
	t       *testing.T
	dataDir string
	plugins string // directory of the plugin "fake"
	netns   string
}

func newContainer(t *testing.T) container {
	t.Helper()
	c := container{t: t, dataDir: ownDir(t), plugins: t.TempDir(), netns: fmt.Sprintf("/proc/self/fd/%d", nstest.New(t).Fd())}
	const script = `#!/bin/sh
echo $CNI_COMMAND >> %[1]s/calls
[ $CNI_COMMAND = ADD ] || exit 0
[ -e %[1]s/broken ] && { echo '{"code": 7, "msg": "broken"}'; exit 1; }
echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "veth1", "mac": "0a:58:00:00:00:01"}]}'
`
	if err := os.WriteFile(filepath.Join(c.plugins, "fake"), fmt.Appendf(nil, script, c.plugins), 0o755); err != nil {
		t.Fatal(err)
	}
	return c
}

// attachment returns the container's attachment in a configuration of that name.
func (c container) attachment(name string) (attachment, networkConf) {
	c.t.Helper()
	text := fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"type":"leno-cni","dataDir":%q,"delegate":{"type":"fake"}}`, name, c.dataDir)
	conf, err := parseConf([]byte(text))
	if err != nil {
		c.t.Fatal(err)
	}
	return newAttachment(&skel.CmdArgs{ContainerID: "c1", IfName: "eth0", Netns: c.netns, Path: c.plugins, StdinData: []byte(text)}, conf), conf
}

func (c container) add(name string) error {
	c.t.Helper()
	c.t.Setenv("CNI_COMMAND", "ADD") // the specification's library passes the environment on
	c.t.Setenv("CNI_PATH", c.plugins)
	a, conf := c.attachment(name)
	if err := a.prepare(c.t.Context()); err != nil {
		return err
	}
	_, err := a.give(c.t.Context(), conf, dual)
	return err
}

func (c container) del(name string, inNamespace bool) error {
	c.t.Helper()
	a, _ := c.attachment(name)
	return a.end(c.t.Context(), inNamespace)
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
	attached := func(c container) { c.write("a", func(r *record) { r.Done = true }) }
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
		{name: "ADD after a crash", before: begun, do: func(c container) error { return c.add("a") }, want: "DEL ADD a:attached"},
		{name: "ADD after a crash that left no record", before: unreadable, do: func(c container) error { return c.add("a") }, want: "ADD a:attached"},
		{name: "ADD again", before: attached, do: func(c container) error { return c.add("a") }, code: codeAttached, want: "a:attached"},
		{name: "ADD by another configuration", before: attached, do: func(c container) error { return c.add("b") }, code: codeAttached, want: "a:attached b:refused"},
		{name: "and its DEL", before: attached, do: func(c container) error {
			if err := c.add("b"); err == nil {
				return errors.New("the second ADD succeeded")
			}
			return c.del("b", true)
		}, want: "a:attached"},
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
			if (collector{a.records, c.plugins}).reap(t.Context(), "default") {
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

func found(t *testing.T, a attachment) []recordFile {
	t.Helper()
	files, err := a.find()
	if err != nil {
		t.Fatal(err)
	}
	return files
}
