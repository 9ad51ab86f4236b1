package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/internal/testkit/programs"
)

// stateDir is the default dataDir on a runtime's host.
const stateDir = "run/leno-cni"

// TestShared checks that several configurations, runtimes and plugins on one host and network leave
// each other's containers alone, whatever the order of calls. There is no agent.
func TestShared(t *testing.T) {
	s := newSite(t, lab.Options{Hosts: 1, NoConsul: true})
	r := s.runtimes[0]
	for network, subnet := range map[string]string{"default": "10.5.34.1/24", "small": "10.5.35.1/30", "moved": "10.5.36.1/24", "reused": "10.5.38.1/30"} {
		must(t, os.WriteFile(r.subnetFile(network), []byte(subnetText(subnet)), 0o644))
	}
	t.Run("at once", func(t *testing.T) {
		for name, do := range map[string]func(*testing.T, *runtime){
			"taken":           s.taken,
			"the same call":   s.twice,
			"unreadable":      s.unreadable,
			"renamed":         s.renamed,
			"odd directory":   s.oddDirectory,
			"no more a space": s.noNamespace,
			"the host's own":  s.hostNamespace,
			"of the agent":    s.notOurs,
			"killed":          s.killed,
			"moved":           s.moved,
			"two namespaces":  s.twoNamespaces,
			"lists":           s.lists,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				do(t, r)
			})
		}
	})
	t.Run("GC and ADD", func(t *testing.T) { s.collectedMeanwhile(t, r) })
}

func subnetText(subnet string) string {
	return fmt.Sprintf("LENO_NETWORK=10.5.0.0/16\nLENO_SUBNET=%s\nLENO_MTU=1450\nLENO_IPMASQ=true\n", subnet)
}

// named returns a configuration of the network "default" with the given name.
func named(name string) string { return conf(name, `,"network":"default"`) }

// as returns the same container with another configuration.
func (c *container) as(t *testing.T, text string) *container {
	other := *c
	other.list = list(t, text)
	return &other
}

// still checks that a container still has what it was given.
func (c *container) still(t *testing.T) {
	t.Helper()
	on, err := c.Exec(c.r.ctx, "ip", "-o", "addr", "show", "dev", c.dev)
	must(t, err)
	if !strings.Contains(on, c.addrs()[0].String()) || !slices.Contains(c.r.store(t, stateDir, "default"), c.addrs()[0].String()) {
		t.Errorf("%s is not taken by %s any more: %s, %v", c.addrs()[0], c.Name, on, c.r.store(t, stateDir, "default"))
	}
}

// ended checks that nothing is left of a container.
func (c *container) ended(t *testing.T) {
	t.Helper()
	if on, err := c.Exec(c.r.ctx, "ip", "-br", "link"); err != nil || strings.Contains(on, c.dev) {
		t.Errorf("%v: in %s: %s", err, c.Name, on)
	}
	if slices.Contains(c.r.store(t, stateDir, "default"), c.addrs()[0].String()) {
		t.Errorf("%s is taken", c.addrs()[0])
	}
	records, err := filepath.Glob(filepath.Join(c.r.dir, stateDir, "attachments/*", c.id+":"+c.dev))
	if err != nil || len(records) > 0 {
		t.Errorf("%v: remembered: %v", err, records)
	}
}

// taken checks that ADD of an interface that exists already, from another configuration or plugin,
// fails, and that neither this ADD nor the following DEL touches that interface.
func (s *site) taken(t *testing.T, r *runtime) {
	c := s.added(t, r, named("taken-a"))
	other := c.as(t, named("taken-b"))
	fails(t, other.add(), 102, "has interface eth0 in network default already, by configuration taken-a")
	must(t, other.del())
	c.still(t)
	must(t, c.check())
	must(t, c.del())
	c.ended(t)

	_, err := c.Exec(s.ctx, "ip", "link", "add", "eth0", "type", "bridge")
	must(t, err)
	fails(t, c.add(), 102, "that leno-cni did not create")
	must(t, c.del())
	_, err = c.Exec(s.ctx, "ip", "link", "show", "eth0")
	must(t, err)
}

