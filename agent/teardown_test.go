package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// tree returns the paths below dir.
func tree(t *testing.T, dir string) (out []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		out = append(out, strings.TrimPrefix(path, dir))
		return err
	}))
	return out[1:]
}

// TestLeavingLeavesNothing: nothing of a network stays on the host, whatever made the host leave.
func TestLeavingLeavesNothing(t *testing.T) {
	ctx := context.Background()
	for _, tt := range []struct {
		name  string
		leave func(a *host)
	}{
		{"network deleted", func(a *host) { must(a.t, a.store.Client().DeleteNetwork(ctx, "n")) }},
		{"released", func(a *host) { must(a.t, a.client.ReleaseLease(ctx, "n")) }},
		{"not configured any more", func(a *host) {
			c := a.config
			c.Networks = nil
			must(a.t, a.agent.Reload(ctx, c))
		}},
		{"stopped", func(a *host) { must(a.t, a.stop()) }},
		{"development agent stopped", func(a *host) { must(a.t, a.stop()) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newHost(t, memory.New(), "a")
			a.config.Lease.ReleaseOnStop, a.config.Dev = tt.name == "stopped", tt.name == "development agent stopped"
			a.start()
			a.ready()
			subnet := a.subnet()
			a.check(health.Snapshot, api.Passing)
			r := mustRunner(t, a)
			tt.leave(a)
			a.applies("zero")
			eventually(t, func() error {
				_, held, _ := r.lease.Get()
				_, _, there := a.store.Get(leaseKey(subnet))
				_, read, _ := r.snapshot.Get()
				names := a.wall.names()
				v := r.shown()
				report, _ := a.agent.env.health.Report()
				for what, wrong := range map[string]bool{
					"subnet file": exists(r.local.SubnetFile), "state file": exists(state.Path(a.config.DataDir, "n")),
					"lease": held, "record": there, "snapshot": read, "firewall": names[len(names)-1] != "",
					"ready":              len(report.Networks) > 0 && report.Networks[0].Ready,
					"pools":              a.agent.env.pools.take("other", hostClaim{pools: mustPlan(t, "10.5.0.0/22").Prefixes()}) != "",
					"what the API shows": len(v.local.Subnets) != 0 || v.local.Peers != 0 || v.datapath.Counter != nil,
				} {
					if wrong {
						return errors.New(what + " is still there")
					}
				}
				return nil
			})
			if built, open := a.recorder.open(); built != 1 || open != 0 {
				t.Errorf("%d of %d backends are open", open, built)
			}
		})
	}
}

// TestLeaseGoesLast: the lease is released last, so that no other host gets the subnet while packets flow here.
func TestLeaseGoesLast(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	a.config.Lease.ReleaseOnStop = true
	a.start().ready()
	subnet := a.subnet()
	var mu sync.Mutex
	var order []string
	note := func(what string, lease bool) {
		mu.Lock()
		defer mu.Unlock()
		if _, _, held := a.store.Get(leaseKey(subnet)); held != lease {
			t.Errorf("%s: record there: %t", what, held)
		}
		order = append(order, what)
	}
	a.recorder.hook(func(s backend.State) {
		if s.Zero() {
			note("datapath", true)
		}
	})
	a.registry.mu.Lock()
	a.registry.before = func(call string) {
		if call == "Release" {
			if exists(a.config.Networks[0].SubnetFile) || exists(state.Path(a.config.DataDir, "n")) {
				t.Error("released while the files are there")
			}
			if names := a.wall.names(); names[len(names)-1] != "" {
				t.Error("released while the rules are there")
			}
			note("lease", true)
		}
	}
	a.registry.mu.Unlock()
	must(t, a.stop())
	note("end", false)
	if diff := cmp.Diff([]string{"datapath", "lease", "end"}, order); diff != "" {
		t.Error(diff)
	}
}

