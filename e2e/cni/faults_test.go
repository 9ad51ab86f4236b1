package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/internal/testkit/programs"
)

// crash kills leno-cni after bridge has done its work. The next ADD of the same container works
// without a DEL, and GC frees the address of a container that never came back.
func (s *site) crash(t *testing.T, r *runtime) {
	dir := filepath.Join(r.Dir, "cni-crash")
	must(t, os.Mkdir(dir, 0o755))
	must(t, programs.Write(filepath.Join(dir, "bridge"), fmt.Appendf(nil, "#!/bin/sh\n%s/bridge\nkill -9 $PPID\n", r.path)))
	deadly := r.withPath(dir, r.path)
	text := conf("crash", `,"network":"default"`)
	c, gone := s.container(t, r, text), s.container(t, r, text)
	for _, c := range []*container{c, gone} {
		if err := c.addWith(deadly); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("leno-cni was to be killed: %v", err)
		}
	}
	must(t, c.add())
	must(t, r.gc(r.withoutMemory(t), c.list, c))
	must(t, c.check())
	var left []string
	for _, addr := range r.store(t, stateDir, "default") {
		owner, err := os.ReadFile(filepath.Join(r.dir, stateDir+"/addresses/default", addr))
		must(t, err)
		if strings.HasPrefix(string(owner), gone.id) {
			left = append(left, addr)
		}
	}
	if len(left) > 0 {
		t.Errorf("%v are taken for a container that never came", left)
	}
	must(t, c.del())
	if files, err := os.ReadDir(filepath.Join(r.dir, stateDir+"/attachments/crash")); err != nil || len(files) > 0 {
		t.Errorf("remembered after DEL and GC: %v, %v", files, err)
	}
}

// cnitool runs the specification's own tool, calling the plugin by both of its names.
func (s *site) cnitool(t *testing.T, r *runtime) {
	dir := filepath.Join(r.dir, "conf")
	for _, kind := range []string{"leno-cni", "leno"} {
		name := "tool-" + kind
		text := strings.ReplaceAll(strings.Replace(example(t), `"name": "leno"`, fmt.Sprintf(`"name": %q`, name), 1), "leno-cni", kind)
		must(t, os.WriteFile(filepath.Join(dir, name+".conflist"), []byte(text), 0o644))
		c := s.container(t, r, text)
		tool := func(command string) (string, error) {
			return r.Exec(s.ctx, r.machine(os.DevNull, "env", "CNI_PATH="+r.path, "NETCONFPATH="+dir, filepath.Join(plugins, "cnitool"), command, name, c.Path())...)
		}
		var result struct{ IPs []struct{ Address string } }
		out, err := tool("add")
		must(t, err)
		if err := json.Unmarshal([]byte(out), &result); err != nil || len(result.IPs) != 2 {
			t.Errorf("%v: %s", err, out)
		}
		for _, command := range []string{"status", "check", "del", "del"} {
			if _, err := tool(command); err != nil {
				t.Errorf("%s: %v", command, err)
			}
		}
	}
}

// versions checks that results have the version that the configuration asks for.
func (s *site) versions(t *testing.T, r *runtime) {
	for _, v := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		c := s.container(t, r, strings.Replace(conf("version", `,"network":"default"`), "1.1.0", v, 1))
		answer, err := r.cni.AddNetworkList(s.ctx, c.list, c.with())
		if err != nil {
			t.Errorf("%s: %v", v, err)
			continue
		}
		if answer.Version() != v {
			t.Errorf("%s: a result of version %s", v, answer.Version())
		}
		if v >= "0.4.0" { // the first with CHECK
			must(t, c.check())
		}
		must(t, c.del())
		if v == "1.1.0" {
			must(t, r.cni.GetStatusNetworkList(s.ctx, c.list))
		}
	}
}

