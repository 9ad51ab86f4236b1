package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func TestAPIShowsALapseAtOnce(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
		a.ready()
		b.ready()
		a.applies(fmt.Sprintf("%s <- b@%s", a.subnet(), b.subnet()))
		lease, _ := mustRunner(t, b).Lease()
		must(t, b.stop())
		store.EndSession(lease.Session)
		if code, body := a.request("GET", "/v1/network/n/leases?memory=true", ""); code != http.StatusOK || !strings.Contains(body, lease.Subnet().String()) {
			t.Errorf("%d %s", code, body)
		}
		got, err := a.client.Lease(context.Background(), "n", lease.Subnet())
		if err != nil || got.Held {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// TestReadersElsewhere: reading a network in which this host takes no part costs the store one reading in each period
// of peers.RefreshEvery, however many clients ask. Changes made through this agent are shown at once.
func TestReadersElsewhere(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a := newHost(t, store, "a").start()
		a.ready()
		n := registry.Network{Name: "other", Plan: agenttest.Plan(t, "10.9.0.0/22"), Backend: agenttest.Backend(t, "recorder", "")}
		must(t, store.Client().PutNetwork(t.Context(), n))
		claim := registry.Claim{Node: "b", NodeID: "id-b", PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}, MTU: 1450,
			Backend: n.Backend, TTL: time.Minute, Hold: time.Hour}
		lease, err := store.Client().Acquire(t.Context(), n, claim)
		must(t, err)
		eventually(t, func() error { return errOf(a.client.Network(t.Context(), "other")) })
		before := a.registry.Count("own WatchLeases")
		for range 20 {
			list, err := a.client.Leases(t.Context(), "other")
			if err != nil || len(list.Leases) != 1 {
				t.Fatalf("%+v, %v", list, err)
			}
			if _, err := a.client.Lease(t.Context(), "other", lease.Subnet()); err != nil {
				t.Fatal(err)
			}
			if _, err := a.client.PlanNetwork(t.Context(), api.Network{Name: "other", Pools: []api.Pool{{Prefix: n.Plan[0].Prefix}}, Backend: n.Backend.Object}); err != nil {
				t.Fatal(err)
			}
		}
		if reads := a.registry.Count("own WatchLeases") - before; reads > 1+int(time.Since(a.agent.process.startedAt())/peers.RefreshEvery) {
			t.Errorf("%d readings for 60 requests", reads)
		}
		must(t, a.client.RevokeLease(t.Context(), "other", lease.Subnet()))
		if list, err := a.client.Leases(t.Context(), "other"); err != nil || len(list.Leases) != 0 {
			t.Errorf("after it was revoked: %+v, %v", list, err)
		}
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