// twice checks that of two simultaneous calls for the same interface one succeeds, and that its
// interface stays.
func (s *site) twice(t *testing.T, r *runtime) {
	for range 3 {
		c := s.container(t, r, named("twice-a"))
		other := c.as(t, named("twice-b"))
		var errs [2]error
		var g errgroup.Group
		for i, each := range []*container{c, other} {
			g.Go(func() error { errs[i] = each.add(); return nil })
		}
		must(t, g.Wait())
		won, lost := c, errs[1]
		if errs[0] != nil {
			won, lost = other, errs[0]
		}
		fails(t, lost, 102, "has interface eth0")
		won.still(t)
		must(t, won.check())
		must(t, errors.Join(c.del(), other.del()))
		won.ended(t)
	}
}

// unreadable checks that a record written by a newer leno, or truncated by a crash, still counts as
// a container's, and that the container's DEL leaves nothing behind.
func (s *site) unreadable(t *testing.T, r *runtime) {
	c := s.added(t, r, named("unreadable"))
	file := filepath.Join(r.dir, stateDir, "attachments/unreadable", c.id+":eth0")
	for _, text := range []string{`{"version":2}`, ""} {
		must(t, os.WriteFile(file, []byte(text), 0o600))
		must(t, r.gc(r.withoutMemory(t), list(t, named("unreadable-other"))))
		c.still(t)
		fails(t, c.add(), 102)
		c.still(t)
	}
	must(t, c.del())
	c.ended(t)
	must(t, c.add())
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, r.gc(r.withoutMemory(t), c.list)) // GC of the runtime that assigned the address
	if slices.Contains(r.store(t, stateDir, "default"), c.addrs()[0].String()) {
		t.Errorf("%s is taken after GC", c.addrs()[0])
	}
}

// renamed checks a configuration whose name has changed since the container was created.
func (s *site) renamed(t *testing.T, r *runtime) {
	c := s.added(t, r, named("before"))
	now := c.as(t, named("after"))
	result, err := r.cni.GetNetworkListCachedResult(c.list, c.with())
	must(t, err)
	previous, err := text(result)
	must(t, err)
	now.list = list(t, conf("after", `,"network":"default"`+`,"prevResult":`+previous))
	must(t, r.withoutMemory(t).CheckNetworkList(s.ctx, now.list, now.with()))
	must(t, now.del())
	c.ended(t)
}

