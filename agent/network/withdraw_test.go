package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// rival takes a lease for a live host that has no runner. Its subnet must be the preferred one, unless that is invalid.
func (m *member) rival(name string, prefer netip.Prefix) registry.Lease {
	m.t.Helper()
	n := m.inStore()
	lease, err := m.store.Client().Acquire(context.Background(), n, registry.Claim{
		Node:      name,
		NodeID:    "id-" + name,
		PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, name[0]})},
		MTU:       1450,
		Backend:   n.Backend,
		Prefer:    prefer,
		TTL:       time.Hour,
		Hold:      time.Hour,
	})
	if must(m.t, err); prefer.IsValid() && lease.Subnet() != prefer {
		m.t.Fatalf("%s has %s, want %s", name, lease.Subnet(), prefer)
	}
	return lease
}

// loses takes the member's subnet away and gives it to the live host d.
func (m *member) loses(subnet netip.Prefix) registry.Lease {
	m.t.Helper()
	m.store.Delete(leaseKey(subnet))
	return m.rival("d", subnet)
}

// isReady reports whether the network is ready.
func (m *member) isReady() bool {
	report, _ := m.deps.Reports.Health.Report()
	return len(report.Networks) == 1 && report.Networks[0].Ready
}

// isWithdrawn waits until the member has withdrawn its subnet, and checks everything that belongs to that.
func (m *member) isWithdrawn(subnet netip.Prefix) {
	m.t.Helper()
	m.check(health.Lease, api.Critical, subnet.String(), `"d"`, "192.0.2.100", "id-d")
	m.applies("zero")
	m.guards("[10.5.0.0/22] true")
	m.check(health.Lease, api.Critical, `"d"`, "waiting for")
	if m.isReady() {
		m.t.Error("ready with another host's subnet")
	}
	if exists(m.config.Networks[0].SubnetFile) {
		m.t.Error("the subnet file is still there")
	}
	if lease, held := m.run.Lease(); held {
		m.t.Errorf("it shows the lease %s", lease.Subnet())
	}
}

// isBack waits until the member has a subnet and uses it in every respect.
func (m *member) isBack(subnet netip.Prefix, peers string) {
	m.t.Helper()
	m.ready()
	m.check(health.Lease, api.Passing, subnet.String())
	m.applies(subnet.String() + " <- " + peers)
	m.guards("[10.5.0.0/22] false")
	if got := state.SubnetInFile(m.config.Networks[0].SubnetFile); got != subnet {
		m.t.Errorf("the subnet file says %s, want %s", got, subnet)
	}
	if saved, err := state.Load(m.config.DataDir, "n"); err != nil || saved.Refused != nil || saved.Subnets[0] != subnet {
		m.t.Errorf("saved %+v, %v", saved, err)
	}
}

