package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// pairOn returns two ready hosts that know each other: last has the subnet, and other has 10.5.1.0/24.
func pairOn(t *testing.T, pool, subnet string) (last, other *member) {
	t.Helper()
	store := memory.New()
	start := func(name, subnet string) *member {
		m := newMember(t, store, name)
		m.config.Networks[0].Pools[0].Prefix = netip.MustParsePrefix(pool)
		must(t, os.WriteFile(m.config.Networks[0].SubnetFile, []byte("LENO_SUBNET="+subnet+"\n"), 0o644))
		m.start().ready()
		if got := m.subnet().String(); got != subnet {
			t.Fatalf("%s has %s", name, got)
		}
		return m
	}
	other, last = start("a", "10.5.1.0/24"), start("b", subnet)
	last.applies(last.with(other))
	return last, other
}

// reaches waits until the member's datapath sends packets for a peer to this address.
func (m *member) reaches(peer *member, addr netip.Addr) {
	m.t.Helper()
	agenttest.Eventually(m.t, func() error {
		passes := m.kernel.applied()
		for _, p := range passes[len(passes)-1].Peers {
			if p.Node == peer.name && p.PublicIPs[0] == addr {
				return nil
			}
		}
		return fmt.Errorf("%s does not reach %s at %s: %+v", m.name, peer.name, addr, passes[len(passes)-1].Peers)
	})
}

// TestSubnetOutsideTheRange: a host whose subnet is in the pools but outside the range goes on with it in every respect
// until another one is free.
func TestSubnetOutsideTheRange(t *testing.T) {
	simulated(t, "", func(t *testing.T) {
		last, peer := pairOn(t, "10.5.0.0/22", "10.5.3.0/24")
		subnet := last.subnet()
		third := last.rival("c", netip.MustParsePrefix("10.5.2.0/24"))
		last.define(func(n *registry.Network) { n.Plan[0].Max = netip.MustParseAddr("10.5.2.0") })
		last.check(health.Lease, api.Warning, subnet.String()+": waiting for a lease", "network is full: 2 slots")
		if !last.isReady() {
			t.Error("not ready with a subnet of its own")
		}
		moved := netip.MustParseAddr("192.0.2.200")
		peer.move([]netip.Addr{moved}, nil)
		last.reaches(peer, moved)
		last.move([]netip.Addr{netip.MustParseAddr("192.0.2.201")}, nil)
		tries := last.kernel.tries()
		last.kick()
		last.more("passes", tries, last.kernel.tries)
		file := last.config.Networks[0].SubnetFile
		must(t, os.Remove(file))
		agenttest.Eventually(t, func() error {
			if !exists(file) {
				return errors.New("the subnet file is not there again")
			}
			return nil
		})
		time.Sleep(10 * time.Minute)
		last.check(health.Lease, api.Warning, subnet.String()+": waiting for a lease")
		must(t, last.store.Client().Release(t.Context(), third))
		last.isBack(third.Subnet(), "a@10.5.1.0/24")
		last.check(health.Lease, api.Passing, "it was "+subnet.String(), "must be restarted")
	})
}

// TestGoesOnWithoutTheStore: a host whose subnet stays a slot of a new definition needs no answer to a claim to use
// that.
func TestGoesOnWithoutTheStore(t *testing.T) {
	simulated(t, "", func(t *testing.T) {
		store := memory.New()
		a, b := newMember(t, store, "a").start(), newMember(t, store, "b").start()
		a.ready()
		b.ready()
		a.applies(a.with(b))
		subnet := a.subnet()
		a.registry.SetOne("Acquire", registry.ErrDenied)
		a.define(func(n *registry.Network) { n.Plan = agenttest.Plan(t, "10.4.0.0/15") })
		a.check(health.Lease, api.Warning, subnet.String()+": waiting for a lease")
		agenttest.Eventually(t, func() error {
			story := a.kernel.story()
			if last := story[len(story)-1]; last != "recorder {} [10.4.0.0/15]: "+a.with(b) {
				return errors.New(last)
			}
			return nil
		})
		moved := netip.MustParseAddr("192.0.2.200")
		b.move([]netip.Addr{moved}, nil)
		a.reaches(b, moved)
		if !a.isReady() || a.subnet() != subnet {
			t.Errorf("ready %t on %s, was on %s", a.isReady(), a.subnet(), subnet)
		}
		a.registry.SetOne("Acquire", nil)
		a.check(health.Lease, api.Passing, subnet.String())
	})
}