// oddDirectory uses a dataDir with characters that have a meaning in patterns.
func (s *site) oddDirectory(t *testing.T, r *runtime) {
	c := s.added(t, r, conf("odd", `,"network":"default","dataDir":"/run/a[b]*"`))
	if got := r.store(t, "run/a[b]*", "default"); len(got) != 1 {
		t.Fatalf("taken: %v", got)
	}
	temp := filepath.Join(r.dir, "run/a[b]*/attachments/odd/.new.1")
	must(t, os.WriteFile(temp, nil, 0o600))
	must(t, os.Chtimes(temp, time.Time{}, time.Now().Add(-time.Hour)))
	must(t, r.gc(r.withoutMemory(t), c.list))
	if got := r.store(t, "run/a[b]*", "default"); len(got) != 0 {
		t.Errorf("taken after GC: %v", got)
	}
	if _, err := os.Stat(temp); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

// noNamespace puts a plain file in place of the container's mounted namespace. DEL completes;
// without a DEL, an ADD that needs the address takes it.
func (s *site) noNamespace(t *testing.T, r *runtime) {
	c := s.added(t, r, conf("space", `,"network":"small"`))
	plain := filepath.Join(r.dir, "run/plain")
	must(t, os.WriteFile(plain, nil, 0o644))
	with := c.with()
	with.NetNS = "/run/plain"
	must(t, r.cni.DelNetworkList(s.ctx, c.list, with))
	if got := r.store(t, stateDir, "small"); len(got) > 0 {
		t.Errorf("taken after DEL: %v", got)
	}
	link := c.result.Interfaces[1].Name
	if _, err := r.Exec(s.ctx, "ip", "link", "show", link); err == nil {
		t.Errorf("%s is there", link)
	}
	must(t, c.add())
	_, err := r.Exec(s.ctx, "ip", "link", "del", c.result.Interfaces[1].Name)
	must(t, err)
	record := filepath.Join(r.dir, stateDir, "attachments/space", c.id+":eth0")
	text, err := os.ReadFile(record)
	must(t, err)
	must(t, os.WriteFile(record, []byte(strings.Replace(string(text), c.Path(), "/run/plain", 1)), 0o600))
	next := s.added(t, r, conf("space-too", `,"network":"small"`))
	fails(t, r.cni.GetStatusNetworkList(s.ctx, next.list), 50, "network small: no address is left in this host's 10.5.35.0/30")

	// An address without a record belongs to no container.
	must(t, os.Remove(filepath.Join(r.dir, stateDir, "attachments/space-too", next.id+":eth0")))
	must(t, s.container(t, r, conf("space", `,"network":"small"`)).add())
}

// hostNamespace makes the path of a container's namespace lead to the host's own, as
// /proc/PID/ns/net does once the PID belongs to another process. DEL completes and touches no
// interface of the host; without a DEL, an ADD that needs the address takes it.
func (s *site) hostNamespace(t *testing.T, r *runtime) {
	const own = "/proc/self/ns/net"
	c := s.container(t, r, conf("reused", `,"network":"reused"`))
	c.dev = "reused0"
	_, err := r.Exec(s.ctx, "ip", "link", "add", c.dev, "type", "bridge")
	must(t, err)
	there := func(link string) bool {
		_, err := r.Exec(s.ctx, "ip", "link", "show", link)
		return err == nil
	}
	with := c.with()
	with.NetNS = own
	_, err = r.cni.AddNetworkList(s.ctx, c.list, with)
	fails(t, err, types.ErrInvalidNetNS, "is the host's own network namespace")
	record := filepath.Join(r.dir, stateDir, "attachments/reused", c.id+":"+c.dev)
	for _, broken := range []bool{false, true} {
		must(t, c.add())
		if broken {
			must(t, os.WriteFile(record, nil, 0o600))
		}
		for range 2 {
			must(t, r.cni.DelNetworkList(s.ctx, c.list, with))
		}
		if got := r.store(t, stateDir, "reused"); len(got) > 0 || !there(c.dev) {
			t.Errorf("taken after DEL: %v; the host has its interface: %t", got, there(c.dev))
		}
		if _, err := os.Stat(record); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the record is there after DEL: %v", err)
		}
		if !broken && there(c.result.Interfaces[1].Name) {
			t.Errorf("%s is there", c.result.Interfaces[1].Name)
		}
		_, _ = c.Exec(s.ctx, "ip", "link", "del", c.dev) // the broken record does not name it
	}

	must(t, c.add())
	text, err := os.ReadFile(record)
	must(t, err)
	must(t, os.WriteFile(record, []byte(strings.Replace(string(text), c.Path(), own, 1)), 0o600))
	next := s.container(t, r, conf("reused-too", `,"network":"reused"`))
	fails(t, next.add(), 101) // it has its interface already
	_, err = r.Exec(s.ctx, "ip", "link", "del", c.result.Interfaces[1].Name)
	must(t, err)
	must(t, r.cni.GetStatusNetworkList(s.ctx, next.list))
	must(t, next.add())
}

// twoNamespaces gives one container ID two namespaces. DEL removes the interface where it is, whatever namespace it
// names, and an ADD in the second namespace works as soon as the first is gone.
func (s *site) twoNamespaces(t *testing.T, r *runtime) {
	c := s.added(t, r, named("two"))
	second := s.container(t, r, named("two"))
	second.id = c.id
	fails(t, second.add(), 102, "by configuration two in "+c.Path())
	third := second.as(t, conf("two-too", `,"nework":"default"`))
	fails(t, third.add(), types.ErrUnsupportedField)
	must(t, third.del())
	must(t, third.del())
	c.still(t)
	must(t, second.del())
	c.ended(t)

	must(t, c.add())
	must(t, s.RemoveNamespace(s.ctx, c.Namespace))
	must(t, second.add())
	second.still(t)
	must(t, second.check())
	must(t, second.del())
	second.ended(t)
}

