package lease

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// slow sets renewals so far apart that only the watch can notice a loss.
func (h *host) slow() *host {
	return h.configure(func(o *Options) {
		o.Settings.TTL, o.Settings.RenewMargin, o.Settings.Hold = 12*time.Hour, time.Hour, 48*time.Hour
	})
}

// TestLossIsSeenByTheWatch: a lost record is written again, on the same subnet and without a renewal.
func TestLossIsSeenByTheWatch(t *testing.T) {
	for _, tt := range []struct {
		name   string
		reason string
		lose   func(h *host, l registry.Lease)
	}{
		{"deleted", "its record is gone", func(h *host, l registry.Lease) { h.store.Delete(leaseKey(l.Subnet())) }},
		{"session ended", "its session ended", func(h *host, l registry.Lease) { h.store.EndSession(l.Session) }},
		{"overwritten with nonsense", "its record was overwritten", func(h *host, l registry.Lease) {
			h.store.Put(leaseKey(l.Subnet()), []byte("{"))
		}},
		{"changed", "changed by another program", func(h *host, l registry.Lease) {
			l.MTU = 1300
			h.put(l)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newHost(t, memory.New(), "a").slow().start()
				lease := a.held()
				value, _ := a.record(lease.Subnet())
				_, _, changed := a.keeper.Lease().Get()
				tt.lose(a, lease)
				synctest.Wait()
				c := a.checked(health.Lease)
				if c.Status != api.Warning || !strings.Contains(c.Reason, tt.reason) ||
					!strings.HasPrefix(c.Reason, lease.Subnet().String()+": ") ||
					!strings.HasSuffix(c.Reason, "), taking it back") {
					t.Errorf("%s: %s", c.Status, c.Reason)
				}
				if s := a.keeper.Status(); s.IsHeld() || s.Lease.Subnet() != lease.Subnet() {
					t.Errorf("status %+v", s)
				}
				<-changed
				again := a.held()
				if now, _ := a.record(lease.Subnet()); now != value || again.Subnet() != lease.Subnet() {
					t.Errorf("%+v, record %s", again, now)
				}
				c2 := a.registry.Claimed()
				if c2.Session != lease.Session || c2.Prefer != lease.Subnet() || c2.Since != lease.ModifyIndex || !c2.Running {
					t.Errorf("claimed %+v", c2)
				}
				if n := len(a.registry.At("Renew")); n != 0 {
					t.Errorf("renewed %d times", n)
				}
				subnet := lease.Subnet().String()
				want := []string{"taken " + subnet, "lost " + subnet}
				if again.CreateIndex != lease.CreateIndex || again.Session != lease.Session { // not the same record
					want = append(want, "taken "+subnet)
				}
				if got := a.changes(); !slices.Equal(got, want) {
					t.Errorf("events %q, want %q", got, want)
				}
				if all, _, _ := a.events.After(0, "n"); len(want) == 3 && !slices.ContainsFunc(all, func(v api.Event) bool {
					return v.Message == "this host holds "+subnet+" again"
				}) {
					t.Errorf("events %+v", all)
				}
				if !a.keeper.Status().IsHeld() || !strings.Contains(a.log.String(), "lease is held: subnet="+subnet) {
					t.Errorf("%+v, log:\n%s", a.keeper.Status(), a.log)
				}
			})
		})
	}
}

