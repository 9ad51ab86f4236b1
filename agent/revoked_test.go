package agent

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
)

// TestLostBetweenTwoProcesses: an agent that is configured to end when its host loses its subnet does so once, even if
// the subnet was lost while no agent ran.
func TestLostBetweenTwoProcesses(t *testing.T) {
	ctx := context.Background()
	revoked := func(a *host, _ registry.Network, subnet netip.Prefix) {
		must(a.t, a.store.Client().Revoke(ctx, "n", subnet))
	}
	known := func(a *host, n registry.Network, subnet netip.Prefix) { // the former process had noticed the revocation
		revoked(a, n, subnet)
		s, err := state.Load(a.config.DataDir, "n")
		must(a.t, err)
		s.Revoked = subnet
		must(a.t, state.Save(a.config.DataDir, s))
	}
	taken := func(a *host, n registry.Network, subnet netip.Prefix) {
		client := a.store.Client()
		lease, _, err := client.WatchLease(ctx, n, subnet, 0)
		must(a.t, err)
		must(a.t, client.Release(ctx, lease))
		lease, err = client.Acquire(ctx, n, registry.Claim{Node: "c", NodeID: "id-c", PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.9")},
			MTU: 1450, Backend: n.Backend, TTL: time.Minute, Hold: time.Hour, Prefer: subnet})
		if must(a.t, err); lease.Subnet() != subnet {
			a.t.Fatalf("it took %s", lease.Subnet())
		}
	}
	alone := func(netip.Prefix) datapath.KernelState { return datapath.KernelState{Routes: 1} }
	for _, tt := range []struct {
		name    string
		remains func(subnet netip.Prefix) datapath.KernelState
		lose    func(a *host, n registry.Network, subnet netip.Prefix)
		exits   bool
	}{
		{"revoked, a datapath was resumed", waitingFor, revoked, true},
		{"revoked, a datapath works by itself", alone, revoked, true},
		{"revoked, which the process before knew", waitingFor, known, true},
		{"revoked, after a boot", func(netip.Prefix) datapath.KernelState { return datapath.KernelState{} }, revoked, false},
		{"taken, a datapath was resumed", waitingFor, taken, true},
		{"taken, a datapath works by itself", alone, taken, true},
	} {
		subtest(t, tt.name, func(t *testing.T) {
			a, _, subnet, _ := pair(t)
			a.config.Lease.OnLost = config.OnLostExit
			a.remains = tt.remains(subnet)
			n, err := a.store.Client().Network(ctx, "n")
			must(t, err)
			tt.lose(a, n, subnet)
			a.start()
			if tt.exits {
				var lost *lease.LostError
				if err := a.wait(); !errors.As(err, &lost) || lost.Old != subnet.String() || lost.New == lost.Old {
					t.Fatalf("%v", err)
				}
				a.start()
			}
			a.ready()
			if now := a.subnet(); now == subnet {
				t.Errorf("still on %s", now)
			}
		})
	}
}
