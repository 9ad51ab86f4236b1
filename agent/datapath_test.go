package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestDefinitionReplaced: when a definition is replaced, what was built for the old one is removed with the backend and
// the options that built it, in one process or across a restart.
func TestDefinitionReplaced(t *testing.T) {
	const old = `recorder {"colour":"red"} [10.5.0.0/22]: `
	for _, tt := range []struct {
		name    string
		change  func(t *testing.T, n *registry.Network)
		retired bool
		want    string // the last line of the story; SUBNET stands for the present subnet, KEPT for the first one
	}{
		{"another backend", func(t *testing.T, n *registry.Network) { n.Backend = agenttest.Backend(t, "other", `{"size":1}`) }, true,
			`other {"size":1} [10.5.0.0/22]: SUBNET <- `},
		{"another pool", func(t *testing.T, n *registry.Network) { n.Plan = agenttest.Plan(t, "10.6.0.0/22") }, true,
			`recorder {"colour":"red"} [10.6.0.0/22]: SUBNET <- `},
		{"a larger pool", func(t *testing.T, n *registry.Network) { n.Plan = agenttest.Plan(t, "10.5.0.0/21") }, false,
			`recorder {"colour":"red"} [10.5.0.0/21]: KEPT <- `},
		{"IPv6 too", func(t *testing.T, n *registry.Network) { n.Plan = agenttest.Plan(t, "10.5.0.0/22", "fd00:5::/48") }, false,
			`recorder {"colour":"red"} [10.5.0.0/22 fd00:5::/48]: KEPT <- `},
		{"other options", func(t *testing.T, n *registry.Network) {
			n.Backend = agenttest.Backend(t, "recorder", `{"colour":"blue"}`)
		}, false,
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
					last := strings.NewReplacer("SUBNET", a.subnet().String(), "KEPT", subnet.String()).Replace(tt.want)
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

// TestFamilies: a host keeps its slot when an address family is added or IPv6 is removed, and keeps its datapath unless
// a pool is removed.
func TestFamilies(t *testing.T) {
	both, four, six := []string{"10.5.0.0/22", "fd00:5::/62"}, []string{"10.5.0.0/22"}, []string{"fd00:5::/62"}
	for _, tt := range []struct {
		name     string
		from, to []string
		zero     bool
	}{
		{"IPv6 comes", four, both, false},
		{"IPv6 goes", both, four, true},
		{"IPv4 comes before IPv6", six, both, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newHost(t, memory.New(), "a")
			a.config.Networks[0].Pools = nil
			for _, p := range tt.from {
				a.config.Networks[0].Pools = append(a.config.Networks[0].Pools, config.Pool{Prefix: netip.MustParsePrefix(p)})
			}
			a.start().ready()
			r := mustRunner(t, a)
			before, _ := r.Lease()
			n := a.define(func(n *registry.Network) { n.Plan = agenttest.Plan(t, tt.to...) })
			eventually(t, func() error {
				now, _ := r.Lease()
				if now.Slot != before.Slot || len(now.Subnets) != len(tt.to) || r.Status().Definition.ModifyIndex != n.ModifyIndex {
					return fmt.Errorf("was %+v, is %+v", before.Subnets, now.Subnets)
				}
				if got := a.recorder.last(); got != now.Subnet().String()+" <- " {
					return errors.New(got)
				}
				return nil
			})
			if zero := slices.Contains(a.recorder.all(), "zero"); zero != tt.zero {
				t.Errorf("taken down: %t, want %t", zero, tt.zero)
			}
			if keys := a.store.Keys(memory.Prefix + "/leases/n/"); len(keys) != 2 {
				t.Errorf("leases %v", keys)
			}
		})
	}
}

// TestReloadKeepsTheBackend: a reload leaves the backend open, so that a forwarder in it does not stop.
func TestReloadKeepsTheBackend(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	subnet := a.subnet()
	for _, masq := range []bool{true, false} {
		c := a.config
		c.Networks = slices.Clone(c.Networks)
		c.Networks[0].IPMasq = masq
		must(t, a.agent.Reload(context.Background(), c))
		a.ready()
		eventually(t, func() error {
			data, err := os.ReadFile(c.Networks[0].SubnetFile)
			if err == nil && !strings.Contains(string(data), fmt.Sprintf("LENO_IPMASQ=%t", masq)) {
				err = fmt.Errorf("%s", data)
			}
			return err
		})
	}
	if built, open := a.recorder.open(); built != 1 || open != 1 {
		t.Errorf("%d backends built, %d open", built, open)
	}
	if diff := cmp.Diff([]string{subnet.String() + " <- "}, a.recorder.all()); diff != "" {
		t.Error(diff)
	}
	must(t, a.stop())
	if _, open := a.recorder.open(); open != 0 {
		t.Error("the backend was not closed")
	}
}

// TestPlanChanged: a host gives up a subnet that is no longer part of the plan, because the subnet would block others
// for ever.
func TestPlanChanged(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			a := newHost(t, memory.New(), "a").start()
			a.ready()
			before, addrs := a.subnet(), a.place.Addrs
			if restart {
				must(t, a.stop())
			}
			a.move(nil, errors.New("no route")) // makes the host wait between the old lease and the new one
			a.define(func(n *registry.Network) {
				plan, err := registry.Plan{{Prefix: n.Plan[0].Prefix, SubnetLen: 26}}.Normalize()
				must(t, err)
				n.Plan = plan
			})
			if restart {
				a.start()
			}
			a.check(health.Underlay, api.Critical, "no route")
			if _, held := mustRunner(t, a).Lease(); held {
				t.Error("the old lease counts as held")
			}
			a.move(addrs, nil)
			eventually(t, func() error {
				if now := a.subnet(); now.Bits() != 26 || a.recorder.last() != now.String()+" <- " {
					return fmt.Errorf("%s, applied %s", now, a.recorder.last())
				}
				return nil
			})
			a.check(health.Lease, api.Passing, a.subnet().String())
			if keys := a.store.Keys(memory.Prefix + "/leases/n/1"); len(keys) != 1 || keys[0] == leaseKey(before) {
				t.Errorf("leases %v", keys)
			}
		})
	}
}