// TestGoesOnWithAnUnknownBackend: a host that does not know the backend of a new definition goes on with the one before,
// also after a restart: it follows its peers and keeps its lease.
func TestGoesOnWithAnUnknownBackend(t *testing.T) {
	for _, restart := range []bool{false, true} {
		simulated(t, fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			a, b := pairOn(t, "10.5.0.0/22", "10.5.3.0/24")
			lease, _ := a.run.Lease()
			before := a.store.Backup()
			a.define(func(n *registry.Network) { n.Backend = agenttest.Backend(t, "pigeon", "") })
			if restart {
				a.stop()
				a.remains = waiting(lease.Subnet())
				a.start().ready()
			}
			refused := func() {
				t.Helper()
				a.check(health.Network, api.Warning, `no backend "pigeon"`, "the one before stays in force")
			}
			refused()
			moved := netip.MustParseAddr("192.0.2.200")
			b.move([]netip.Addr{moved}, nil)
			a.reaches(b, moved)
			time.Sleep(10 * a.config.Lease.TTL)
			if now, held := a.run.Lease(); !held || now.Session != lease.Session || !a.isReady() {
				t.Errorf("ready %t with %+v, before %+v", a.isReady(), now, lease)
			}
			refused()
			if notes := a.run.Status().Local.Notes; len(notes) != 1 || notes[0] != a.reason(health.Network) {
				t.Errorf("shown with the network: %q", notes)
			}
			if restart { // the store has the definition again that the host has in force
				a.store.Restore(before)
				a.check(health.Network, api.Passing, "defined")
				if notes := a.run.Status().Local.Notes; len(notes) > 0 {
					t.Errorf("shown with the network: %q", notes)
				}
			}
			a.define(func(n *registry.Network) { n.Backend = agenttest.Backend(t, "recorder", `{"colour":"red"}`) })
			a.check(health.Network, api.Passing, "defined")
			agenttest.Eventually(t, func() error {
				story := a.kernel.story()
				if last := story[len(story)-1]; last != `recorder {"colour":"red"} [10.5.0.0/22]: `+a.with(b) {
					return errors.New(last)
				}
				return nil
			})
		})
	}
}

// TestUnknownBackendAtFirst: a host that knows no definition waits as long as it does not know the backend.
func TestUnknownBackendAtFirst(t *testing.T) {
	simulated(t, "", func(t *testing.T) {
		a := newMember(t, memory.New(), "a")
		a.put("10.5.0.0/22", "pigeon")
		a.start().check(health.Network, api.Critical, `no backend "pigeon"`)
		a.define(func(n *registry.Network) { n.Backend = agenttest.Backend(t, "recorder", "") })
		a.ready()
		a.check(health.Network, api.Passing, "defined")
	})
}

// isOut waits until the member cannot enter the network's definition, and checks everything that belongs to that.
func (m *member) isOut(check, why, refused string) {
	m.t.Helper()
	m.check(check, api.Critical, why)
	m.applies("zero")
	m.guards(refused + " true")
	if m.isReady() {
		m.t.Error("ready without a subnet")
	}
	if exists(m.config.Networks[0].SubnetFile) {
		m.t.Error("the subnet file is still there")
	}
	if lease, held := m.run.Lease(); held {
		m.t.Errorf("it shows the lease %s", lease.Subnet())
	}
}

// TestSubnetOutsideThePools: a host whose subnet is no slot of a new definition withdraws it, whether it gets another
// one or the store answers or not, and across restarts. It recovers by itself when it gets a subnet.
func TestSubnetOutsideThePools(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(last *member)
		why    string
		again  string // the check that is critical after a restart
	}{
		{"the network is full", func(*member) {}, "network is full: 1 slots", health.Lease},
		{"the old lease cannot be given up", func(last *member) { last.registry.SetOne("Release", registry.ErrUnavailable) },
			"10.5.5.0/24 is no subnet of the network any more: this host has withdrawn", health.Network},
		{"no claim is answered", func(last *member) { last.registry.SetOne("Acquire", registry.ErrUnavailable) }, "waiting for a lease", health.Lease},
		{"an earlier process had it", func(last *member) { last.stop() }, "network is full: 1 slots", health.Lease},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			last, other := pairOn(t, "10.5.0.0/21", "10.5.5.0/24")
			stopped := tt.name == "an earlier process had it"
			tt.before(last)
			last.define(func(n *registry.Network) {
				n.Plan = agenttest.Plan(t, "10.5.0.0/22")
				n.Plan[0].Max = n.Plan[0].Min
			})
			if stopped {
				last.remains = waiting(netip.MustParsePrefix("10.5.5.0/24"))
				last.start()
			}
			last.isOut(health.Lease, tt.why, "[10.5.0.0/21 10.5.0.0/22]")
			last.stop()
			last.mu.Lock()
			last.guarded = "" // as the kernel has it, which another program may change
			last.mu.Unlock()
			last.start()
			last.isOut(tt.again, "", "[10.5.0.0/21 10.5.0.0/22]")
			last.registry.SetOne("Release", nil)
			last.registry.SetOne("Acquire", nil)
			last.define(func(n *registry.Network) { n.Plan = agenttest.Plan(t, "10.5.0.0/21") })
			last.ready()
			last.check(health.Lease, api.Passing)
			last.applies(last.with(other))
			if saved, err := state.Load(last.config.DataDir, "n"); err != nil || saved.Refused != nil {
				t.Errorf("saved %+v, %v", saved, err)
			}
		})
	}
}

