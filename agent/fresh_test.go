package agent

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/internal/testkit/faulty"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestReadersElsewhere: reading a network in which this host takes no part costs the store one reading in each period
// of peers.RefreshEvery, however many clients ask. After a change that this agent makes, it is read again.
func TestReadersElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		counted := faulty.New(store.Client())
		a := &Agent{networks: &networks{}, elsewhere: &elsewhere{registry: counted}}
		n := registry.Network{Name: "other", Plan: agenttest.Plan(t, "10.9.0.0/22"), Backend: agenttest.Backend(t, "recorder", "")}
		must(t, store.Client().PutNetwork(t.Context(), n))
		lease, err := store.Client().Acquire(t.Context(), n, registry.Claim{Node: "b", NodeID: "id-b", MTU: 1450, Backend: n.Backend,
			PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}, TTL: time.Hour, Hold: time.Hour})
		must(t, err)
		read := func(want int) {
			t.Helper()
			set, _, err := a.elsewhere.leases(t.Context(), n, 0)
			if err != nil || len(set.Leases) != want {
				t.Fatalf("%+v, %v", set, err)
			}
		}
		for period := 1; period <= 3; period++ {
			for range 20 {
				read(1)
			}
			if got := counted.Count("own WatchLeases"); got != period {
				t.Errorf("%d readings in %d periods", got, period)
			}
			time.Sleep(peers.RefreshEvery + time.Millisecond)
		}
		read(1)
		must(t, store.Client().Revoke(t.Context(), "other", lease.Subnet()))
		a.invalidateLeases("other")
		read(0)
		time.Sleep(2 * idleElsewhere) // until the timer has ended
	})
}

// TestRefreshersAreForgotten: what was read of networks elsewhere is dropped when clients stop asking for it.
func TestRefreshersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := elsewhere{registry: memory.New().Client()}
		one := all.of("one")
		one.Refresh(t.Context(), registry.Network{Name: "one"})
		if all.of("two") == one || len(all.known) != 2 || all.of("one") != one {
			t.Errorf("%v", all.known)
		}
		time.Sleep(idleElsewhere / 2)
		one.Refresh(t.Context(), registry.Network{Name: "one"})
		known := func() int {
			synctest.Wait()
			all.mu.Lock()
			defer all.mu.Unlock()
			return len(all.known)
		}
		time.Sleep(idleElsewhere / 2)
		if n := known(); n != 1 || all.of("one") != one {
			t.Errorf("%d are known", n)
		}
		time.Sleep(2 * idleElsewhere)
		if n := known(); n != 0 {
			t.Errorf("%d are known", n)
		}
		if all.of("one") == one {
			t.Error("it was not forgotten")
		}
		time.Sleep(2 * idleElsewhere) // until the timer has ended
	})
}