// TestSuperseded: a host whose subnet belongs to another live host withdraws it at once, although no other subnet is
// free or the store grants none. It recovers by itself when it gets a subnet, another one or its former one.
func TestSuperseded(t *testing.T) {
	for _, tt := range []struct {
		name string
		lose func(a *member, subnet netip.Prefix) // d has the subnet afterwards
	}{
		{"cut off for long", func(a *member, subnet netip.Prefix) {
			a.registry.Set(registry.ErrUnavailable)
			a.loses(subnet)
			time.Sleep(time.Minute)
			a.registry.Set(nil)
		}},
		{"seen by the watch", func(a *member, subnet netip.Prefix) { a.loses(subnet) }},
		{"no claim succeeds", func(a *member, subnet netip.Prefix) {
			a.registry.SetOne("Acquire", registry.ErrDenied)
			a.loses(subnet)
		}},
		{"revoked, and taken by another host later", func(a *member, subnet netip.Prefix) {
			a.registry.SetOne("Acquire", registry.ErrDenied)
			must(a.t, a.store.Client().Revoke(a.t.Context(), "n", subnet))
			a.check(health.Lease, api.Warning, subnet.String()+" was revoked, waiting for another lease")
			if time.Sleep(time.Minute); !a.isReady() || a.kernel.last() == "zero" {
				a.t.Errorf("withdrawn although no other host has it: %s", a.kernel.last())
			}
			a.loses(subnet)
		}},
		{"its session ends while the store grants nothing", func(a *member, subnet netip.Prefix) {
			a.registry.SetOne("Acquire", registry.ErrDenied)
			lease, _ := a.run.Lease()
			a.store.EndSession(lease.Session)
			a.check(health.Lease, api.Warning, "waiting for a lease")
			a.loses(subnet)
		}},
		{"its record is gone while the store grants nothing", func(a *member, subnet netip.Prefix) {
			a.registry.SetOne("Acquire", registry.ErrLeasesLost)
			a.store.Delete(leaseKey(subnet))
			a.check(health.Lease, api.Warning, "waiting for a lease")
			time.Sleep(time.Minute)
			a.loses(subnet)
		}},
	} {
		for _, back := range []string{"another slot", "the former slot"} {
			simulated(t, tt.name+", then "+back, func(t *testing.T) {
				store := memory.New()
				a, b := newMember(t, store, "a").start(), newMember(t, store, "b").start()
				a.ready()
				b.ready()
				subnet := a.subnet()
				a.applies(a.with(b))
				c := a.rival("c", netip.Prefix{})
				tt.lose(a, subnet)
				a.isWithdrawn(subnet)
				b.applies(b.subnet().String() + " <- " + inOrder("d", subnet, "c", c.Subnet()))
				a.kick()
				if time.Sleep(10 * time.Minute); a.kernel.last() != "zero" || a.isReady() {
					t.Errorf("in use again: %s", a.kernel.last())
				}
				a.isWithdrawn(subnet)
				a.registry.SetOne("Acquire", nil)
				d, _, err := store.Client().WatchLease(t.Context(), a.inStore(), subnet, 0)
				must(t, err)
				if back == "another slot" {
					must(t, store.Client().Release(t.Context(), c))
					a.isBack(c.Subnet(), inOrder("b", b.subnet(), "d", subnet))
					a.check(health.Lease, api.Passing, "it was "+subnet.String(), "must be restarted")
				} else {
					must(t, store.Client().Release(t.Context(), d))
					a.isBack(subnet, inOrder("b", b.subnet(), "c", c.Subnet()))
				}
			})
		}
	}
}

// inOrder returns two peers as states show them.
func inOrder(one string, ones netip.Prefix, other string, others netip.Prefix) string {
	first, second := fmt.Sprintf("%s@%s", one, ones), fmt.Sprintf("%s@%s", other, others)
	if others.Addr().Less(ones.Addr()) {
		first, second = second, first
	}
	return first + ", " + second
}

// TestSupersededWhileStopped: an agent starts when another live host has its subnet. It withdraws what an earlier
// process left, and neither a restart nor lease.start_from_saved brings the subnet back.
func TestSupersededWhileStopped(t *testing.T) {
	for _, resumed := range []bool{true, false} {
		simulated(t, fmt.Sprintf("resumed %t", resumed), func(t *testing.T) {
			a, b, subnet, _ := pair(t)
			a.config.Lease.StartFromSaved = true
			c := a.rival("c", netip.Prefix{})
			d := a.loses(subnet)
			if a.remains = waiting(subnet); !resumed {
				a.remains.Device = false // the kernel carries packets by itself, until the store is read
				a.changeState(func(s *state.Network) { s.Renewed = time.Now().Add(-a.config.Lease.Hold - time.Minute) })
			}
			a.start()
			a.isWithdrawn(subnet)

			a.stop()
			a.registry.Set(registry.ErrUnavailable)
			passes := len(a.kernel.applied())
			a.mu.Lock()
			a.guarded = "" // as the kernel has it, which another program may change
			a.mu.Unlock()
			a.start()
			a.check(health.Network, api.Critical, "waiting for the store")
			a.guards("[10.5.0.0/22] true")
			if a.isReady() || exists(a.config.Networks[0].SubnetFile) || len(a.kernel.applied()) != passes {
				t.Errorf("in use again: %s", a.kernel.last())
			}
			a.registry.Set(nil)
			a.check(health.Lease, api.Critical, "waiting for a lease")
			if a.isReady() || exists(a.config.Networks[0].SubnetFile) {
				t.Error("ready without a lease")
			}
			must(t, a.store.Client().Release(t.Context(), c))
			a.isBack(c.Subnet(), inOrder("b", b.subnet(), "d", d.Subnet()))
		})
	}
}

