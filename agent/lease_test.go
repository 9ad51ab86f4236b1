package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// slow sets renewals so far apart that only the watch can notice a loss.
func (h *host) slow() *host {
	h.config.Lease.TTL, h.config.Lease.RenewMargin = 2*time.Hour, time.Hour
	return h
}

// empty deletes everything from the store, as restoring a backup may.
func empty(store *memory.Store) {
	for _, key := range store.Keys("") {
		store.Delete(key)
	}
}

func TestStoreEmptied(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a, b := newHost(t, store, "a"), newHost(t, store, "b")
		a.start()
		b.start()
		subnet := a.subnet()
		want := fmt.Sprintf("%s <- b@%s", subnet, b.subnet())
		a.applies(want)
		a.ready()
		b.ready()
		for _, h := range []*host{a, b} { // neither repairs the store before the checks below
			h.registry.SetOne("PutNetwork", registry.ErrUnavailable)
			h.registry.SetOne("Acquire", registry.ErrUnavailable)
		}
		empty(store)
		a.check(health.Lease, api.Warning, subnet.String())
		a.check(health.Snapshot, api.Warning, "peers keep their routes")
		tries := len(a.recorder.tries())
		a.kick()
		a.more("applies", tries, func() int { return len(a.recorder.tries()) })
		a.applies(want)
		for _, h := range []*host{a, b} {
			h.registry.SetOne("PutNetwork", nil)
			h.registry.SetOne("Acquire", nil)
		}
		a.check(health.Lease, api.Passing, subnet.String())
		b.check(health.Lease, api.Passing, b.subnet().String())
		for _, key := range []string{leaseKey(subnet), leaseKey(b.subnet())} {
			if _, session, ok := store.Get(key); !ok || session == "" {
				t.Errorf("%s was not put back", key)
			}
		}
		// Both hosts fail once more until the first of them has put the network back.
		eventually(t, func() error {
			if _, err := store.Client().Network(context.Background(), "n"); err == nil {
				return nil
			}
			store.Delete(leaseKey(subnet))
			return errors.New("the network was not put back")
		})
		a.applies(want)
		// The next process knows the lease as it is now.
		eventually(t, func() error {
			saved, err := state.Load(a.config.DataDir, "n")
			now, _ := mustRunner(t, a).Lease()
			if err != nil || saved.Session == "" || saved.Session != now.Session || len(saved.Pools) != 1 || saved.Backend.Type != "recorder" {
				return fmt.Errorf("saved %+v, %v", saved, err)
			}
			return nil
		})
		for _, state := range a.recorder.all() {
			if !strings.HasPrefix(state, subnet.String()) {
				t.Errorf("state %q was applied after the store was emptied", state)
			}
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRenewalGoesOn: a host renews its lease whatever its network waits for.
func TestRenewalGoesOn(t *testing.T) {
	subtest(t, "unknown backend", func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		a.ready()
		subnet := a.subnet()
		a.define(func(n *registry.Network) { n.Backend = agenttest.Backend(t, "pigeon", "") })
		a.check(health.Network, api.Warning, `no backend "pigeon"`)
		a.more("renewals", a.registry.Count("own Renew")+1, func() int { return a.registry.Count("own Renew") })
		a.define(func(n *registry.Network) { n.Backend = agenttest.Backend(t, "recorder", "") })
		a.check(health.Network, api.Passing)
		a.applies(subnet.String() + " <- ")
	})
	subtest(t, "claim refused", func(t *testing.T) {
		store := memory.New()
		a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
		a.ready()
		b.ready()
		a.move(b.place.Addrs, nil)
		a.kick()
		a.check(health.Conflict, api.Critical, `"b"`, "192.0.2.98")
		a.check(health.Lease, api.Warning, "same public address")
		a.more("renewals", a.registry.Count("own Renew")+1, func() int { return a.registry.Count("own Renew") })
		a.move([]netip.Addr{netip.MustParseAddr("192.0.2.97")}, nil)
		a.kick()
		a.check(health.Conflict, api.Passing)
		a.check(health.Lease, api.Passing)
	})
}

// TestStateAfterAnUnchangedLease: a host that waited for its lease, and got it back as it was, says at once that it
// runs. Another claim than before need not lead to another record.
func TestStateAfterAnUnchangedLease(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		a.subnet()
		a.ready()
		state := func(want string) {
			t.Helper()
			eventually(t, func() error {
				if got := mustRunner(t, a).Status().Local.State; !strings.Contains(got, want) {
					return fmt.Errorf("state %q, want %q", got, want)
				}
				return nil
			})
		}
		state("running")
		passes := len(a.recorder.tries())
		a.registry.SetOne("Acquire", registry.ErrUnavailable)
		a.mu.Lock()
		a.place.Index = 9 // the same addresses on a device that was created again
		a.mu.Unlock()
		a.kick()
		a.more("passes", passes, func() int { return len(a.recorder.tries()) })
		// The pass that follows the change of the kernel says that the network runs, and the next claim that it waits.
		claims := a.registry.Count("own Acquire")
		a.more("claims", claims+1, func() int { return a.registry.Count("own Acquire") })
		state("waiting for a lease")
		a.registry.SetOne("Acquire", nil)
		began := time.Now()
		state("running")
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("took %s: the next tick has said it", took)
		}
	})
}
