package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// TestOneHostTooMany: the network has three slots. The fourth host says that it has none and why, and goes on by itself
// as soon as a slot is free. A slot that a silent host may still claim is not free.
func TestOneHostTooMany(t *testing.T) {
	ctx := context.Background()
	const short = 300 * time.Millisecond
	die := func(h *host) {
		lease, _ := mustRunner(h.t, h).Lease()
		must(h.t, h.stop())
		h.store.EndSession(lease.Session)
	}
	for _, tt := range []struct {
		name  string
		hold  time.Duration
		third bool // c holds the third slot; otherwise it is reserved
		why   string
		free  func(a, c *host) // frees the third slot
		again func(c *host)    // what c does afterwards
	}{
		{"released", time.Hour, true, "3 slots: 3 held",
			func(_, c *host) { must(c.t, c.client.ReleaseLease(ctx, "n")) }, nil},
		{"silent for longer than hold", short, true, "3 slots: 3 held", func(_, c *host) { die(c) },
			func(c *host) {
				c.start()
				c.check(health.Lease, api.Critical, "network is full", "3 slots: 3 held")
			}},
		{"revoked from a dead host", time.Hour, true, "3 slots: 3 held",
			func(a, c *host) {
				die(c)
				must(a.t, a.client.RevokeLease(ctx, "n", c.subnet()))
			}, nil},
		{"no longer reserved", time.Hour, false, "3 slots: 2 held, 0 lapsed and kept for their hosts, 1 reserved",
			func(a, c *host) {
				list, err := a.client.Reservations(ctx, "n")
				must(a.t, err)
				must(a.t, a.client.RemoveReservation(ctx, "n", list.Reservations[0].Subnet))
			}, nil},
	} {
		subtest(t, tt.name, func(t *testing.T) {
			store := memory.New()
			hosts := map[string]*host{}
			start := func(name string) *host {
				h := newHost(t, store, name)
				h.config.Lease.Hold = tt.hold
				hosts[name] = h.start()
				return h
			}
			a, b := start("a"), start("b")
			a.ready()
			b.ready()
			third := free(a, b)
			c := newHost(t, store, "c")
			if tt.third {
				c = start("c")
				c.ready()
			} else {
				must(t, a.client.AddReservation(ctx, "n", api.Reservation{Subnet: third, Node: "somebody"}, false))
			}
			d := start("d")
			d.check(health.Lease, api.Critical, "network is full", tt.why)
			if report, _ := d.agent.env.Reports.Health.Report(); report.Ready {
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

// with returns the state that h applies with the others as its peers, such as "10.5.1.0/24 <- b@10.5.2.0/24".
func (h *host) with(others ...*host) string {
	var peers []string
	for _, o := range others {
		peers = append(peers, fmt.Sprintf("%s@%s", o.name, o.subnet()))
	}
	slices.SortFunc(peers, func(x, y string) int { return strings.Compare(x[strings.Index(x, "@"):], y[strings.Index(y, "@"):]) })
	return fmt.Sprintf("%s <- %s", h.subnet(), strings.Join(peers, ", "))
}

// TestSilentWithinHold: a host that was silent for less than hold gets its subnet back although another host waits for
// any subnet, and its peers have kept their routes to it.
func TestSilentWithinHold(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a, b, c := newHost(t, store, "a").start(), newHost(t, store, "b").start(), newHost(t, store, "c").start()
		for _, h := range []*host{a, b, c} {
			h.ready()
		}
		d := newHost(t, store, "d").start()
		d.check(health.Lease, api.Critical, "3 slots: 3 held")
		subnet := c.subnet()
		want := a.with(b, c)
		a.applies(want)
		lease, _ := mustRunner(t, c).Lease()
		must(t, c.stop())
		store.EndSession(lease.Session)
		d.check(health.Lease, api.Critical, "2 held, 1 lapsed and kept for their hosts")
		eventually(t, func() error {
			got, err := a.client.Lease(context.Background(), "n", subnet)
			if err == nil && got.Held {
				err = errors.New("still held")
			}
			return err
		})
		a.applies(want)
		c.start().ready()
		if got := c.subnet(); got != subnet {
			t.Errorf("came back on %s, had %s", got, subnet)
		}
		d.check(health.Lease, api.Critical, "3 slots: 3 held")
		if now, _, err := store.Client().WatchLease(context.Background(), mustRunner(t, a).Status().Definition, subnet, 0); err != nil ||
			now.CreateIndex != lease.CreateIndex || !now.Held() {
			t.Errorf("%+v, %v", now, err)
		}
		a.applies(want)
		if n := len(a.recorder.all()); n > 3 {
			t.Errorf("routes came and went: %q", a.recorder.all())
		}
	})
}
