package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// movedFrom waits until the host has another subnet than the revoked one, and returns the new one.
func (h *host) movedFrom(revoked netip.Prefix) netip.Prefix {
	h.t.Helper()
	var now netip.Prefix
	eventually(h.t, func() error {
		if now = h.subnet(); now == revoked {
			return fmt.Errorf("%s is still on %s", h.name, revoked)
		}
		return nil
	})
	return now
}

// forgotten waits until the state file has the subnet and no revocation.
func (h *host) forgotten(subnet netip.Prefix) {
	h.t.Helper()
	eventually(h.t, func() error {
		saved, err := state.Load(h.config.DataDir, "n")
		if err != nil || saved.Revoked.IsValid() || len(saved.Subnets) == 0 || saved.Subnets[0] != subnet {
			return fmt.Errorf("state file: %+v, %v", saved, err)
		}
		return nil
	})
}

// TestRevoked: renewals are an hour apart, so only the watch can notice a revocation.
func TestRevoked(t *testing.T) {
	store := memory.New()
	a, b := newHost(t, store, "a").slow().start(), newHost(t, store, "b").slow().start()
	subnet := a.subnet()
	a.applies(fmt.Sprintf("%s <- b@%s", subnet, b.subnet()))
	b.applies(fmt.Sprintf("%s <- a@%s", b.subnet(), subnet))
	lease, _ := mustRunner(t, a).Lease()
	a.ready()
	must(t, b.client.RevokeLease(context.Background(), "n", subnet))
	now := a.movedFrom(subnet)
	a.applies(fmt.Sprintf("%s <- b@%s", now, b.subnet()))
	b.applies(fmt.Sprintf("%s <- a@%s", b.subnet(), now))
	a.check(health.Lease, api.Passing, now.String())
	if c := a.registry.Claimed(); c.Avoid != subnet || c.Session != lease.Session {
		t.Errorf("claimed %+v", c)
	}
	for _, state := range a.recorder.all() {
		if !strings.HasPrefix(state, subnet.String()) && !strings.HasPrefix(state, now.String()) {
			t.Errorf("state %q has neither the old nor the new subnet", state)
		}
	}
	a.forgotten(now)

	// Any host may take a revoked subnet, and is then a peer like others.
	c := newHost(t, store, "c").start()
	if got := c.subnet(); got != subnet {
		t.Errorf("the last host got %s, want %s", got, subnet)
	}
	c.ready()
	// A host whose subnet is revoked while no other one is free takes it again.
	states := len(c.recorder.all())
	before, _ := mustRunner(t, c).Lease()
	must(t, a.client.RevokeLease(context.Background(), "n", subnet))
	eventually(t, func() error {
		if now, _ := mustRunner(t, c).Lease(); now.CreateIndex == before.CreateIndex {
			return errors.New("not taken again")
		}
		return nil
	})
	if got := c.subnet(); got != subnet {
		t.Errorf("subnet %s of a full network was not taken again but %s", subnet, got)
	}
	c.check(health.Lease, api.Passing)
	if got := c.recorder.all(); got[len(got)-1][:len(subnet.String())] != subnet.String() || len(got) > states+1 {
		t.Errorf("the datapath was disturbed: %q", got)
	}
}

// TestRevokedButReserved: a host takes a revoked subnet again if the subnet is reserved for it.
func TestRevokedButReserved(t *testing.T) {
	a := newHost(t, memory.New(), "a").slow().start()
	a.ready()
	subnet := a.subnet()
	before, _ := mustRunner(t, a).Lease()
	ctx := context.Background()
	must(t, a.client.AddReservation(ctx, "n", api.Reservation{Subnet: subnet, Node: "a"}, false))
	must(t, a.client.RevokeLease(ctx, "n", subnet))
	eventually(t, func() error {
		if now, _ := mustRunner(t, a).Lease(); now.CreateIndex == before.CreateIndex {
			return errors.New("not taken again")
		}
		return nil
	})
	if got := a.subnet(); got != subnet {
		t.Errorf("subnet %s, want %s", got, subnet)
	}
	a.forgotten(subnet)
	if got := a.recorder.all(); len(got) != 1 {
		t.Errorf("the datapath was disturbed: %q", got)
	}
}

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
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
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
