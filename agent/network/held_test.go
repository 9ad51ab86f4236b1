package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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

// TestStoreEmptied: hosts keep their subnets and routes when the store is emptied, and put everything back.
func TestStoreEmptied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a, b := newMember(t, store, "a").start(), newMember(t, store, "b").start()
		subnet, want := a.subnet(), a.with(b)
		a.applies(want)
		a.ready()
		b.ready()
		for _, m := range []*member{a, b} { // neither repairs the store before the checks below
			m.registry.SetOne("PutNetwork", registry.ErrUnavailable)
			m.registry.SetOne("Acquire", registry.ErrUnavailable)
		}
		empty(store)
		a.check(health.Lease, api.Warning, subnet.String())
		a.check(health.Snapshot, api.Warning, "peers keep their routes")
		tries := a.kernel.tries()
		a.kick()
		a.more("applies", tries, a.kernel.tries)
		a.applies(want)
		for _, m := range []*member{a, b} {
			m.registry.SetOne("PutNetwork", nil)
			m.registry.SetOne("Acquire", nil)
		}
		a.check(health.Lease, api.Passing, subnet.String())
		b.check(health.Lease, api.Passing, b.subnet().String())
		for _, key := range []string{leaseKey(subnet), leaseKey(b.subnet())} {
			if _, session, ok := store.Get(key); !ok || session == "" {
				t.Errorf("%s was not put back", key)
			}
		}
		// Both hosts fail once more until the first of them has put the network back.
		agenttest.Eventually(t, func() error {
			if _, err := store.Client().Network(t.Context(), "n"); err == nil {
				return nil
			}
			store.Delete(leaseKey(subnet))
			return errors.New("the network was not put back")
		})
		a.applies(want)
		// The next process knows the lease as it is now.
		agenttest.Eventually(t, func() error {
			saved, err := state.Load(a.config.DataDir, "n")
			now, _ := a.run.Lease()
			if err != nil || saved.Session == "" || saved.Session != now.Session || len(saved.Pools) != 1 || saved.Backend.Type != "recorder" {
				return fmt.Errorf("saved %+v, %v", saved, err)
			}
			return nil
		})
		for _, state := range a.kernel.states() {
			if !strings.HasPrefix(state, subnet.String()) {
				t.Errorf("state %q was applied after the store was emptied", state)
			}
		}
	})
}

// TestRenewalGoesOn: a host renews its lease whatever its network waits for.
func TestRenewalGoesOn(t *testing.T) {
	renews := func(a *member) {
		a.t.Helper()
		count := func() int { return a.registry.Count("own Renew") }
		a.more("renewals", count()+1, count)
	}
	simulated(t, "unknown backend", func(t *testing.T) {
		a := newMember(t, memory.New(), "a").start()
		a.ready()
		subnet := a.subnet()
		a.define(func(n *registry.Network) { n.Backend = agenttest.Backend(t, "pigeon", "") })
		a.check(health.Network, api.Warning, `no backend "pigeon"`)
		renews(a)
		a.define(func(n *registry.Network) { n.Backend = agenttest.Backend(t, "recorder", "") })
		a.check(health.Network, api.Passing)
		a.applies(subnet.String() + " <- ")
	})
	simulated(t, "claim refused", func(t *testing.T) {
		store := memory.New()
		a, b := newMember(t, store, "a").start(), newMember(t, store, "b").start()
		a.ready()
		b.ready()
		a.move(b.addrs, nil)
		a.check(health.Conflict, api.Critical, `"b"`, "192.0.2.98")
		a.check(health.Lease, api.Warning, "same public address")
		renews(a)
		a.move(a.addrs, nil)
		a.check(health.Conflict, api.Passing)
		a.check(health.Lease, api.Passing)
	})
}

// TestStateAfterAnUnchangedLease: a host that waited for its lease, and got it back as it was, says at once that it
// runs. Another claim than before need not lead to another record.
func TestStateAfterAnUnchangedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a").start()
		a.ready()
		state := func(want string) {
			t.Helper()
			agenttest.Eventually(t, func() error {
				if got := a.run.Status().Local.State; !strings.Contains(got, want) {
					return fmt.Errorf("state %q, want %q", got, want)
				}
				return nil
			})
		}
		state("running")
		tries := a.kernel.tries()
		a.registry.SetOne("Acquire", registry.ErrUnavailable)
		a.mu.Lock()
		a.device = 9 // the same addresses on a device that was created again
		a.mu.Unlock()
		a.kick()
		a.more("passes", tries, a.kernel.tries)
		// The pass that follows the change of the kernel says that the network runs, and the next claim that it waits.
		claims := func() int { return a.registry.Count("own Acquire") }
		a.more("claims", claims()+1, claims)
		state("waiting for a lease")
		a.registry.SetOne("Acquire", nil)
		began := time.Now()
		state("running")
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("took %s: the next tick has said it", took)
		}
	})
}

