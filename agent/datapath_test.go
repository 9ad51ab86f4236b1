package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestDefinitionReplaced: what stands for the old definition is taken away with
// the backend and options it was made with, in one process or over a restart.
func TestDefinitionReplaced(t *testing.T) {
	const old = `recorder {"colour":"red"} [10.5.0.0/22]: `
	for _, tt := range []struct {
		name    string
		change  func(t *testing.T, n *registry.Network)
		retired bool
		want    string // of the last line
	}{
		{"another backend", func(t *testing.T, n *registry.Network) { n.Backend = mustBackend(t, "other", `{"size":1}`) }, true,
			`other {"size":1} [10.5.0.0/22]: SUBNET <- `},
		{"another pool", func(t *testing.T, n *registry.Network) { n.Plan = mustPlan(t, "10.6.0.0/22") }, true,
			`recorder {"colour":"red"} [10.6.0.0/22]: SUBNET <- `},
		{"other options", func(t *testing.T, n *registry.Network) { n.Backend = mustBackend(t, "recorder", `{"colour":"blue"}`) }, false,
			`recorder {"colour":"blue"} [10.5.0.0/22]: SUBNET <- `},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %t", tt.name, restart), func(t *testing.T) {
				a := newHost(t, memory.New(), "a")
				a.config.Networks[0].Backend.Options = []byte(`{"colour":"red"}`)
				a.start().ready()
				subnet := a.subnet()
				a.applies(subnet.String() + " <- ")
				if restart {
					must(t, a.stop())
				}
				a.define(func(n *registry.Network) { tt.change(t, n) })
				if restart {
					a.start()
				}
				want := []string{old + subnet.String() + " <- "}
				if tt.retired {
					want = append(want, old+"zero")
				}
				eventually(t, func() error {
					story := a.recorder.story()
					last := strings.ReplaceAll(tt.want, "SUBNET", a.subnet().String())
					if story[len(story)-1] != last {
						return fmt.Errorf("%q", story)
					}
					if diff := cmp.Diff(append(want[:len(want):len(want)], last), story); diff != "" {
						return errors.New(diff)
					}
					return nil
				})
				if _, open := a.recorder.open(); open != 1 {
					t.Errorf("%d backends are open", open)
				}
				must(t, a.stop())
				if built, open := a.recorder.open(); open != 0 {
					t.Errorf("%d of %d backends were not closed", open, built)
				}
				if keys := a.store.Keys(memory.Prefix + "/leases/n/1"); len(keys) != 1 {
					t.Errorf("leases %v", keys)
				}
			})
		}
	}
}

// TestPlanChanged: a subnet that is none of the plan's any more would block
// others for ever.
func TestPlanChanged(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			a := newHost(t, memory.New(), "a").start()
			a.ready()
			before, addrs := a.subnet(), a.place.Addrs
			if restart {
				must(t, a.stop())
			}
			a.move(nil, errors.New("no route")) // so that it can be seen between the two
			a.define(func(n *registry.Network) {
				plan, err := registry.Plan{{Prefix: n.Plan[0].Prefix, SubnetLen: 26}}.Normalize()
				must(t, err)
				n.Plan = plan
			})
			if restart {
				a.start()
			}
			a.check(checkUnderlay, api.Critical, "no route")
			if _, held, _ := mustRunner(t, a).lease.get(); held {
				t.Error("the old lease counts as held")
			}
			a.move(addrs, nil)
			eventually(t, func() error {
				if now := a.subnet(); now.Bits() != 26 || a.recorder.last() != now.String()+" <- " {
					return fmt.Errorf("%s, applied %s", now, a.recorder.last())
				}
				return nil
			})
			a.check(checkLease, api.Passing, a.subnet().String())
			if keys := a.store.Keys(memory.Prefix + "/leases/n/1"); len(keys) != 1 || keys[0] == leaseKey(before) {
				t.Errorf("leases %v", keys)
			}
		})
	}
}