// lists checks configuration lists as people have them for other plugins.
func (s *site) lists(t *testing.T, r *runtime) {
	const portmap = `{"type":"portmap","capabilities":{"portMappings":true},"snat":true}`
	for name, text := range map[string]string{
		"of Nomad": `{"cniVersion":"0.4.0","name":"list-1","plugins":[{"type":"loopback"},
			{"type":"leno-cni","network":"default","subnetFile":"/run/leno/default.env"},
			{"type":"firewall","backend":"iptables","iptablesAdminChainName":"NOMAD-ADMIN"},` + portmap + `]}`,
		"of flannel": `{"name":"list-2","cniVersion":"0.3.1","plugins":[{"type":"leno-cni","subnetFile":"/run/leno/default.env",
			"delegate":{"hairpinMode":true,"forceAddress":true,"isDefaultGateway":true}},` + portmap + `]}`,
		"with explanations": `{"cniVersion":"1.0.0","name":"list-3","plugins":[{"type":"leno-cni","subnetFile":"/run/leno/default.env",
			"_comment":"pool of dc1","Documentation":"/usr/share/doc/x.md"}]}`,
		"ptp": `{"cniVersion":"0.3.1","name":"list-4","plugins":[{"type":"leno-cni","subnetFile":"/run/leno/default.env",
			"delegate":{"type":"ptp"},"ipam":{"type":"host-local","routes":[{"dst":"0.0.0.0/0"}]}},` + portmap + `]}`,
		"of 1.1.0": `{"cniVersion":"1.1.0","cniVersions":["0.4.0","1.0.0","1.1.0"],"name":"list-5","disableCheck":true,"disableGC":false,
			"loadOnlyInlinedPlugins":true,"plugins":[{"type":"leno-cni","subnetFile":"/run/leno/default.env"},
			{"type":"portmap","capabilities":{"portMappings":true},"backend":"nftables"}]}`,
	} {
		c := s.container(t, r, text)
		if err := c.add(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		c.still(t)
		if err := c.del(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c.ended(t)
	}
}

// notOurs checks that a directory that the agent's user, or any user but root, can change is not
// used, and that no link in it is followed.
func (s *site) notOurs(t *testing.T, r *runtime) {
	dir := filepath.Join(r.dir, "run/of-agent")
	must(t, os.MkdirAll(filepath.Join(dir, "cni/attachments/planted"), 0o755))
	must(t, os.Chown(dir, 65534, 65534))
	text := conf("planted", `,"network":"default","dataDir":"/run/of-agent/cni"`)
	c := s.container(t, r, text)
	const want = "dataDir /run/of-agent/cni: /run/of-agent belongs to user 65534"
	fails(t, c.add(), types.ErrIOFailure, want)
	fails(t, c.del(), types.ErrIOFailure, want)
	fails(t, r.gc(r.withoutMemory(t), c.list), types.ErrIOFailure, want)
	fails(t, r.cni.GetStatusNetworkList(s.ctx, c.list), 50, want)

	must(t, os.Chown(dir, 0, 0))
	target := filepath.Join(r.dir, "run/target")
	must(t, os.WriteFile(target, []byte("kept"), 0o600))
	must(t, os.Symlink("/run/target", filepath.Join(dir, "cni/attachments/planted", c.id+":eth0")))
	must(t, c.add())
	must(t, c.check())
	if got, err := os.ReadFile(target); err != nil || string(got) != "kept" {
		t.Errorf("%v: what a link pointed at is %q now", err, got)
	}
	must(t, c.del())
}

// killed checks that the programs that leno-cni runs end with it, so that nothing happens after
// DEL.
func (s *site) killed(t *testing.T, r *runtime) {
	dir := filepath.Join(r.Dir, "cni-slow")
	must(t, os.Mkdir(dir, 0o755))
	pid, after := filepath.Join(r.Dir, "slow.pid"), filepath.Join(r.Dir, "slow.after")
	must(t, programs.Write(filepath.Join(dir, "bridge"), fmt.Appendf(nil,
		"#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exec %s/bridge\necho $$ >%s.new; mv %s.new %s\nkill -9 $PPID\nread x <%s\ntouch %s\n", r.path, pid, pid, pid, pid+".wait", after)))
	must(t, syscall.Mkfifo(pid+".wait", 0o600))
	t.Cleanup(func() { // releases every process that still waits
		if f, err := os.OpenFile(pid+".wait", os.O_RDWR|syscall.O_NONBLOCK, 0); err == nil {
			f.Close()
		}
	})
	c := s.container(t, r, named("killed"))
	if err := c.addWith(r.withPath(dir, r.path)); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("leno-cni was to be killed: %v", err)
	}
	text, err := os.ReadFile(pid)
	must(t, err)
	must(t, lab.WaitFor(s.ctx, "the end of bridge", func(context.Context) error {
		if _, err := os.Stat("/proc/" + strings.TrimSpace(string(text)) + "/exe"); err == nil {
			return errors.New("it runs")
		}
		return nil
	}))
	if _, err := os.Stat(after); err == nil {
		t.Error("bridge went on")
	}
	must(t, c.add())
	must(t, c.del())
	c.ended(t)
}

// moved changes the host's subnet while a container is given an address.
func (s *site) moved(t *testing.T, r *runtime) {
	dir := filepath.Join(r.Dir, "cni-moved")
	must(t, os.Mkdir(dir, 0o755))
	must(t, programs.Write(filepath.Join(dir, "bridge"), fmt.Appendf(nil,
		"#!/bin/sh\n[ $CNI_COMMAND = ADD ] && [ -e %[1]s ] && cat %[1]s >/run/leno/moved.env && rm %[1]s\nexec %[2]s/bridge\n", filepath.Join(dir, "next"), r.path)))
	must(t, os.WriteFile(filepath.Join(dir, "next"), []byte(subnetText("10.5.37.1/24")), 0o644))
	c := s.container(t, r, conf("moved", `,"network":"moved"`))
	must(t, c.addWith(r.withPath(dir, r.path)))
	on, err := r.Exec(s.ctx, "ip", "-o", "-4", "addr", "show", "dev", "cni-moved")
	must(t, err)
	if !strings.HasPrefix(c.addrs()[0].String(), "10.5.37.") || !strings.Contains(on, "10.5.37.1/24") || strings.Contains(on, "10.5.36.1") {
		t.Errorf("%s, and on the bridge: %s", c.addrs()[0], on)
	}
	if got := r.store(t, stateDir, "moved"); len(got) != 1 {
		t.Errorf("taken: %v", got)
	}
	must(t, c.check())
	must(t, c.del())
}

// collectedMeanwhile checks that a container added while another runtime's GC is running keeps its
// address.
func (s *site) collectedMeanwhile(t *testing.T, r *runtime) {
	other := s.added(t, r, named("gc"))
	must(t, other.del())
	first := filepath.Join(r.dir, stateDir, "addresses/0")
	must(t, os.MkdirAll(first, 0o755))
	lock, err := os.Create(filepath.Join(first, "lock"))
	must(t, err)
	defer lock.Close()
	must(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	info, err := lock.Stat()
	must(t, err)
	waiting := fmt.Sprintf(":%d ", info.Sys().(*syscall.Stat_t).Ino)

	var g errgroup.Group
	g.Go(func() error { return r.gc(r.withoutMemory(t), other.list) })
	must(t, lab.WaitFor(s.ctx, "GC to wait", func(context.Context) error {
		text, err := os.ReadFile("/proc/locks")
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "-> FLOCK") && strings.Contains(line, waiting) {
				return nil
			}
		}
		return errors.Join(err, errors.New("not yet"))
	}))
	c := s.added(t, r, named("during"))
	must(t, lock.Close())
	must(t, g.Wait())
	c.still(t)
	must(t, c.del())
}

// text returns a result as JSON in the form that a configuration contains.
func text(result types.Result) (string, error) {
	var b strings.Builder
	err := result.PrintTo(&b)
	return b.String(), err
}