func TestJudge(t *testing.T) {
	own := registry.Lease{
		Network:   "n",
		Slot:      1,
		Subnets:   []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")},
		Node:      "a",
		NodeID:    "id-a",
		PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.97")},
		MTU:       1450,
		Backend:   vxlan(),
		Session:   "sa",

		ModifyIndex: 10,
	}
	other := []netip.Addr{netip.MustParseAddr("192.0.2.9")}
	for _, tt := range []struct {
		name   string
		change func(*registry.Lease)
		want   string // the reason
		copied bool
		over   bool
	}{
		{"ours", func(*registry.Lease) {}, "", false, false},
		{"lapsed", func(l *registry.Lease) { l.Session = "" }, "its session ended", false, true},
		{"another host's", func(l *registry.Lease) {
			l.Session, l.Node, l.NodeID, l.PublicIPs = "sb", "b", "id-b", other
		}, `host "b" ([192.0.2.9]) holds it`, false, true},
		{"another session of ours", func(l *registry.Lease) { l.Session = "new" },
			`host "a" ([192.0.2.97]) holds it`, false, true},
		{"another name", func(l *registry.Lease) { l.Node = "b" },
			`host "b" ([192.0.2.97], node id id-a) writes it under the session of this host "a" ([192.0.2.97], node id id-a)`,
			true, true},
		{"another id", func(l *registry.Lease) { l.NodeID = "id-b" },
			`host "a" ([192.0.2.97], node id id-b) writes it under the session`, true, true},
		{"another address", func(l *registry.Lease) { l.PublicIPs = other },
			`host "a" ([192.0.2.9]) writes the record of this host "a" ([192.0.2.97], node id id-a)`, true, true},
		{"another address and session", func(l *registry.Lease) { l.Session, l.PublicIPs = "new", other },
			`host "a" ([192.0.2.9]) writes the record`, true, true},
		{"challenged by a copy", func(l *registry.Lease) {
			l.PublicIPs = slices.Concat(l.PublicIPs, other)
		}, "", true, true},
		{"with an address of before, in a store that was set back", func(l *registry.Lease) {
			l.PublicIPs, l.ModifyIndex = slices.Concat(l.PublicIPs, other), 9
		}, "its record was changed by another program", false, true},
		{"with the address of before, in a store that was set back", func(l *registry.Lease) {
			l.PublicIPs, l.ModifyIndex = other, 9
		}, "its record was changed by another program", false, true},
		{"with the session and address of before, in a store that was set back", func(l *registry.Lease) {
			l.Session, l.PublicIPs, l.ModifyIndex = "old", other, 9
		}, `host "a" ([192.0.2.9]) holds it`, false, true},
		{"with the name of before, in a store that was set back", func(l *registry.Lease) {
			l.Node, l.ModifyIndex = "before", 9
		}, "its record was changed by another program", false, true},
		{"another value", func(l *registry.Lease) { l.MTU = 9 }, "its record was changed by another program", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := own
			tt.change(&now)
			v := judge(now, own)
			if v.over != tt.over || !strings.HasPrefix(v.reason, tt.want) || (v.reason == "") != (tt.want == "") {
				t.Errorf("%+v", v)
			}
			if copied := strings.HasSuffix(v.conflict, ": was the data_dir copied?"); copied != tt.copied {
				t.Errorf("conflict %q", v.conflict)
			}
		})
	}
}

// TestTakenBackByAnotherProgramAgain: pauses grow while another program overwrites this host's record again and again.
func TestTakenBackByAnotherProgramAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").slow().start()
		key := leaseKey(a.held().Subnet())
		own, _, _ := a.store.Get(key)
		began := len(a.registry.At("Acquire"))
		var times []time.Time
		a.eventually("ten attempts", func() bool {
			if now, _, _ := a.store.Get(key); string(now) == string(own) {
				a.store.Put(key, []byte("{"))
			}
			times = a.registry.At("Acquire")[began:]
			return len(times) >= 10
		})
		policy := retry.DefaultPolicy()
		for i, at := range times[4:] {
			if pause := at.Sub(times[i+3]); pause < policy.Soon/10 || pause > policy.Soon+100*time.Millisecond {
				t.Errorf("attempt %d came %s after the one before", i+4, pause)
			}
		}
	})
}

// TestClaimChanges: a claim that changes while the lease is held is written at once, and one that changes while the
// lease is being taken back is used for that.
func TestClaimChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").slow().start()
		before := a.held()
		a.address = netip.MustParseAddr("192.0.2.200")
		a.keeper.SetClaim(a.keeper.Claim(a.network(), a.attributes()))
		synctest.Wait()
		now := a.lease()
		if now.PublicIPs[0] != a.address || now.Session != before.Session || now.Subnet() != before.Subnet() {
			t.Errorf("%+v", now)
		}
		if a.checked(health.Lease).Status != api.Passing || len(a.changes()) != 1 {
			t.Errorf("%+v, events %q", a.checked(health.Lease), a.changes())
		}

		a.registry.SetOne("Acquire", registry.ErrUnavailable)
		a.store.Delete(leaseKey(before.Subnet()))
		a.check(health.Lease, api.Warning, before.Subnet().String()+": waiting for a lease: the store is unavailable")
		a.address = netip.MustParseAddr("192.0.2.201")
		a.keeper.SetClaim(a.keeper.Claim(a.network(), a.attributes()))
		a.registry.SetOne("Acquire", nil)
		if now := a.held(); now.PublicIPs[0] != a.address || now.Subnet() != before.Subnet() {
			t.Errorf("%+v", now)
		}
		claims := len(a.registry.At("Acquire"))
		time.Sleep(time.Hour)
		if n := len(a.registry.At("Acquire")); n != claims {
			t.Errorf("claimed %d times more", n-claims)
		}
	})
}