// TestRestartWhileTheStoreIsFilled: a host starts again before every host has written its lease into a store that was
// emptied. The peers that the kernel knows stay until the store has settled.
func TestRestartWhileTheStoreIsFilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a, b, c := newMember(t, store, "a"), newMember(t, store, "b").start(), newMember(t, store, "c").start()
		a.config.Lease.TTL, a.config.Lease.RenewMargin = 2*time.Second, 1900*time.Millisecond
		a.start()
		b.ready()
		c.ready()
		want, without := a.with(b, c), a.with(b)
		a.applies(want)
		a.stop()
		c.stop()
		store.Delete(leaseKey(c.subnet()))
		tries := a.kernel.tries()
		a.start().ready()
		a.more("applies", tries, a.kernel.tries)
		a.applies(want)
		a.applies(without)
		states := a.kernel.states()
		if got := states[slices.Index(states, want):]; !slices.Equal(got, []string{want, without}) {
			t.Errorf("applied %q", got)
		}

		// After a release, nothing is remembered.
		must(t, a.run.Release(t.Context(), a.registry.As("")))
		a.applies("zero")
		agenttest.Eventually(t, func() error {
			if exists(state.PeersPath(a.config.DataDir, "n")) {
				return errors.New("the peers are still remembered")
			}
			return nil
		})
	})
}

// TestLostBetweenTwoProcesses: a runner that is configured to end when its host loses its subnet does so once, even if
// the subnet was lost while no process ran.
func TestLostBetweenTwoProcesses(t *testing.T) {
	revoked := func(a *member, subnet netip.Prefix) {
		must(a.t, a.store.Client().Revoke(a.t.Context(), "n", subnet))
	}
	known := func(a *member, subnet netip.Prefix) { // the former process had noticed the revocation
		revoked(a, subnet)
		a.changeState(func(s *state.Network) { s.Revoked = subnet })
	}
	taken := func(a *member, subnet netip.Prefix) {
		client, n := a.store.Client(), a.inStore()
		lease, _, err := client.WatchLease(a.t.Context(), n, subnet, 0)
		must(a.t, err)
		must(a.t, client.Release(context.Background(), lease))
		lease, err = client.Acquire(a.t.Context(), n, registry.Claim{Node: "c", NodeID: "id-c",
			PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.9")},
			MTU:       1450, Backend: n.Backend, TTL: time.Minute, Hold: time.Hour, Prefer: subnet})
		if must(a.t, err); lease.Subnet() != subnet {
			a.t.Fatalf("it took %s", lease.Subnet())
		}
	}
	waits := func(subnet netip.Prefix) datapath.KernelState { return waiting(subnet) }
	alone := func(netip.Prefix) datapath.KernelState { return datapath.KernelState{Routes: 1} }
	for _, tt := range []struct {
		name    string
		remains func(subnet netip.Prefix) datapath.KernelState
		lose    func(a *member, subnet netip.Prefix)
		exits   bool
	}{
		{"revoked, a datapath was resumed", waits, revoked, true},
		{"revoked, a datapath works by itself", alone, revoked, true},
		{"revoked, which the process before knew", waits, known, true},
		{"revoked, after a boot", func(netip.Prefix) datapath.KernelState { return datapath.KernelState{} }, revoked, false},
		{"taken, a datapath was resumed", waits, taken, true},
		{"taken, a datapath works by itself", alone, taken, true},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			a, _, subnet, _ := pair(t)
			a.config.Lease.OnLost = config.OnLostExit
			a.remains = tt.remains(subnet)
			tt.lose(a, subnet)
			a.start()
			if tt.exits {
				var lost *lease.LostError
				if err := <-a.ended; !errors.As(err, &lost) || lost.Old != subnet.String() || lost.New == lost.Old {
					t.Fatalf("%v", err)
				}
				a.stop()
				a.start()
			}
			a.ready()
			if now := a.subnet(); now == subnet {
				t.Errorf("still on %s", now)
			}
			a.stop()
			if err := <-a.ended; err != nil {
				t.Errorf("it ended again: %v", err)
			}
		})
	}
}