// TestTearDown: tearing down goes on past failures, and removes by the state file what this process never built.
func TestTearDown(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fail  error
		wall  error
		story []string
	}{
		{"by the state file", nil, nil, []string{`recorder {"colour":"red"} [10.9.0.0/22]: zero`}},
		{"backend fails", errors.New("no such device"), nil, nil},
		{"firewall fails", nil, errors.New("no such table"), []string{`recorder {"colour":"red"} [10.9.0.0/22]: zero`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, memory.New(), "a")
			h.config.Networks[0].Pools = []config.Pool{{Prefix: mustPlan(t, "10.9.0.0/22")[0].Prefix}}
			n, err := definition.FromBlock(h.config.Networks[0])
			must(t, err)
			must(t, h.store.Client().PutNetwork(context.Background(), n))
			r := h.part()
			l := testLease("a", 1, "s", 1)
			claim := registry.Claim{Node: "a", NodeID: "id-a", PublicIPs: l.PublicIPs, MTU: 1450, Backend: l.Backend, TTL: config.Defaults().Lease.TTL}
			l, err = h.store.Client().Acquire(context.Background(), n, claim)
			must(t, err)
			r.lease.Set(l)
			must(t, state.Save(h.config.DataDir, state.Network{Network: "n", Subnets: l.Subnets, Session: l.Session,
				Pools: n.Plan.Prefixes(), Backend: mustBackend(t, "recorder", `{"colour":"red"}`)}))
			must(t, state.WriteFile(r.local.SubnetFile, []byte("LENO_SUBNET=10.5.1.1/24\nLENO_MTU=1450\n"), 0o644))
			for _, path := range []string{r.local.SubnetFile, state.Path(h.config.DataDir, "n"), state.PeersPath(h.config.DataDir, "n")} {
				must(t, state.WriteFile(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".31415"), nil, 0o600))
			}
			must(t, os.WriteFile(state.Path(h.config.DataDir, "n")+".bad", nil, 0o600))
			h.recorder.setFail(tt.fail)
			h.wall.setErr(tt.wall)
			r.tearDown(context.Background(), r.env.registry)
			if diff := cmp.Diff(tt.story, h.recorder.story()); diff != "" {
				t.Error(diff)
			}
			if built, open := h.recorder.open(); built != 1 || open != 0 {
				t.Errorf("%d of %d backends are open", open, built)
			}
			if exists(r.local.SubnetFile) || exists(state.Path(h.config.DataDir, "n")) {
				t.Error("files stay")
			}
			if got := tree(t, h.config.DataDir); len(got) != 0 {
				t.Errorf("in the state directory %q stay", got)
			}
			if got := state.Unfinished(r.local.SubnetFile); len(got) != 0 {
				t.Errorf("%q stay", got)
			}
			if keys := h.store.Keys(memory.Prefix + "/leases/n/1"); len(keys) != 0 {
				t.Errorf("leases %v", keys)
			}
		})
	}
}

// TestTearDownAfterTheEnd: tearing down does its work although its context has ended.
func TestTearDownAfterTheEnd(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	r := h.part()
	l := testLease("a", 1, "s", 1)
	h.store.Put(leaseKey(l.Subnet()), []byte("{}"))
	r.lease.Set(l)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	r.tearDown(ended, r.env.registry)
	if h.registry.count("own Release") != 1 {
		t.Error("the lease was not released")
	}
	r.lease.Set(l)
	r.tearDown(ended, nil)
	if h.registry.count("own Release") != 1 {
		t.Error("released although it already was")
	}
}

// TestLeftPoolsAreFree: the pools of a network that was left are free for another network of this host.
func TestLeftPoolsAreFree(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	c := a.config
	second := c.Networks[0]
	second.Name = "m"
	c.Networks = []config.Network{c.Networks[0], second}
	second.SubnetFile += ".m"
	c.Networks[1] = second
	must(t, a.agent.Reload(context.Background(), c))
	eventually(t, func() error {
		if r, ok := a.agent.runner("m"); !ok || r.shown().local.State == "starting" {
			return errors.New("m does not wait")
		}
		return nil
	})
	must(t, a.store.Client().DeleteNetwork(context.Background(), "n"))
	eventually(t, func() error { _, err := os.Stat(second.SubnetFile); return err })
}

// TestLeftOverRestart: a network that was removed from the configuration while the agent was down is left at the next
// start.
func TestLeftOverRestart(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	subnet, local, second := a.subnet(), a.config.Networks[0], a.second()
	must(t, a.stop())
	state := state.Path(a.config.DataDir, "n")
	a.config.Networks, a.config.Dev = nil, true
	a.start().check(health.Network, api.Warning, "no network is configured")
	must(t, a.stop())
	if !exists(state) || !exists(local.SubnetFile) || a.recorder.last() == "zero" {
		t.Error("a development agent left a network that is another agent's")
	}
	a.config.Networks, a.config.Dev = []config.Network{second}, false
	a.start()
	eventually(t, func() error {
		if _, _, there := a.store.Get(leaseKey(subnet)); there || exists(state) || exists(local.SubnetFile) {
			return errors.New("something was left behind")
		}
		if !slices.Contains(a.recorder.all(), "zero") {
			return errors.New("the datapath stays")
		}
		if report, _ := a.agent.env.health.Report(); len(report.Networks) != 1 {
			return fmt.Errorf("health of a network that was left: %+v", report.Networks)
		}
		return nil
	})
}

// TestTearDownLeavesTheFilesOfOthers: a subnet file that another program has written by now stays.
func TestTearDownLeavesTheFilesOfOthers(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	r := h.part()
	const theirs = "FLANNEL_SUBNET=10.9.1.1/24\n"
	must(t, state.WriteFile(r.local.SubnetFile, []byte(theirs), 0o644))
	r.tearDown(context.Background(), nil)
	if data, err := os.ReadFile(r.local.SubnetFile); err != nil || string(data) != theirs {
		t.Errorf("%q, %v", data, err)
	}
}
