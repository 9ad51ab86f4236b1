package network

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// die ends the host's process and its session.
func (m *member) die() {
	m.t.Helper()
	lease, _ := m.run.Lease()
	m.stop()
	m.store.EndSession(lease.Session)
}

// TestOneHostTooMany: the network has three slots. The fourth host says that it has none and why, and goes on by itself
// as soon as a slot is free. A slot that a silent host may still claim is not free.
func TestOneHostTooMany(t *testing.T) {
	for _, tt := range []struct {
		name  string
		hold  time.Duration
		third bool // c holds the third slot; otherwise it is reserved
		why   string
		free  func(a, c *member) // frees the third slot
		again func(c *member)    // what c does afterwards
	}{
		{"released", time.Hour, true, "3 slots: 3 held",
			func(_, c *member) { must(c.t, c.run.Release(c.t.Context(), c.registry.As(""))) }, nil},
		{"silent for longer than hold", 300 * time.Millisecond, true, "3 slots: 3 held", func(_, c *member) { c.die() },
			func(c *member) {
				c.start()
				c.check(health.Lease, api.Critical, "network is full", "3 slots: 3 held")
			}},
		{"revoked from a dead host", time.Hour, true, "3 slots: 3 held",
			func(a, c *member) {
				subnet := c.subnet()
				c.die()
				must(a.t, a.store.Client().Revoke(a.t.Context(), "n", subnet))
			}, nil},
		{"no longer reserved", time.Hour, false, "3 slots: 2 held, 0 lapsed and kept for their hosts, 1 reserved",
			func(a, c *member) {
				set, _, err := a.store.Client().WatchReservations(a.t.Context(), a.inStore(), 0)
				must(a.t, err)
				must(a.t, a.store.Client().RemoveReservation(a.t.Context(), "n", set.Reservations[0].Subnet))
			}, nil},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			store := memory.New()
			start := func(name string) *member {
				m := newMember(t, store, name)
				m.config.Lease.Hold = tt.hold
				return m.start()
			}
			a, b := start("a"), start("b")
			a.ready()
			b.ready()
			third := free(a, b)
			var c *member
			if tt.third {
				c = start("c")
				c.ready()
			} else {
				kept, err := registry.CheckReservation(a.inStore(), registry.Reservation{Subnet: third, Node: "host-z"})
				must(t, err)
				must(t, store.Client().AddReservation(t.Context(), a.inStore(), kept, false))
			}
			d := start("d")
			d.check(health.Lease, api.Critical, "network is full", tt.why)
			if report, _ := d.deps.Reports.Health.Report(); report.Ready {
				t.Error("ready without a lease")
			}
			tt.free(a, c)
			if got := d.subnet(); got != third {
				t.Errorf("got %s, want %s", got, third)
			}
			d.ready()
			d.check(health.Lease, api.Passing)
			b.applies(b.with(a, d))
			if tt.again != nil {
				tt.again(c)
			}
		})
	}
}

// TestSilentWithinHold: a host that was silent for less than hold gets its subnet back although another host waits for
// any subnet, and its peers have kept their routes to it.
func TestSilentWithinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a, b, c := newMember(t, store, "a").start(), newMember(t, store, "b").start(), newMember(t, store, "c").start()
		for _, m := range []*member{a, b, c} {
			m.ready()
		}
		d := newMember(t, store, "d").start()
		d.check(health.Lease, api.Critical, "3 slots: 3 held")
		subnet, want := c.subnet(), a.with(b, c)
		a.applies(want)
		lease, _ := c.run.Lease()
		c.die()
		d.check(health.Lease, api.Critical, "2 held, 1 lapsed and kept for their hosts")
		agenttest.Eventually(t, func() error {
			for _, p := range a.run.PeerList().Peers {
				if p.Node == "c" && !p.Held {
					return nil
				}
			}
			return errors.New("a takes the lease of c for held")
		})
		a.applies(want)
		c.start().ready()
		if got := c.subnet(); got != subnet {
			t.Errorf("came back on %s, had %s", got, subnet)
		}
		d.check(health.Lease, api.Critical, "3 slots: 3 held")
		now, _, err := store.Client().WatchLease(t.Context(), a.inStore(), subnet, 0)
		if err != nil || now.CreateIndex != lease.CreateIndex || !now.Held() {
			t.Errorf("%+v, %v", now, err)
		}
		a.applies(want)
		if states := a.kernel.states(); len(states) > 3 {
			t.Errorf("routes came and went: %q", states)
		}
	})
}