// TestSupersededDuringAPass: a pass over what an earlier process left, which ends after the store has said that another
// live host has the subnet, does not bring the subnet file back.
func TestSupersededDuringAPass(t *testing.T) {
	simulated(t, "", func(t *testing.T) {
		a, b, subnet, _ := pair(t)
		a.config.Lease.StartFromSaved = true
		c := a.rival("c", netip.Prefix{})
		d := a.loses(subnet)
		a.remains = waiting(subnet)
		a.registry.Set(registry.ErrUnavailable)
		a.renew()
		a.prepare()
		var blocks atomic.Bool
		release := make(chan struct{})
		a.deps.Datapaths.EnsureForwarding = func(netip.Prefix, []string, bool) (forwarding.State, error) {
			if blocks.Load() {
				<-release
			}
			return forwarding.State{}, nil
		}
		a.startAgain()
		a.check(health.Lease, api.Warning, subnet.String()+" stays in use as")
		blocks.Store(true)
		a.kick()
		time.Sleep(time.Minute)
		a.registry.Set(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		blocks.Store(false)
		close(release)
		a.isWithdrawn(subnet)
		must(t, a.store.Client().Release(t.Context(), c))
		a.isBack(c.Subnet(), inOrder("b", b.subnet(), "d", d.Subnet()))
	})
}

// TestWithdrawalIsRetried: a subnet whose datapath cannot be removed is withdrawn as far as possible, and completely as
// soon as it can be.
func TestWithdrawalIsRetried(t *testing.T) {
	simulated(t, "", func(t *testing.T) {
		a := newMember(t, memory.New(), "a").start()
		a.ready()
		subnet := a.subnet()
		a.rival("b", netip.Prefix{})
		a.rival("c", netip.Prefix{})
		a.kernel.setFail(errors.New("no such device"))
		a.loses(subnet)
		a.check(health.Routes, api.Critical, "no such device")
		a.check(health.Lease, api.Critical, `"d"`)
		if a.isReady() || exists(a.config.Networks[0].SubnetFile) {
			t.Error("ready with another host's subnet")
		}
		a.kernel.setFail(nil)
		a.isWithdrawn(subnet)
	})
}

// TestLeaveWithdrawn: a host that leaves the network leaves nothing behind of a subnet that it has withdrawn.
func TestLeaveWithdrawn(t *testing.T) {
	simulated(t, "", func(t *testing.T) {
		a := newMember(t, memory.New(), "a").start()
		a.ready()
		subnet := a.subnet()
		a.rival("b", netip.Prefix{})
		a.rival("c", netip.Prefix{})
		d := a.loses(subnet)
		a.isWithdrawn(subnet)
		a.run.SetEnding(Leave)
		a.stop()
		a.guards("[10.5.0.0/22] false")
		if exists(state.Path(a.config.DataDir, "n")) {
			t.Error("the state file stays")
		}
		now, _, err := a.store.Client().WatchLease(t.Context(), a.inStore(), subnet, 0)
		if err != nil || now.Session != d.Session {
			t.Errorf("the other host's lease is %+v, %v", now, err)
		}
	})
}

// TestNotRenewedForLongerThanHold: a host that could not renew its lease for longer than hold is not ready, because
// another host may have its subnet. Packets flow, and everything recovers once the lease is renewed.
func TestNotRenewedForLongerThanHold(t *testing.T) {
	for _, tt := range []struct {
		name string
		fail func(a *member)
	}{
		{"the store is away", func(a *member) { a.registry.Set(registry.ErrUnavailable) }},
		{"no rights", func(a *member) { a.registry.Set(registry.ErrDenied) }},
		{"the session ended, and no claim succeeds", func(a *member) {
			a.registry.SetOne("Acquire", registry.ErrDenied)
			lease, _ := a.run.Lease()
			a.store.EndSession(lease.Session)
		}},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			a := newMember(t, memory.New(), "a")
			a.config.Lease.Hold = 10 * time.Minute
			a.start().ready()
			subnet := a.subnet()
			applied := a.kernel.last()
			tt.fail(a)
			if time.Sleep(9 * time.Minute); !a.isReady() {
				t.Error("not ready within hold")
			}
			if time.Sleep(2 * time.Minute); a.isReady() {
				t.Error("ready after hold")
			}
			a.check(health.Lease, api.Critical, subnet.String(), "longer than lease.hold")
			if !exists(a.config.Networks[0].SubnetFile) || a.kernel.last() != applied {
				t.Errorf("withdrawn although no other host has it: %s", a.kernel.last())
			}
			a.registry.Set(nil)
			a.registry.SetOne("Acquire", nil)
			a.ready()
			a.check(health.Lease, api.Passing)
			if a.subnet() != subnet {
				t.Errorf("has %s, had %s", a.subnet(), subnet)
			}
		})
	}
}

