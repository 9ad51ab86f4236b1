package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestTearDown: tearing down goes on past failures, and removes by the state file what this process never built. While a
// datapath is left, the lease and the state stay.
func TestTearDown(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fail  error
		wall  error
		story []string
	}{
		{"by the state file", nil, nil, []string{`recorder {"colour":"red"} [10.9.0.0/22]: []`}},
		{"backend fails", errors.New("no such device"), nil, nil},
		{"firewall fails", nil, errors.New("no such table"), []string{`recorder {"colour":"red"} [10.9.0.0/22]: []`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, memory.New(), "a")
			h.config.Networks[0].Pools = []config.Pool{{Prefix: agenttest.Plan(t, "10.9.0.0/22")[0].Prefix}}
			n, err := definition.FromBlock(h.config.Networks[0])
			must(t, err)
			must(t, h.store.Client().PutNetwork(context.Background(), n))
			r := h.runner()
			l := h.acquire()
			r.lease.Lease().Set(l)
			must(t, state.Save(h.config.DataDir, state.Network{Network: "n", Subnets: l.Subnets, Session: l.Session,
				Pools: n.Plan.Prefixes(), Carriage: agenttest.Carriage(t, "recorder", `{"colour":"red"}`)}))
			must(t, state.WriteFile(r.local.SubnetFile, []byte("LENO_SUBNET=10.5.1.1/24\nLENO_MTU=1450\n"), 0o644))
			for _, path := range []string{r.local.SubnetFile, state.Path(h.config.DataDir, "n"), state.PeersPath(h.config.DataDir, "n")} {
				must(t, state.WriteFile(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".31415"), nil, 0o600))
			}
			must(t, os.WriteFile(state.Path(h.config.DataDir, "n")+".bad", nil, 0o600))
			h.datapath.fail = tt.fail
			mine := hostClaim{pools: n.Plan.Prefixes()}
			must(t, h.deps.Claims.take("n", mine))
			h.wall.err = tt.wall
			left := newRemoval(r, true).tearDown(context.Background())
			if !errors.Is(left, tt.fail) || (left == nil) != (tt.fail == nil) {
				t.Errorf("left: %v", left)
			}
			if diff := cmp.Diff(tt.story, h.datapath.passes); diff != "" {
				t.Error(diff)
			}
			if h.datapath.built != 1 || h.datapath.closed != 1 {
				t.Errorf("%d of %d backends were closed", h.datapath.closed, h.datapath.built)
			}
			if err := h.deps.Claims.take("other", mine); err != nil {
				t.Errorf("the pools are not free: %v", err)
			}
			if exists(r.local.SubnetFile) {
				t.Error("the subnet file stays")
			}
			if got := state.Unfinished(r.local.SubnetFile); len(got) != 0 {
				t.Errorf("%q stay", got)
			}
			if tt.fail != nil {
				if keys := h.store.Keys(memory.Prefix + "/leases/n/1"); len(keys) == 0 || !exists(state.Path(h.config.DataDir, "n")) {
					t.Errorf("leases %v, or the state, went before the datapath", keys)
				}
				h.datapath.fail = nil
				newRemoval(r, true).leave(context.Background())
			}
			if got := tree(t, h.config.DataDir); len(got) != 0 {
				t.Errorf("in the state directory %q stay", got)
			}
			if keys := h.store.Keys(memory.Prefix + "/leases/n/1"); len(keys) != 0 {
				t.Errorf("leases %v", keys)
			}
		})
	}
}