// TestPeersOfAnOldPlan are not those of the new one.
func TestPeersOfAnOldPlan(t *testing.T) {
	store := memory.New()
	a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
	a.applies(fmt.Sprintf("%s <- b@%s", a.subnet(), b.subnet()))
	a.ready()
	must(t, b.stop())
	a.registry.setOne("WatchLeases", registry.ErrUnavailable)
	a.define(func(n *registry.Network) { n.Plan = mustPlan(t, "10.6.0.0/22") })
	eventually(t, func() error {
		if got := mustRunner(t, a).shown().local.State; got != "waiting for the leases of the other hosts" {
			return errors.New(got)
		}
		return nil
	})
	a.applies("zero")
	a.registry.setOne("WatchLeases", nil)
	eventually(t, func() error {
		if got := a.recorder.last(); got != a.subnet().String()+" <- " || !strings.HasPrefix(got, "10.6.") {
			return errors.New(got)
		}
		return nil
	})
	for _, state := range a.recorder.all() {
		if strings.HasPrefix(state, "10.6.") && strings.Contains(state, "10.5.") {
			t.Errorf("state %q was applied", state)
		}
	}
}

// TestBackendIsKept over a change that it was not built from.
func TestBackendIsKept(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	subnet := a.subnet()
	n := a.define(func(n *registry.Network) { n.Plan[0].Min = netip.MustParseAddr("10.5.0.0") })
	eventually(t, func() error {
		if v := mustRunner(t, a).shown(); v.definition.ModifyIndex != n.ModifyIndex || v.local.State != "running" {
			return fmt.Errorf("%d, %s", v.definition.ModifyIndex, v.local.State)
		}
		return nil
	})
	a.applies(subnet.String() + " <- ")
	if built, open := a.recorder.open(); built != 1 || open != 1 {
		t.Errorf("%d were built, %d are open", built, open)
	}
}

func TestUnderlayGone(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	subnet := a.subnet()
	addrs, tries := a.place.Addrs, len(a.recorder.tries())
	a.move(nil, errors.New("no route"))
	a.kick()
	a.check(checkUnderlay, api.Warning, "keeping eth0", "no route")
	a.more("applies", tries, func() int { return len(a.recorder.tries()) })
	a.recorder.mu.Lock()
	last := a.recorder.states[len(a.recorder.states)-1]
	a.recorder.mu.Unlock()
	if last.Underlay.Interface != "eth0" || last.MTU != 1450 || last.Subnets[0] != subnet {
		t.Errorf("%+v", last)
	}
	if got := a.registry.claimed(); got.MTU != 1450 || got.PublicIPs[0] != addrs[0] {
		t.Errorf("claims %+v", got)
	}
	a.move(addrs, nil)
	a.kick()
	a.check(checkUnderlay, api.Passing, "eth0")
}

func TestReadyComesAfterTheFiles(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	path := a.config.Networks[0].SubnetFile
	must(t, os.MkdirAll(path+"/x", 0o755))
	a.start()
	a.check(checkSubnetFile, api.Critical)
	if a.agent.Ready() {
		t.Error("ready without a subnet file")
	}
	if len(a.wall.names()) != 0 {
		t.Error("the firewall came before the files")
	}
	must(t, os.RemoveAll(path))
	a.ready()
	a.check(checkSubnetFile, api.Passing, path)
}

// TestFailingApplySlowsDown although its own half-done writes are changes of the
// kernel's tables.
func TestFailingApplySlowsDown(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	a.check(checkSnapshot, api.Passing)
	began := len(a.recorder.tries())
	a.recorder.setFail(errors.New("no such device"))
	a.recorder.hook(func(backend.State) { a.kick() })
	a.kick()
	wantGrowing(t, "failing applies", 2*localFirst-50*time.Millisecond, func() []time.Time { return a.recorder.tries()[began:] })
}

// TestHealingSlowsDown when somebody undoes it again and again.
func TestHealingSlowsDown(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	began := len(a.recorder.tries())
	a.recorder.setReport(backend.Report{Writes: 1, Healed: []string{"device recreated"}})
	a.recorder.hook(func(backend.State) { a.kick() })
	a.kick()
	wantGrowing(t, "healing applies", 2*localFirst-50*time.Millisecond, func() []time.Time { return a.recorder.tries()[began:] })
	a.recorder.setReport(backend.Report{})
	a.recorder.hook(nil)
	a.check(checkDatapath, api.Passing)
}

func TestSkippedPeersAreAWarning(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	r := h.part()
	r.checkPeers(backend.Report{Peers: 3, Skipped: []backend.Skip{{Node: "b", Reason: "no key"}}})
	h.check(checkDatapath, api.Warning, "3 peers", "1 skipped", `"b"`, "no key")
	r.checkPeers(backend.Report{Peers: 4})
	h.check(checkDatapath, api.Passing, "4 peers")
}