// TestResumedForLongerThanHold: a host that uses what an earlier process left says so when another host may have the
// subnet by now, and is not ready any more if it has started its containers from that.
func TestResumedForLongerThanHold(t *testing.T) {
	for _, saved := range []bool{true, false} {
		simulated(t, fmt.Sprintf("start_from_saved %t", saved), func(t *testing.T) {
			a, _, subnet, applied := pair(t)
			a.config.Lease.StartFromSaved, a.config.Lease.Hold = saved, 10*time.Minute
			a.remains = waiting(subnet)
			a.registry.Set(registry.ErrUnavailable)
			a.start()
			a.applies(applied)
			a.check(health.Lease, api.Warning, subnet.String(), "stays in use as")
			if a.isReady() != saved {
				t.Errorf("ready is %t within hold", !saved)
			}
			if time.Sleep(a.config.Lease.Hold + time.Minute); a.isReady() {
				t.Error("ready after hold")
			}
			a.check(health.Lease, api.Critical, subnet.String(), "longer than lease.hold")
			a.registry.Set(nil)
			a.ready()
			a.check(health.Lease, api.Passing, subnet.String())
		})
	}
}

// contradicting is a store that grants every claim, and shows each lease as that of another host.
type contradicting struct {
	registry.Registry
	claims atomic.Int64
}

func (c *contradicting) Acquire(ctx context.Context, n registry.Network, claim registry.Claim) (registry.Lease, error) {
	if c.claims.Add(1) > 1000 {
		<-ctx.Done()
	}
	return c.Registry.Acquire(ctx, n, claim)
}

func (c *contradicting) WatchLease(ctx context.Context, n registry.Network, subnet netip.Prefix, after uint64) (
	registry.Lease, uint64, error) {
	l, index, err := c.Registry.WatchLease(ctx, n, subnet, after)
	l.Node, l.NodeID, l.Session, l.PublicIPs = "d", "id-d", "sd", []netip.Addr{netip.MustParseAddr("192.0.2.100")}
	return l, index, err
}

// TestSupersededAgainAndAgain: a host that is superseded each time that it gets a lease claims less and less often.
func TestSupersededAgainAndAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a")
		store := &contradicting{Registry: a.registry}
		a.deps.Store.Registry = store
		a.start()
		a.check(health.Lease, api.Critical, `"d"`)
		time.Sleep(time.Minute)
		if n := store.claims.Load(); n < 5 || n > 200 {
			t.Errorf("%d claims in a minute", n)
		}
	})
}

