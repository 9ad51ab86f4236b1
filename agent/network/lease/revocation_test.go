package lease

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// revoke revokes a subnet, as an operator does.
func (h *host) revoke(subnet netip.Prefix) {
	h.t.Helper()
	must(h.t, h.store.Client().Revoke(h.t.Context(), "n", subnet))
}

// movedFrom waits until the host holds another subnet, which the state file has without a revocation.
func (h *host) movedFrom(revoked netip.Prefix) netip.Prefix {
	h.t.Helper()
	h.eventually("not on "+revoked.String(), func() bool { return h.subnet() != revoked && h.subnet().IsValid() })
	now := h.held().Subnet()
	h.eventually("the state file knows", func() bool {
		saved, err := h.options.State.Load()
		return err == nil && !saved.Revoked.IsValid() && slices.Contains(saved.Subnets, now)
	})
	if h.keeper.Status().Revoked.IsValid() {
		h.t.Errorf("%s is still revoked", h.keeper.Status().Revoked)
	}
	return now
}

// TestRevoked: renewals are far apart, so only the watch can notice a revocation.
func TestRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").slow().start()
		lease := a.held()
		a.revoke(lease.Subnet())
		synctest.Wait()
		want := lease.Subnet().String() + ": " + lease.Subnet().String() + " was revoked, taking another subnet"
		if c := a.checked(health.Lease); c.Status != api.Warning || c.Reason != want {
			t.Errorf("%+v", c)
		}
		if got := a.keeper.Status().Revoked; got != lease.Subnet() {
			t.Errorf("revoked: %s", got)
		}
		now := a.movedFrom(lease.Subnet())
		if c := a.registry.Claimed(); c.Avoid != lease.Subnet() || c.Session != lease.Session {
			t.Errorf("claimed %+v", c)
		}
		// A host whose subnet is revoked while no other one is free takes it again.
		a.rival("b", netip.Prefix{})
		a.rival("c", netip.Prefix{})
		before := a.lease()
		a.revoke(now)
		a.eventually("it is taken again", func() bool { return a.lease().CreateIndex != before.CreateIndex })
		if again := a.held().Subnet(); again != now {
			t.Errorf("%s, before %s", again, now)
		}
		if !strings.Contains(a.log.String(), "the revoked subnet is taken again") {
			t.Errorf("log:\n%s", a.log)
		}
	})
}

// TestRevocationIsRemembered: a host remembers a revocation through failed attempts and across processes.
func TestRevocationIsRemembered(t *testing.T) {
	forget := func(h *host, subnet netip.Prefix) { // the store does this after a while
		h.store.Put(leaseKey(subnet), []byte("{"))
		h.store.Delete(leaseKey(subnet))
	}
	fail := func(h *host, err error, calls ...string) {
		for _, call := range calls {
			h.registry.SetOne(call, err)
		}
	}
	for _, tt := range []struct {
		name string
		run  func(h *host, subnet netip.Prefix)
	}{
		{"while claims fail", func(h *host, subnet netip.Prefix) {
			fail(h, registry.ErrUnavailable, "Acquire")
			h.revoke(subnet)
			h.check(health.Lease, api.Warning, subnet.String()+" was revoked, waiting for another lease: the store is")
			forget(h, subnet)
			fail(h, nil, "Acquire")
		}},
		{"across a restart", func(h *host, subnet netip.Prefix) {
			fail(h, registry.ErrUnavailable, "Acquire")
			h.revoke(subnet)
			h.check(health.Lease, api.Warning, subnet.String()+" was revoked, waiting for another lease")
			h.end()
			forget(h, subnet)
			h.build().start()
			h.check(health.Lease, api.Critical, subnet.String()+" was revoked, waiting for another lease")
			fail(h, nil, "Acquire")
		}},
		{"between two processes", func(h *host, subnet netip.Prefix) {
			h.end()
			h.revoke(subnet)
			h.build().start()
		}},
		{"in an outage", func(h *host, subnet netip.Prefix) {
			fail(h, registry.ErrUnavailable, "Acquire", "WatchLease", "Renew")
			h.revoke(subnet)
			time.Sleep(10 * time.Second)
			fail(h, nil, "Acquire", "WatchLease", "Renew")
		}},
		{"after its session had ended", func(h *host, subnet netip.Prefix) {
			fail(h, registry.ErrUnavailable, "Acquire", "WatchLease")
			h.store.EndSession(h.lease().Session)
			h.check(health.Lease, api.Warning, subnet.String(), "waiting for a lease")
			h.revoke(subnet)
			fail(h, nil, "Acquire", "WatchLease")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newHost(t, memory.New(), "a").start()
				subnet := a.held().Subnet()
				tt.run(a, subnet)
				a.movedFrom(subnet)
			})
		})
	}
}

