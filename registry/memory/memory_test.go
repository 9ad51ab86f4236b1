package memory_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/internal/testkit/registrytest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func TestConformance(t *testing.T) {
	registrytest.Run(t, func(*testing.T) registrytest.Store { return fixture{memory.New()} })
}

type fixture struct{ store *memory.Store }

func (f fixture) Open(testing.TB) registry.Registry { return f.store.Client() }
func (f fixture) Key(parts ...string) string        { return memory.Prefix + "/" + strings.Join(parts, "/") }
func (f fixture) LeaseKey(n registry.Network, slot uint64) string {
	return f.Key("leases", n.Name, registry.SubnetKey(n.Plan.Subnets(slot)[0]))
}
func (f fixture) Token() string                              { return "any" }
func (f fixture) EndSession(_ testing.TB, session string)    { f.store.EndSession(session) }
func (f fixture) Put(_ testing.TB, key string, value []byte) { f.store.Put(key, value) }
func (f fixture) Delete(_ testing.TB, key string)            { f.store.Delete(key) }
func (f fixture) Keys(_ testing.TB, parts ...string) []string {
	return f.store.Keys(f.Key(append(parts, "")...))
}
func (f fixture) Get(_ testing.TB, key string) ([]byte, string, bool) { return f.store.Get(key) }

func define(t *testing.T, c *memory.Client) registry.Network {
	t.Helper()
	b, err := registry.NewBackend("vxlan", nil)
	if err != nil {
		t.Fatal(err)
	}
	n := registry.Network{Name: "default", Plan: registry.Plan{{Prefix: netip.MustParsePrefix("10.5.0.0/16")}}, Backend: b}
	if err := c.PutNetwork(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	n, err = c.Network(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func claim(n registry.Network) registry.Claim {
	return registry.Claim{Node: "host-a", NodeID: "id-a", PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		MTU: 1450, Backend: n.Backend, TTL: 10 * time.Second, Hold: time.Hour}
}

// TestSessionExpires: a session ends by the clock alone, while a watcher waits and no call writes.
func TestSessionExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		host, watcher := store.Client(), store.Client()
		n := define(t, host)
		l, err := host.Acquire(t.Context(), n, claim(n))
		if err != nil {
			t.Fatal(err)
		}
		_, index, err := watcher.WatchLeases(t.Context(), n, 0)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for range 3 {
			time.Sleep(9 * time.Second)
			if err := host.Renew(t.Context(), l); err != nil {
				t.Fatal(err)
			}
		}
		set, next, err := watcher.WatchLeases(t.Context(), n, index)
		if err != nil {
			t.Fatal(err)
		}
		if alive := time.Since(start) - 27*time.Second; alive < 10*time.Second || alive > 20*time.Second {
			t.Errorf("lapsed %s after the last renewal, want once to twice the TTL of 10s", alive)
		}
		if next <= index || len(set.Leases) != 1 || set.Leases[0].Held() || set.Leases[0].Lapsed != 0 {
			t.Errorf("got %+v at index %d", set, next)
		}
		if err := host.Renew(t.Context(), l); !errors.Is(err, registry.ErrLeaseLost) {
			t.Errorf("renewed an expired session: %v", err)
		}
		time.Sleep(time.Hour)
		if set, _, err = watcher.WatchLeases(t.Context(), n, 0); err != nil || set.Leases[0].Lapsed != time.Hour {
			t.Errorf("got %+v, %v, want it lapsed for an hour", set.Leases, err)
		}
		if set, _, err = store.Client().WatchLeases(t.Context(), n, 0); err != nil || set.Leases[0].Lapsed != 0 {
			t.Errorf("got %+v, %v, want a new client to start again", set.Leases, err)
		}
	})
}