// stands waits until the kernel has these routes of guards and these routing rules, such as "[10.5.0.0/22]".
func (m *member) stands(refusals, rules string) {
	m.t.Helper()
	agenttest.Eventually(m.t, func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		text := func(table map[string]bool) string { return fmt.Sprint(slices.Sorted(maps.Keys(table))) }
		if text(m.refusals) != refusals || text(m.rules) != rules {
			return fmt.Errorf("refused: %s, want %s; rules: %s, want %s", text(m.refusals), refusals, text(m.rules), rules)
		}
		return nil
	})
}

// TestRefusalEnds: whatever pools a network had while its subnet was withdrawn, packets to all of them are refused, and
// nothing is left of that when this host has a subnet again or has left the network.
func TestRefusalEnds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		end   func(a *member)
		rules string // afterwards
	}{
		{"another subnet", func(a *member) {
			a.registry.SetOne("Acquire", nil)
			a.ready()
		}, "[10.6.0.0/22]"},
		{"another subnet, while a route changes", func(a *member) {
			a.kick()
			a.registry.SetOne("Acquire", nil)
			a.ready()
		}, "[10.6.0.0/22]"},
		{"another definition after a restart", func(a *member) {
			a.stop()
			a.define(func(n *registry.Network) { n.Plan = agenttest.Plan(a.t, "10.7.0.0/22") })
			a.registry.SetOne("Acquire", nil)
			a.start().ready()
		}, "[10.7.0.0/22]"},
		{"on_lost is exit", func(a *member) {
			a.registry.SetOne("Acquire", nil)
			if err := <-a.ended; !errors.As(err, new(*lease.LostError)) {
				a.t.Errorf("%v", err)
			}
			a.stop()
			a.start().ready()
		}, "[10.6.0.0/22]"},
		{"left", func(a *member) {
			a.run.SetEnding(Leave)
			a.stop()
		}, "[]"},
		{"left after a restart", func(a *member) {
			a.stop()
			a.renew()
			a.prepare()
			LeaveSaved(a.t.Context(), a.deps, a.config, a.config.Networks[0])
		}, "[]"},
		{"deleted", func(a *member) { a.remove() }, "[]"},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			a := newMember(t, memory.New(), "a")
			a.config.Networks[0].RulePriority = 99
			if a.config.Lease.OnLost = config.OnLostRenumber; tt.name == "on_lost is exit" {
				a.config.Lease.OnLost = config.OnLostExit
			}
			a.start().ready()
			a.stands("[]", "[10.5.0.0/22]")
			a.registry.SetOne("Acquire", registry.ErrUnavailable)
			a.define(func(n *registry.Network) { n.Plan = agenttest.Plan(t, "10.6.0.0/22") })
			a.stands("[10.5.0.0/22 10.6.0.0/22]", "[10.5.0.0/22 10.6.0.0/22]")
			tt.end(a)
			a.stands("[]", tt.rules)
		})
	}
}

// TestRulesStayWhileRefused: when packets are refused, there are routing rules for the pools all the time, or another
// program's rules would take the packets elsewhere.
func TestRulesStayWhileRefused(t *testing.T) {
	for name, change := range map[string]func(n *registry.Network){
		"withdrawn":     func(n *registry.Network) { n.Plan = agenttest.Plan(t, "10.6.0.0/22") },
		"not encrypted": func(n *registry.Network) { n.Encryption = registry.EncryptionRequired },
	} {
		simulated(t, name, func(t *testing.T) {
			a := newMember(t, memory.New(), "a")
			a.config.Networks[0].RulePriority = 99
			var made, removed atomic.Bool
			prefer := a.deps.Datapaths.PreferMain
			a.deps.Datapaths.PreferMain = func(ctx context.Context, o kernel.Owner, priority int, stood bool) ([]backend.Repair, error) {
				repaired, err := prefer(ctx, o, priority, stood)
				a.mu.Lock()
				defer a.mu.Unlock()
				is := a.rules["10.5.0.0/22"]
				removed.Store(removed.Load() || made.Load() && !is)
				made.Store(is)
				return repaired, err
			}
			a.start().ready()
			a.stands("[]", "[10.5.0.0/22]")
			a.registry.SetOne("Acquire", registry.ErrUnavailable)
			a.define(change)
			a.applies("zero")
			if removed.Load() {
				t.Error("the rule was removed")
			}
		})
	}
}