// TestLeavingIsRetried: a datapath or a subnet file that cannot be removed is removed later, whatever made the host leave.
// Until then, the state stays, and the lease unless the network is deleted.
func TestLeavingIsRetried(t *testing.T) {
	stop := func(a *member, _ string) {
		a.run.SetEnding(Leave)
		go a.stop()
	}
	for _, tt := range []struct {
		name   string
		leave  func(a *member, says string)
		record bool // whether the lease stays
		shows  bool // whether a check shows it
		fails  time.Duration
	}{
		{"released", func(a *member, says string) {
			err := a.run.Release(a.t.Context(), a.registry.As(""))
			if err == nil || !strings.Contains(err.Error(), "the lease was released, but") || !strings.Contains(err.Error(), says) {
				a.t.Errorf("the request was answered with %v", err)
			}
		}, false, true, time.Hour},
		{"deleted", func(a *member, _ string) { a.remove() }, false, true, time.Hour},
		{"stopped", stop, true, true, leaveTimeout / 2},
		{"stopped, and started without the network", stop, true, false, 2 * leaveTimeout},
	} {
		for _, stays := range []string{"datapath", "subnet file"} {
			simulated(t, tt.name+", "+stays, func(t *testing.T) {
				a := newMember(t, memory.New(), "a")
				a.config.Lease.TTL = time.Minute
				a.start().ready()
				subnet := a.subnet()
				a.applies(a.with())
				says, path := "no such device", a.config.Networks[0].SubnetFile
				unfinished := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".1")
				if stays == "datapath" {
					a.kernel.setFail(errors.New(says))
				} else { // a directory that is not empty, in the place of a file that a killed process had begun
					says = unfinished
					must(t, os.MkdirAll(filepath.Join(unfinished, "x"), 0o700))
				}
				tt.leave(a, says)
				time.Sleep(tt.fails)
				if tt.shows {
					a.check(health.Routes, api.Critical, says)
				}
				if !exists(state.Path(a.config.DataDir, "n")) || exists(path) {
					t.Error("there is no state file, or still a subnet file")
				}
				if _, _, found := a.store.Get(leaseKey(subnet)); found != tt.record {
					t.Errorf("the store has a record: %t", found)
				}
				a.kernel.setFail(nil)
				must(t, os.RemoveAll(unfinished))
				if tt.fails > leaveTimeout && tt.record {
					LeaveSaved(t.Context(), a.deps, a.config, a.config.Networks[0])
				}
				a.applies("zero")
				agenttest.Eventually(t, func() error {
					if _, _, found := a.store.Get(leaseKey(subnet)); found || exists(state.Path(a.config.DataDir, "n")) || a.reason(health.Routes) != "" {
						return fmt.Errorf("the store has a record: %t; or the state stays", found)
					}
					return nil
				})
			})
		}
	}
}

// TestLeaveAtOnce: a host leaves a network completely although it is told to before its runner has begun, as after a reload
// that is followed by another one. It does not leave while its name is not known.
func TestLeaveAtOnce(t *testing.T) {
	for _, known := range []bool{true, false} {
		for range 20 { // chance must not decide
			h := newHost(t, memory.New(), "a")
			h.put("10.5.0.0/22", "recorder")
			lease := h.acquire()
			if !known {
				h.deps.Identity = NewIdentity()
			}
			must(t, state.Save(h.config.DataDir, state.Network{Network: "n", Subnets: lease.Subnets, Session: lease.Session,
				Pools: h.inStore().Plan.Prefixes(), Carriage: agenttest.Carriage(t, "recorder", "")}))
			r := h.runner()
			r.SetEnding(Leave)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			must(t, r.Run(ctx))
			if left := !exists(state.Path(h.config.DataDir, "n")); left != known {
				t.Fatalf("name known %t: left %t", known, left)
			}
		}
	}
}

// TestTearDownAfterTheEnd: tearing down does its work although its context has ended.
func TestTearDownAfterTheEnd(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	r := h.runner()
	l := leaseOf(1, "s", 1)
	h.store.Put(memory.Prefix+"/leases/n/"+registry.SubnetKey(l.Subnet()), []byte("{}"))
	r.lease.Lease().Set(l)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = newRemoval(r, true).tearDown(ended)
	if h.registry.Count("own Release") != 1 {
		t.Error("the lease was not released")
	}
	r.lease.Lease().Set(l)
	_ = newRemoval(r, false).tearDown(ended)
	if h.registry.Count("own Release") != 1 {
		t.Error("released although it already was")
	}
}

// TestTearDownLeavesTheFilesOfOthers: a subnet file that another program has written by now stays.
func TestTearDownLeavesTheFilesOfOthers(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	r := h.runner()
	const theirs = "FLANNEL_SUBNET=10.9.1.1/24\n"
	must(t, state.WriteFile(r.local.SubnetFile, []byte(theirs), 0o644))
	_ = newRemoval(r, false).tearDown(context.Background())
	if data, err := os.ReadFile(r.local.SubnetFile); err != nil || string(data) != theirs {
		t.Errorf("%q, %v", data, err)
	}
}