// TestAdoptionRenews: adopting a session renews it, so its host may renew late.
func TestAdoptionRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := memory.New().Client()
		n := define(t, host)
		c := claim(n)
		for range 5 {
			l, err := host.Acquire(t.Context(), n, c)
			if err != nil {
				t.Fatal(err)
			}
			if c.Session != "" && l.Session != c.Session {
				t.Fatalf("session %s was not adopted but replaced by %s", c.Session, l.Session)
			}
			c.Session = l.Session
			time.Sleep(19 * time.Second)
		}
	})
}

// TestIndexGoesBack: a restored store goes back, and a watch does not wait for an index that was never reached.
func TestIndexGoesBack(t *testing.T) {
	c := memory.New().Client()
	n := define(t, c)
	_, index, err := c.WatchLeases(t.Context(), n, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, now, err := c.WatchLeases(t.Context(), n, index+100); err != nil || now != index {
		t.Errorf("got index %d, %v, want %d", now, err, index)
	}
}

func TestCancelled(t *testing.T) {
	store := memory.New()
	c := store.Client()
	n := define(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Acquire(ctx, n, claim(n)); !errors.Is(err, context.Canceled) {
		t.Errorf("acquired with a cancelled context: %v", err)
	}
	if keys := store.Keys(memory.Prefix + "/leases/"); len(keys) != 1 {
		t.Errorf("wrote %v", keys)
	}
}

// TestPut: as in Consul, writing the same value again is no change, and another value keeps the lock.
func TestPut(t *testing.T) {
	store := memory.New()
	c := store.Client()
	n := define(t, c)
	l, err := c.Acquire(t.Context(), n, claim(n))
	if err != nil {
		t.Fatal(err)
	}
	key := memory.Prefix + "/leases/default/" + registry.SubnetKey(l.Subnet())
	value, _, _ := store.Get(key)
	for _, tt := range []struct {
		value string
		moves bool
	}{{string(value), false}, {`{}`, true}, {`{}`, false}} {
		_, before, err := c.WatchLeases(t.Context(), n, 0)
		if err != nil {
			t.Fatal(err)
		}
		store.Put(key, []byte(tt.value))
		_, after, err := c.WatchLeases(t.Context(), n, 0)
		if err != nil || (after > before) != tt.moves {
			t.Errorf("put %s: index %d to %d, %v", tt.value, before, after, err)
		}
		if got, session, ok := store.Get(key); !ok || string(got) != tt.value || session != l.Session {
			t.Errorf("put %s: now %s under session %q", tt.value, got, session)
		}
	}
}

// TestRestore: as with a restored snapshot of Consul, earlier records and sessions are back, but indexes continue, and
// the client counts the restore.
func TestRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		c := store.Client()
		n := define(t, c)
		l, err := c.Acquire(t.Context(), n, claim(n))
		if err != nil {
			t.Fatal(err)
		}
		backup := store.Backup()
		if err := c.Release(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		later := claim(n)
		later.Node, later.NodeID, later.Prefer = "host-b", "id-b", l.Subnet()
		later.PublicIPs = []netip.Addr{netip.MustParseAddr("192.0.2.2")}
		taken, err := c.Acquire(t.Context(), n, later)
		if err != nil || taken.Slot != l.Slot {
			t.Fatalf("got %+v, %v", taken, err)
		}
		before, index, err := c.WatchLeases(t.Context(), n, 0)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		store.Restore(backup)
		set, _, err := c.WatchLeases(t.Context(), n, index)
		if err != nil || len(set.Leases) != 1 || set.Leases[0].ModifyIndex != l.ModifyIndex || set.SetBack != before.SetBack+1 {
			t.Errorf("got %+v, %v", set, err)
		}
		if err := c.Renew(t.Context(), l); err != nil {
			t.Errorf("the session of before: %v", err)
		}
		moved := claim(n)
		moved.MTU = 1400
		if again, err := c.Acquire(t.Context(), n, moved); err != nil || again.ModifyIndex <= taken.ModifyIndex {
			t.Errorf("got %+v, %v, want an index beyond %d", again, err, taken.ModifyIndex)
		}
	})
}