// anotherSubnet takes the host's lease away, so that it gets another subnet. CHECK reports this for
// running containers, which can still be ended. New containers get addresses from the new subnet,
// and the bridge keeps nothing of the old one, which may belong to another host.
func (s *site) anotherSubnet(t *testing.T, r *runtime, old, far *container) {
	before := r.facts(t, "default")
	_, err := r.Leno(s.ctx, "lease", "revoke", "default", before.Subnets()[0].String())
	must(t, err)
	must(t, lab.WaitFor(s.ctx, "another subnet", func(context.Context) error {
		text, err := os.ReadFile(r.subnetFile("default"))
		if err == nil && strings.Contains(string(text), before.Gateways[0].String()) {
			err = errors.New("the old one")
		}
		return err
	}))
	fails(t, old.check(), 103, old.addrs()[0].String(), "start a new container")
	c := s.added(t, r, example(t))
	now := r.facts(t, "default")
	for i, a := range c.addrs() {
		if !now.Gateways[i].Contains(a) {
			t.Errorf("%s is not of %s", a, now.Gateways[i])
		}
	}
	c.reaches(t, far)
	on, err := r.Exec(s.ctx, "ip", "-o", "addr", "show", "dev", "cni-default", "scope", "global")
	must(t, err)
	for i := range now.Gateways {
		if !strings.Contains(on, now.Gateways[i].String()+" ") || strings.Contains(on, before.Gateways[i].String()+" ") {
			t.Errorf("on the bridge, instead of %s: %s", now.Gateways[i], on)
		}
	}
	must(t, old.del())
	taken := r.store(t, stateDir, "default")
	for _, a := range old.addrs() {
		if slices.Contains(taken, a.String()) {
			t.Errorf("%s is taken after DEL", a)
		}
	}
	must(t, c.del())
}

// noAgent checks that the subnet file is enough without the agent, and that calls without both fail
// with the specification's codes.
func (s *site) noAgent(t *testing.T, r *runtime) {
	must(t, r.KillAgent())
	c := s.added(t, r, example(t))
	must(t, c.check())
	must(t, r.cni.GetStatusNetworkList(s.ctx, list(t, conf("status", `,"network":"default"`))))
	fails(t, s.container(t, r, conf("any", "")).add(), types.ErrInvalidNetworkConfig, "/run/leno/blue.env")

	file := r.subnetFile("default")
	must(t, os.Rename(file, file+".away"))
	hasty := s.container(t, r, conf("hasty", `,"network":"default","wait":"300ms"`))
	fails(t, hasty.add(), types.ErrTryAgainLater, "/run/leno/default.env", "no agent answers at 127.0.0.1:5366")
	fails(t, r.cni.GetStatusNetworkList(s.ctx, hasty.list), 50, "/run/leno/default.env", "no agent answers")
	must(t, c.check()) // a Nomad client kills containers whose CHECK fails; they must survive an upgrade of the agent
	must(t, hasty.del())
	must(t, c.del())
	must(t, os.Rename(file+".away", file))
	named := s.added(t, r, conf("named", fmt.Sprintf(`,"subnetFile":%q,"dataDir":"/run/elsewhere"`, "/run/leno/blue.env")))
	if f := r.facts(t, "blue"); !f.Gateways[0].Contains(named.addrs()[0]) {
		t.Errorf("%v is not of %v", named.addrs(), f.Gateways)
	}
	if got := r.store(t, "run/elsewhere", "blue"); len(got) != 1 {
		t.Errorf("in the data directory: %v", got)
	}
	must(t, named.del())
}

// reboot empties /run and ends all containers. The runtime's DEL finds nothing to do, and the
// addresses are free.
func (s *site) reboot(t *testing.T, r *runtime, c *container) {
	file, err := os.ReadFile(r.subnetFile("default"))
	must(t, err)
	must(t, os.RemoveAll(filepath.Join(r.dir, "run/leno")))
	must(t, os.RemoveAll(filepath.Join(r.dir, stateDir)))
	must(t, os.Mkdir(filepath.Join(r.dir, "run/leno"), 0o755))
	_, err = r.Exec(s.ctx, "ip", "link", "del", "cni-default")
	must(t, err)
	_, err = c.Exec(s.ctx, "ip", "link", "del", "eth0")
	must(t, err)
	must(t, c.del())
	must(t, os.WriteFile(r.subnetFile("default"), file, 0o644))
	must(t, c.add())
	if got := r.store(t, stateDir, "default"); len(got) != 2 {
		t.Errorf("taken after a reboot and one ADD: %v", got)
	}
	must(t, c.del())
}