// TestPoolOfAnotherNetwork: a host that cannot enter a definition, because another network of this host has some of its
// addresses, is out of the network: for the other network, too, which may take what this one had. Packets to the
// addresses that only this network has are refused.
func TestPoolOfAnotherNetwork(t *testing.T) {
	for _, restart := range []bool{false, true} {
		simulated(t, fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			a := newMember(t, memory.New(), "a").start()
			a.ready()
			subnet := a.subnet()
			if restart {
				a.stop()
				a.remains = waiting(subnet)
			}
			other := func() {
				must(t, a.deps.Claims.take("other", hostClaim{pools: []netip.Prefix{netip.MustParsePrefix("10.6.0.0/16")}}))
			}
			if !restart {
				other()
			}
			a.define(func(n *registry.Network) { n.Plan = agenttest.Plan(t, "10.4.0.0/14") })
			if restart {
				a.deps.Claims = NewHostClaims()
				other()
				claims := a.deps.Claims
				a.renew()
				a.prepare()
				a.deps.Claims = claims
				a.startAgain()
			}
			a.isOut(health.Network, `its pool 10.4.0.0/14 overlaps 10.6.0.0/16 of network "other"`, "[10.4.0.0/15 10.7.0.0/16 10.5.0.0/22]")
			agenttest.Eventually(t, func() error {
				return a.deps.Claims.take("third", hostClaim{pools: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/22")}})
			})
			a.deps.Claims.release("third")
			a.deps.Claims.release("other")
			a.ready()
			a.check(health.Network, api.Passing, "defined")
			a.check(health.Lease, api.Passing, subnet.String())
			a.applies(subnet.String() + " <- ")
			a.guards("[10.4.0.0/14 10.5.0.0/22] false")
		})
	}
}

// TestPoolsMovedWhileStopped: a host whose subnet a definition excludes withdraws it only if its containers may use it.
// After a boot, nothing stands, and the host joins like a new one.
func TestPoolsMovedWhileStopped(t *testing.T) {
	unreadable := errors.New("dump interrupted")
	for _, tt := range []struct {
		name  string
		err   error // of ReadKernelState
		exits bool
	}{
		{"after a boot", nil, false},
		{"what stands is not known", unreadable, true},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			a, _, subnet, _ := pair(t)
			a.config.Lease.OnLost = config.OnLostExit
			a.define(func(n *registry.Network) { n.Plan = agenttest.Plan(t, "10.6.0.0/22") })
			a.renew()
			a.prepare()
			must(t, a.deps.Claims.take("other", hostClaim{pools: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/22")}}))
			a.deps.ReadKernelState = func(context.Context, string, []netip.Prefix) (datapath.KernelState, error) {
				return datapath.KernelState{}, tt.err
			}
			a.startAgain()
			if tt.exits {
				var lost *lease.LostError
				if err := <-a.ended; !errors.As(err, &lost) || lost.Old != subnet.String() {
					t.Errorf("%v", err)
				}
				return
			}
			a.ready()
			if _, _, found := a.store.Get(leaseKey(subnet)); found {
				t.Errorf("%s was not given up", subnet)
			}
			all, _, _ := a.deps.Reports.Events.After(0, "n")
			for _, e := range all {
				if e.Kind == api.EventLease && e.Severity == api.Critical {
					t.Errorf("event: %s", e.Message)
				}
			}
			// What the former process may have left does not include what another network has there now.
			if removed := `recorder {} [10.5.0.0/22] except [10.5.0.0/22]: zero`; !slices.Contains(a.kernel.story(), removed) {
				t.Errorf("%q", a.kernel.story())
			}
			a.stop()
			if err := <-a.ended; err != nil {
				t.Error(err)
			}
		})
	}
}