// definedBy is a Registry that records the definition of the last claim.
type definedBy struct {
	registry.Registry
	last atomic.Pointer[registry.Network]
}

func (d *definedBy) Acquire(ctx context.Context, n registry.Network, c registry.Claim) (registry.Lease, error) {
	d.last.Store(&n)
	return d.Registry.Acquire(ctx, n, c)
}

// TestDefinitionChangesWhileWaiting: a claim that waits uses the definition that is in force by then. The same subnet may
// have another slot in it.
func TestDefinitionChangesWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").slow()
		store := &definedBy{Registry: a.registry}
		a.options.Registry = store
		a.build()
		lease, err := a.keeper.acquireOnce(t.Context(), a.network(), a.own())
		must(t, err)
		a.keeper.SetClaim(a.own())
		inForce := defined(a.network())
		go func() { _ = a.keeper.Keep(t.Context(), inForce, lease, a.own()) }()
		a.registry.SetOne("Acquire", registry.ErrUnavailable)
		a.store.Delete(leaseKey(lease.Subnet()))
		a.check(health.Lease, api.Warning, lease.Subnet().String()+": waiting for a lease")
		grown := a.network()
		grown.Plan = agenttest.Plan(t, "10.4.0.0/15")
		must(t, a.store.Client().PutNetwork(t.Context(), grown))
		now := a.network()
		now.CreateIndex += 100
		inForce.Set(now)
		a.registry.SetOne("Acquire", nil)
		if got := a.held(); got.Subnet() != lease.Subnet() {
			t.Errorf("%+v", got)
		}
		if used := store.last.Load().CreateIndex; used != now.CreateIndex {
			t.Errorf("claimed with the definition at %d, at %d is in force", used, now.CreateIndex)
		}
		changes := a.changes()
		if got := a.held(); got.Slot == lease.Slot || slices.Contains(changes, "renumbered "+lease.Subnet().String()) {
			t.Errorf("slot %d, before %d: %q", got.Slot, lease.Slot, changes)
		}
	})
}

// TestClaimChangesBeforeKeep: a claim that has changed since Acquire is written when Keep starts.
func TestClaimChangesBeforeKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").slow()
		claim := a.own()
		lease, err := a.keeper.Acquire(t.Context(), func() (registry.Network, registry.Claim) { return a.network(), claim })
		must(t, err)
		a.address = netip.MustParseAddr("192.0.2.200")
		a.keeper.SetClaim(a.own())
		go func() { _ = a.keeper.Keep(t.Context(), defined(a.network()), lease, claim) }()
		synctest.Wait()
		if now := a.lease(); now.PublicIPs[0] != a.address || now.Session != lease.Session {
			t.Errorf("%+v", now)
		}
	})
}

// TestDisplaced: while a host could not be reached, a copy of it took its record and ended. The host takes the record
// back, and forgets the conflict after a while.
func TestDisplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").slow().start()
		lease := a.held()
		own, _ := a.record(lease.Subnet())
		lease.PublicIPs = []netip.Addr{netip.MustParseAddr("192.0.2.200")}
		a.put(lease)
		synctest.Wait()
		a.check(health.Conflict, api.Critical, "192.0.2.97", "192.0.2.200", "copied")
		a.held()
		if now, _ := a.record(lease.Subnet()); now != own {
			t.Errorf("record %s", now)
		}
		written := time.Now()
		if c := a.checked(health.Conflict); c.Status != api.Critical {
			t.Errorf("the conflict is forgotten at once: %+v", c)
		}
		a.check(health.Conflict, api.Passing)
		if took := time.Since(written); took < trustedAfter-time.Second || took > trustedAfter+time.Second {
			t.Errorf("forgotten after %s", took)
		}
	})
}

// TestWatchFails: a host whose record cannot be read holds its lease.
func TestWatchFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").slow()
		a.registry.SetOne("WatchLease", registry.ErrUnavailable)
		a.start().held()
		time.Sleep(time.Hour)
		a.held()
		if n := len(a.registry.At("WatchLease")); n < 60 || n > 1200 || len(a.registry.At("Acquire")) != 1 {
			t.Errorf("%d reads, %d claims in an hour", n, len(a.registry.At("Acquire")))
		}
	})
}

// TestKeepEndsWithItsContext: Acquire and Keep return the context's error.
func TestKeepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newHost(t, memory.New(), "a").start(), newHost(t, memory.New(), "b")
		a.held()
		b.registry.SetOne("Acquire", registry.ErrUnavailable)
		b.start()
		for _, h := range []*host{a, b} {
			synctest.Wait()
			h.end()
			if err := <-h.exited; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", h.id.Node, err)
			}
		}
	})
}