// TestPeersOfAnOldPlan: peers with subnets of an old plan are not applied under the new one.
func TestPeersOfAnOldPlan(t *testing.T) {
	store := memory.New()
	a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
	a.applies(fmt.Sprintf("%s <- b@%s", a.subnet(), b.subnet()))
	a.ready()
	must(t, b.stop())
	a.registry.SetOne("WatchLeases", registry.ErrUnavailable)
	a.define(func(n *registry.Network) { n.Plan = agenttest.Plan(t, "10.6.0.0/22") })
	eventually(t, func() error {
		if got := mustRunner(t, a).Status().Local.State; got != "waiting for the leases of the other hosts" {
			return errors.New(got)
		}
		return nil
	})
	a.applies("zero")
	a.registry.SetOne("WatchLeases", nil)
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

// TestBackendIsKept: a backend stays open when something changes that it was not built from.
func TestBackendIsKept(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	subnet := a.subnet()
	n := a.define(func(n *registry.Network) { n.Plan[0].Min = netip.MustParseAddr("10.5.0.0") })
	eventually(t, func() error {
		if v := mustRunner(t, a).Status(); v.Definition.ModifyIndex != n.ModifyIndex || v.Local.State != "running" {
			return fmt.Errorf("%d, %s", v.Definition.ModifyIndex, v.Local.State)
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
	a.check(health.Underlay, api.Warning, "keeping eth0", "no route")
	a.more("applies", tries, func() int { return len(a.recorder.tries()) })
	a.recorder.mu.Lock()
	last := a.recorder.states[len(a.recorder.states)-1]
	a.recorder.mu.Unlock()
	if last.Underlay.Interface != "eth0" || last.MTU != 1450 || last.Subnets[0] != subnet {
		t.Errorf("%+v", last)
	}
	if got := a.registry.Claimed(); got.MTU != 1450 || got.PublicIPs[0] != addrs[0] {
		t.Errorf("claims %+v", got)
	}
	a.move(addrs, nil)
	a.kick()
	a.check(health.Underlay, api.Passing, "eth0")
}

func TestReadyComesAfterTheFiles(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	path := a.config.Networks[0].SubnetFile
	must(t, os.MkdirAll(path+"/x", 0o755))
	a.start()
	a.check(health.SubnetFile, api.Critical)
	if a.agent.Ready() {
		t.Error("ready without a subnet file")
	}
	eventually(t, func() error {
		if len(a.wall.names()) == 0 {
			return errors.New("the firewall waits for the file")
		}
		return nil
	})
	must(t, os.RemoveAll(path))
	a.ready()
	a.check(health.SubnetFile, api.Passing, path)
}

// TestFailingApplySlowsDown: pauses between failing applies grow, although the half-done writes of an apply are changes
// of the kernel's tables, too, and wake the agent.
func TestFailingApplySlowsDown(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	a.check(health.Snapshot, api.Passing)
	began := len(a.recorder.tries())
	a.recorder.setFail(errors.New("no such device"))
	a.recorder.hook(func(backend.State) { a.kick() })
	a.kick()
	wantGrowing(t, "failing applies", 2*retry.FirstPause-50*time.Millisecond, func() []time.Time { return a.recorder.tries()[began:] })
}

// TestHealingSlowsDown: pauses grow while another program undoes the repairs again and again.
func TestHealingSlowsDown(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	began := len(a.recorder.tries())
	a.recorder.setReport(backend.Report{Writes: 1, Healed: []backend.Repair{{Fault: "device was deleted"}}})
	a.recorder.hook(func(backend.State) { a.kick() })
	a.kick()
	wantGrowing(t, "healing applies", 2*retry.FirstPause-50*time.Millisecond, func() []time.Time { return a.recorder.tries()[began:] })
	a.recorder.setReport(backend.Report{})
	a.recorder.hook(nil)
	a.check(health.Routes, api.Passing)
}

// TestUnderlayDown: a host keeps its addresses while the interface is down, although the kernel removes some of them
// then. The host reports it in its health, and does not claim its lease again.
func TestUnderlayDown(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	addrs, claims := a.place.Addrs, len(a.registry.At("Acquire"))
	down := func(is bool, addrs []netip.Addr) {
		a.mu.Lock()
		a.place.Down, a.place.Addrs = is, addrs
		a.mu.Unlock()
		a.kick()
	}
	down(true, []netip.Addr{netip.MustParseAddr("2001:db8::1")})
	a.check(health.Underlay, api.Warning, "keeping eth0", "eth0 is down")
	down(false, addrs)
	a.check(health.Underlay, api.Passing, "eth0")
	for _, applied := range a.recorder.made() {
		if !slices.Equal(applied.state.Underlay.Addrs, addrs) {
			t.Errorf("the datapath used the addresses %v", applied.state.Underlay.Addrs)
		}
	}
	if n := len(a.registry.At("Acquire")); n != claims {
		t.Errorf("the lease was claimed %d times more", n-claims)
	}
}

func TestSubnetFileWithoutMTU(t *testing.T) {
	plan, subnets := agenttest.Plan(t, "10.5.0.0/22"), []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}
	file := func(mtu int, masq bool) string {
		return string(state.WithoutMTU(state.FormatSubnetFile(plan, subnets, mtu, masq)))
	}
	if file(1450, true) != file(1400, true) || file(1450, true) == file(1450, false) || strings.Contains(file(1450, true), "MTU") {
		t.Errorf("%q", file(1450, true))
	}
}

// TestHealthBeforeTheDatapath: a host that holds its lease is not healthy before its first containers can be started.
func TestHealthBeforeTheDatapath(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	seen := make(chan api.Health, 1)
	a.recorder.hook(func(backend.State) {
		now, _ := a.agent.env.Reports.Health.Report()
		select {
		case seen <- now:
		default: // not the first pass
		}
	})
	a.start()
	h := <-seen
	if i := slices.IndexFunc(h.Networks, func(n api.NetworkHealth) bool { return n.Network == "n" }); h.Status != api.Critical || i < 0 || h.Networks[i].Ready {
		t.Errorf("health at the first pass over the datapath: %+v", h)
	}
	a.ready()
	eventually(t, func() error {
		if code, h := a.health(); code != http.StatusOK {
			return fmt.Errorf("%+v", h)
		}
		return nil
	})
}