// TestRevokedAndReserved: a host takes a revoked subnet again if the subnet is reserved for it, and moves to the one
// that was reserved for it while it had another.
func TestRevokedAndReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, same := range []bool{true, false} {
			a := newHost(t, memory.New(), "a").slow().start()
			before := a.held()
			n := a.network()
			kept := before.Slot
			if !same {
				kept = before.Slot%3 + 1
			}
			subnet := n.Plan.Subnets(kept)[0]
			r := registry.Reservation{Network: "n", Subnet: subnet, Slot: kept, Node: "a"}
			must(t, a.store.Client().AddReservation(t.Context(), n, r, false))
			a.revoke(before.Subnet())
			a.eventually("another record", func() bool { return a.lease().CreateIndex != before.CreateIndex })
			if now := a.held().Subnet(); now != subnet {
				t.Errorf("the same %t: on %s, reserved is %s", same, now, subnet)
			}
			if a.keeper.Status().Revoked.IsValid() {
				t.Error("still revoked")
			}
		}
	})
}

// TestAbsenceIsAskedOnce: a host asks once what became of its record. The question is costly, and all hosts ask it at
// the same time after the store was emptied.
func TestAbsenceIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").slow().start()
		subnet := a.held().Subnet()
		a.registry.SetOne("Acquire", registry.ErrUnavailable)
		asked, claims := len(a.registry.At("WatchLease")), len(a.registry.At("Acquire"))
		a.store.Delete(leaseKey(subnet))
		a.eventually("it is claimed", func() bool { return len(a.registry.At("Acquire")) > claims+2 })
		if n := len(a.registry.At("WatchLease")); n != asked {
			t.Errorf("asked %d times, %d before", n, asked)
		}
		a.registry.SetOne("Acquire", nil)
		a.held()
		// Once the lease is held again, the host asks again.
		a.registry.SetOne("Acquire", registry.ErrUnavailable)
		a.registry.SetOne("WatchLease", registry.ErrUnavailable)
		a.revoke(subnet)
		synctest.Wait() // the watch in the store has noticed
		a.keeper.revocation.revoked.Clear()
		a.registry.SetOne("WatchLease", nil)
		a.registry.SetOne("Acquire", nil)
		a.movedFrom(subnet)
	})
}

// TestRevocationInTheWatch: only a revocation from this host, or from a host that is not known, makes it take another
// subnet.
func TestRevocationInTheWatch(t *testing.T) {
	for _, tt := range []struct {
		nodeID string
		own    bool
	}{{"id-a", true}, {"", true}, {"id-b", false}} {
		synctest.Test(t, func(t *testing.T) {
			a := newHost(t, memory.New(), "a").slow()
			a.registry.SetOne("WatchLease", &registry.RevokedError{NodeID: tt.nodeID})
			lease, err := a.keeper.acquireOnce(t.Context(), a.network(), a.own())
			must(t, err)
			_, _, claimChanged := a.keeper.claim.Get()
			reason, err := a.keeper.hold(t.Context(), a.network(), lease, claimChanged)
			want := map[bool]string{true: "it was revoked", false: "its record is gone"}[tt.own]
			if err != nil || reason != want || a.keeper.Status().Revoked.IsValid() != tt.own {
				t.Errorf("from %q: %q, %v, revoked %s", tt.nodeID, reason, err, a.keeper.Status().Revoked)
			}
		})
	}
}

// TestRevokedFromAnotherHost: a host that prefers a subnet takes and keeps it after the subnet was revoked from another
// host.
func TestRevokedFromAnotherHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		lease := a.held()
		a.end()
		must(t, a.store.Client().Release(t.Context(), lease))
		if b := a.rival("b", lease.Subnet()); b.Subnet() != lease.Subnet() {
			t.Fatalf("it took %s", b.Subnet())
		}
		a.revoke(lease.Subnet())
		a.build().start()
		if now := a.held().Subnet(); now != lease.Subnet() {
			t.Errorf("on %s, before %s", now, lease.Subnet())
		}
		time.Sleep(time.Hour)
		saved, err := a.options.State.Load()
		if err != nil || saved.Revoked.IsValid() || a.held().Subnet() != lease.Subnet() {
			t.Errorf("saved %+v, %v", saved, err)
		}
	})
}

// TestRevocationCannotBeSaved: the process knows of the revocation although the next one will not.
func TestRevocationCannotBeSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		must(t, os.Mkdir(state.Path(a.dir, "n"), 0o700)) // a directory in its place
		subnet := netip.MustParsePrefix("10.5.1.0/24")
		a.keeper.revocation.revoke(subnet)
		if a.keeper.Status().Revoked != subnet {
			t.Errorf("%+v", a.keeper.Status())
		}
		if !strings.Contains(a.log.String(), "revocation could not be saved to the state file") {
			t.Errorf("log:\n%s", a.log)
		}
	})
}

// TestRevocationInABrokenStateFile: a revocation is saved in place of a file that cannot be used.
func TestRevocationInABrokenStateFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		subnet := netip.MustParsePrefix("10.5.1.0/24")
		for _, content := range []string{"{", ""} {
			must(t, os.WriteFile(state.Path(a.dir, "n"), []byte(content), 0o600))
			a.keeper.revocation.revoke(subnet)
			saved, err := a.options.State.Load()
			if err != nil || saved.Revoked != subnet || saved.Network != "n" {
				t.Errorf("%+v, %v", saved, err)
			}
		}
		if _, err := os.Stat(state.Path(a.dir, "n") + state.BadSuffix); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("set aside: %v", err)
		}
	})
}