// TestWithdrawnPoolOfAnotherNetwork: what another network of this host uses by now stays, although this one had it and
// refused packets to it.
func TestWithdrawnPoolOfAnotherNetwork(t *testing.T) {
	for _, restart := range []bool{false, true} {
		simulated(t, fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			a := newMember(t, memory.New(), "a")
			a.config.Networks[0].RulePriority = 99
			a.start().ready()
			a.registry.SetOne("Acquire", registry.ErrUnavailable)
			a.define(func(n *registry.Network) { n.Plan = agenttest.Plan(t, "10.6.0.0/22") })
			a.stands("[10.5.0.0/22 10.6.0.0/22]", "[10.5.0.0/22 10.6.0.0/22]")
			if restart {
				a.stop()
				a.renew()
				a.prepare()
			}
			before := len(a.kernel.story())
			part := netip.MustParsePrefix("10.5.0.0/24")
			must(t, a.deps.Claims.take("other", hostClaim{pools: []netip.Prefix{part}}))
			if restart {
				a.startAgain()
			}
			a.kick()
			a.stands("[10.5.1.0/24 10.5.2.0/23 10.6.0.0/22]", "[10.5.1.0/24 10.5.2.0/23 10.6.0.0/22]")
			a.mu.Lock()
			a.refusals[part.String()], a.rules[part.String()] = true, true // of the other network
			a.mu.Unlock()
			a.registry.SetOne("Acquire", nil)
			a.ready()
			a.stands("[10.5.0.0/24]", "[10.5.0.0/24 10.6.0.0/22]")
			for _, line := range a.kernel.story()[before:] {
				if strings.Contains(line, "10.5.0.0/22") {
					t.Errorf("applied after the withdrawal: %s", line)
				}
			}
		})
	}
}

// TestPoolOfAWithdrawnNetwork: a network that gets the pool in which another one of this host has refused packets ends
// that, and does not touch it before.
func TestPoolOfAWithdrawnNetwork(t *testing.T) {
	simulated(t, "", func(t *testing.T) {
		a := newMember(t, memory.New(), "a")
		pool := a.config.Networks[0].Pools[0].Prefix
		must(t, a.deps.Claims.take("other", hostClaim{pools: []netip.Prefix{pool}}))
		a.refusals[pool.String()] = true
		a.start().check(health.Network, api.Critical, `of network "other"`)
		a.stands("[10.5.0.0/22]", "[]")
		a.deps.Claims.release("other")
		a.ready()
		a.stands("[]", "[]")
	})
}

// TestWithdrawnAlloc: where another program has the routes, packets are not refused, whatever backend comes next.
func TestWithdrawnAlloc(t *testing.T) {
	for _, tt := range []struct{ before, now, refused string }{
		{"recorder", "alloc", "[10.5.0.0/22]"},
		{"alloc", "recorder", "[10.6.0.0/22]"},
	} {
		simulated(t, "to "+tt.now, func(t *testing.T) {
			a := newMember(t, memory.New(), "a")
			a.config.Networks[0].Backend.Type = tt.before
			a.start().ready()
			a.registry.SetOne("Acquire", registry.ErrUnavailable)
			a.define(func(n *registry.Network) {
				n.Plan, n.Backend = agenttest.Plan(t, "10.6.0.0/22"), agenttest.Backend(t, tt.now, "")
			})
			a.stands(tt.refused, "[]")
			a.registry.SetOne("Acquire", nil)
			a.ready()
			a.stands("[]", "[]")
		})
	}
}
