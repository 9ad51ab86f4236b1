package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
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
		{"a larger range", func(t *testing.T, n *registry.Network) { n.Plan[0].Min = netip.MustParseAddr("10.5.0.0") }, false,
			`recorder {"colour":"red"} [10.5.0.0/22]: KEPT <- `},
	} {
		for _, restart := range []bool{false, true} {
			simulated(t, fmt.Sprintf("%s, restart %t", tt.name, restart), func(t *testing.T) {
				a := newMember(t, memory.New(), "a")
				a.config.Networks[0].Backend.Options = []byte(`{"colour":"red"}`)
				a.start().ready()
				subnet := a.subnet()
				a.applies(subnet.String() + " <- ")
				if restart {
					a.stop()
				}
				defined := a.define(func(n *registry.Network) { tt.change(t, n) })
				if restart {
					a.start()
				}
				want := []string{old + subnet.String() + " <- "}
				if tt.retired {
					want = append(want, old+"zero")
				}
				agenttest.Eventually(t, func() error {
					story := a.kernel.story()
					last := strings.NewReplacer("SUBNET", a.subnet().String(), "KEPT", subnet.String()).Replace(tt.want)
					if story[len(story)-1] != last {
						return fmt.Errorf("%q", story)
					}
					if diff := cmp.Diff(slices.Compact(append(want[:len(want):len(want)], last)), story); diff != "" {
						return errors.New(diff)
					}
					if s := a.run.Status(); s.Definition.ModifyIndex != defined.ModifyIndex || s.Local.State != "running" {
						return fmt.Errorf("version %d is in force, the network is %s", s.Definition.ModifyIndex, s.Local.State)
					}
					return nil
				})
				built, open := a.kernel.backends()
				if open != 1 || tt.name == "a larger range" && !restart && built != 1 {
					t.Errorf("%d backends were built, %d are open", built, open)
				}
				a.stop()
				if built, open := a.kernel.backends(); open != 0 {
					t.Errorf("%d of %d backends were not closed", open, built)
				}
				if keys := a.store.Keys(memory.Prefix + "/leases/n/1"); len(keys) != 1 {
					t.Errorf("leases %v", keys)
				}
			})
		}
	}
}

// TestDefinitionInForce: a host shows the version of the definition that its datapath was made from. It becomes the
// version in the store once the datapath could be changed.
func TestDefinitionInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a").start()
		a.ready()
		shows := func(adopted, inForce registry.Network) {
			t.Helper()
			agenttest.Eventually(t, func() error {
				if s := a.run.Status(); s.Definition.ModifyIndex != adopted.ModifyIndex || s.Local.ModifyIndex != inForce.ModifyIndex {
					return fmt.Errorf("version %d, %d in force, want %d, %d", s.Definition.ModifyIndex, s.Local.ModifyIndex,
						adopted.ModifyIndex, inForce.ModifyIndex)
				}
				return nil
			})
		}
		first := a.inStore()
		shows(first, first)
		a.kernel.setFail(errors.New("no luck"))
		second := a.define(func(n *registry.Network) { n.Backend = agenttest.Backend(t, "recorder", `{"colour":"blue"}`) })
		shows(second, first)
		a.kernel.setFail(nil)
		shows(second, second)
		if differs := a.run.Status().Local.Differs; len(differs) != 1 || !strings.Contains(differs[0], "blue") {
			t.Errorf("the difference from the block is not shown: %q", differs)
		}
		value, _, _ := a.store.Get(networkKey)
		a.store.Put(networkKey, append(value, '\n')) // as an operator may do by hand
		same := a.inStore()
		if same.ModifyIndex == second.ModifyIndex {
			t.Fatal("not written again")
		}
		shows(same, same)
	})
}

// TestFamilies: a host keeps its slot and its datapath when an address family is added or IPv6 is removed.
func TestFamilies(t *testing.T) {
	both, four, six := []string{"10.5.0.0/22", "fd00:5::/62"}, []string{"10.5.0.0/22"}, []string{"fd00:5::/62"}
	for _, tt := range []struct {
		name     string
		from, to []string
	}{
		{"IPv6 comes", four, both},
		{"IPv6 goes", both, four},
		{"IPv4 comes before IPv6", six, both},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			a := newMember(t, memory.New(), "a")
			a.config.Networks[0].Pools = nil
			for _, p := range tt.from {
				a.config.Networks[0].Pools = append(a.config.Networks[0].Pools, config.Pool{Prefix: netip.MustParsePrefix(p)})
			}
			a.start().ready()
			r := a.run
			before, _ := r.Lease()
			n := a.define(func(n *registry.Network) { n.Plan = agenttest.Plan(t, tt.to...) })
			agenttest.Eventually(t, func() error {
				now, _ := r.Lease()
				if now.Slot != before.Slot || len(now.Subnets) != len(tt.to) || r.Status().Definition.ModifyIndex != n.ModifyIndex {
					return fmt.Errorf("was %+v, is %+v", before.Subnets, now.Subnets)
				}
				if got := a.kernel.last(); got != now.Subnet().String()+" <- " {
					return errors.New(got)
				}
				return nil
			})
			if slices.Contains(a.kernel.states(), "zero") {
				t.Error("the datapath was removed")
			}
			if keys := a.store.Keys(memory.Prefix + "/leases/n/"); len(keys) != 2 {
				t.Errorf("leases %v", keys)
			}
		})
	}
}

// TestPlanChanged: a host gives up a subnet that is no longer part of the plan, because the subnet would block others
// for ever.
func TestPlanChanged(t *testing.T) {
	for _, restart := range []bool{false, true} {
		simulated(t, fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			a := newMember(t, memory.New(), "a").start()
			a.ready()
			before, addrs := a.subnet(), a.addrs
			if restart {
				a.stop()
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
			if _, held := a.run.Lease(); held {
				t.Error("the old lease counts as held")
			}
			a.move(addrs, nil)
			agenttest.Eventually(t, func() error {
				if now := a.subnet(); now.Bits() != 26 || a.kernel.last() != now.String()+" <- " {
					return fmt.Errorf("%s, applied %s", now, a.kernel.last())
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
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a, b := newMember(t, store, "a").start(), newMember(t, store, "b").start()
		a.applies(fmt.Sprintf("%s <- b@%s", a.subnet(), b.subnet()))
		a.ready()
		b.stop()
		a.registry.SetOne("WatchLeases", registry.ErrUnavailable)
		a.define(func(n *registry.Network) { n.Plan = agenttest.Plan(t, "10.6.0.0/22") })
		agenttest.Eventually(t, func() error {
			if got := a.run.Status().Local.State; got != "waiting for the leases of the other hosts" {
				return errors.New(got)
			}
			return nil
		})
		a.applies("zero")
		a.registry.SetOne("WatchLeases", nil)
		agenttest.Eventually(t, func() error {
			if got := a.kernel.last(); got != a.subnet().String()+" <- " || !strings.HasPrefix(got, "10.6.") {
				return errors.New(got)
			}
			return nil
		})
		for _, state := range a.kernel.states() {
			if strings.HasPrefix(state, "10.6.") && strings.Contains(state, "10.5.") {
				t.Errorf("state %q was applied", state)
			}
		}
	})
}
