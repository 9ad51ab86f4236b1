package agent

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// foreignNetwork stores network "x", in which the hosts of a test take no part.
func foreignNetwork(t *testing.T, store *memory.Store) registry.Network {
	t.Helper()
	n := registry.Network{Name: "x", Plan: agenttest.Plan(t, "10.8.0.0/16"), Backend: agenttest.Backend(t, "recorder", "{}")}
	must(t, store.Client().PutNetwork(t.Context(), n))
	return n
}

// A reading is a list of the API, with a function that changes the list.
type reading struct {
	name   string
	read   func(ctx context.Context, c *api.Client, since api.Read) (body any, index uint64, err error)
	change func(t *testing.T)
}

// readings returns all lists of agent a, ordered so that no change also changes a later list.
func readings(a, b *host, x registry.Network) []reading {
	ctx := context.Background()
	store := a.store.Client()
	networks := func(ctx context.Context, c *api.Client, since api.Read) (any, uint64, error) {
		l, err := c.Networks(ctx, since)
		return l, l.Index, err
	}
	leases := func(name string) func(ctx context.Context, c *api.Client, since api.Read) (any, uint64, error) {
		return func(ctx context.Context, c *api.Client, since api.Read) (any, uint64, error) {
			l, err := c.Leases(ctx, name, since)
			return l, l.Index, err
		}
	}
	reservations := func(ctx context.Context, c *api.Client, since api.Read) (any, uint64, error) {
		l, err := c.Reservations(ctx, "x", since)
		return l, l.Index, err
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	claim := registry.Claim{Node: "z", NodeID: "id-z", PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}, MTU: 1400,
		TTL: time.Minute, Hold: time.Hour}
	acquire := func(t *testing.T, n registry.Network) {
		t.Helper()
		c := claim
		c.Backend = n.Backend
		_, err := store.Acquire(ctx, n, c)
		must(t, err)
	}
	return []reading{
		{"reservations", reservations, func(t *testing.T) {
			must(t, store.AddReservation(ctx, x, registry.Reservation{Subnet: netip.MustParsePrefix("10.8.9.0/24"), Node: "z"}, false))
		}},
		{"leases elsewhere", leases("x"), func(t *testing.T) { acquire(t, x) }},
		{"leases", leases("n"), func(t *testing.T) {
			n, err := store.Network(ctx, "n")
			must(t, err)
			acquire(t, n)
		}},
		{"peers", func(ctx context.Context, c *api.Client, since api.Read) (any, uint64, error) {
			l, err := c.Peers(ctx, "n", since)
			return l, l.Index, err
		}, func(t *testing.T) { must(t, store.Revoke(ctx, "n", free(a, b))) }}, // z's lease
		{"network", func(ctx context.Context, c *api.Client, since api.Read) (any, uint64, error) {
			n, err := c.Network(ctx, "n", since)
			return n, n.Index, err
		}, func(t *testing.T) { a.follows("192.0.2.77") }},
		{"networks", networks, func(t *testing.T) { must(t, store.DeleteNetwork(ctx, "x")) }},
	}
}

// TestBlockingReads: a blocking read of each list returns when the list changes, with another index, and not before.
func TestBlockingReads(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		x := foreignNetwork(t, store)
		a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
		a.applies(a.subnet().String() + " <- b@" + b.subnet().String())
		a.ready()
		for _, tt := range readings(a, b, x) {
			{
				ctx := t.Context()
				var before any
				var index uint64
				// What has not settled after the start may still change the index.
				eventually(t, func() (err error) {
					if before, index, err = tt.read(ctx, a.client, api.Read{}); err != nil {
						return err
					}
					_, again, err := tt.read(ctx, a.client, api.Read{Index: index, Wait: 150 * time.Millisecond})
					if err == nil && again != index {
						err = fmt.Errorf("index %d became %d and nothing changed", index, again)
					}
					return err
				})
				if _, other, err := tt.read(ctx, a.client, api.Read{Index: index + 1, Wait: time.Minute}); err != nil || other != index {
					t.Errorf("another index than the current one: %d, %v", other, err)
				}
				got := make(chan error, 1)
				go func() {
					after, next, err := tt.read(ctx, a.client, api.Read{Index: index, Wait: time.Minute})
					if err == nil && next == index {
						err = fmt.Errorf("answered under the same index %d", index)
					}
					if err == nil && fmt.Sprint(after) == fmt.Sprint(before) {
						err = fmt.Errorf("index %d became %d, and the answer is the same: %v", index, next, after)
					}
					got <- err
				}()
				select {
				case err := <-got:
					t.Fatalf("answered before a change: %v", err)
				case <-time.After(50 * time.Millisecond):
				}
				tt.change(t)
				select {
				case err := <-got:
					if err != nil {
						t.Error(err)
					}
				case <-time.After(2 * time.Minute):
					t.Error("the reader got no answer after a change")
				}
			}
		}
	})
}
