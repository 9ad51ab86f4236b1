package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestNotDefinedBesideAnother: a block does not define a network that hosts could not carry next to an existing one. It
// defines the network once the other one is gone.
func TestNotDefinedBesideAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		overlapping := registry.Network{Name: "m", Plan: agenttest.Plan(t, "10.5.2.0/23"), Backend: agenttest.Backend(t, "recorder", "")}
		must(t, store.Client().PutNetwork(t.Context(), overlapping))
		a := newMember(t, store, "a").start()
		a.check(health.Network, api.Critical, "overlaps 10.5.2.0/23 of network m", "leno network apply -force")
		if _, err := store.Client().Network(t.Context(), "n"); !errors.Is(err, registry.ErrNetworkNotFound) {
			t.Errorf("it was defined: %v", err)
		}
		must(t, store.Client().DeleteNetwork(t.Context(), "m"))
		a.ready()
	})
}

// TestNotDefinedWhileOthersTakePart: a host that remembers nothing of a network leaves it to the hosts that take part
// in the network to put its definition back, and does not claim a lease until they have claimed theirs again.
func TestNotDefinedWhileOthersTakePart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a := newMember(t, store, "a").start()
		a.ready()
		definition, err := store.Client().Network(t.Context(), "n")
		must(t, err)
		subnet := a.subnet()
		a.stop()
		empty(store)
		b := newMember(t, store, "b")
		b.config.Networks[0].Pools = []config.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/22")}}
		b.start()
		b.check(health.Network, api.Critical, "waiting for a to put it back, until ")
		if _, err := store.Client().Network(t.Context(), "n"); !errors.Is(err, registry.ErrNetworkNotFound) {
			t.Fatalf("it was defined: %v", err)
		}
		definition.CreateIndex, definition.ModifyIndex = 0, 0
		must(t, store.Client().PutNetwork(t.Context(), definition))
		b.check(health.Lease, api.Critical, "waiting for a to claim again, until ")
		a.start()
		b.ready()
		if got := a.subnet(); got != subnet || b.subnet() == subnet {
			t.Errorf("a has %s, before %s, and b %s", got, subnet, b.subnet())
		}
	})
}

// TestSetBackBeforeDeletion: when a store is set back to a time before a network was deleted, the network is defined
// again for all hosts.
func TestSetBackBeforeDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a").start()
		a.ready()
		subnet := a.subnet()
		before := a.store.Backup()
		must(t, a.store.Client().DeleteNetwork(t.Context(), "n"))
		a.check(health.Network, api.Critical, "was deleted at")
		a.store.Restore(before)
		a.ready()
		if got := a.subnet(); got != subnet {
			t.Errorf("subnet %s, before %s", got, subnet)
		}
		if n, err := a.store.Client().Network(t.Context(), "n"); err != nil {
			t.Errorf("the store has %+v, %v", n, err)
		}
	})
}

// TestNewcomerAfterALoss: a host starts for the first time when the store was set back to a time before the network, and
// another host has restored the definition. It has not seen the loss, and the sessions that would show it are gone. It
// waits until the hosts whose leases were lost have had time to claim their subnets again.
func TestNewcomerAfterALoss(t *testing.T) {
	for _, clock := range []time.Duration{0, -50 * 24 * time.Hour, 50 * 24 * time.Hour} { // of the host that restored it
		t.Run(clock.String(), func(t *testing.T) { testNewcomerAfterALoss(t, clock) })
	}
}

// waitsForOthers is what a host without a lease says after the store was set back.
const waitsForOthers = "so that the other hosts can claim theirs again"

func testNewcomerAfterALoss(t *testing.T, clock time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		before := store.Backup()
		a, b := newMember(t, store, "a"), newMember(t, store, "b")
		a.start().ready()
		subnet, n := a.subnet(), a.inStore()
		a.stop()
		store.Restore(before)
		restored := time.Now()
		n.ModifyIndex, n.Restored, n.RestoredLeases = 0, restored.Add(clock), 2
		must(t, store.Client().PutNetwork(context.Background(), n))

		b.start()
		agenttest.Eventually(t, func() error {
			if reason := b.reason(health.Lease); !strings.Contains(reason, waitsForOthers) {
				return fmt.Errorf("the lease's check says %q", reason)
			}
			return nil
		})
		state := b.run.Status().Local.State
		_, text, _ := strings.Cut(state, "until ")
		text, _, _ = strings.Cut(text, ",")
		earliest := restored.Add(b.config.Lease.TTL).Truncate(time.Second)
		if until, err := time.Parse(time.RFC3339, text); err != nil || until.Before(earliest) ||
			until.After(time.Now().Add(b.config.Lease.TTL)) {
			t.Errorf("the network says %q, want a time from %s on", state, earliest)
		}
		a.start().ready()
		if again := a.subnet(); again != subnet {
			t.Errorf("the host has %s, before %s", again, subnet)
		}
		b.ready()
		if now := time.Since(restored); now < b.config.Lease.TTL {
			t.Errorf("the newcomer waited for %s", now)
		}
		if reason, state := b.reason(health.Lease), b.run.Status().Local.State; strings.Contains(reason+state, "until") {
			t.Errorf("the newcomer has a lease, and says %q, %q", reason, state)
		}
		if now := a.inStore(); now.Revision != n.Revision || now.Revision == "" {
			t.Errorf("revision %q, want %q", now.Revision, n.Revision)
		}
	})
}

// TestNewcomerAfterTheReturn: the host that puts back a definition that the store has lost writes how many leases there
// were, so a host that starts for the first time waits only until as many are there again.
func TestNewcomerAfterTheReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		before := store.Backup()
		a, b := newMember(t, store, "a"), newMember(t, store, "b")
		a.start().ready()
		b.start().ready()
		a.applies(a.with(b))
		b.applies(b.with(a))
		for _, m := range []*member{a, b} { // before the leases are read again: this store does not keep those that are missing
			m.deps.Store.Outage.Policy.RestoreInUse = time.Millisecond
		}
		store.Restore(before)
		lost := time.Now()
		agenttest.Eventually(t, func() error {
			if n, err := store.Client().Network(t.Context(), "n"); err != nil || n.RestoredLeases != 2 {
				return fmt.Errorf("the definition says %d leases: %w", n.RestoredLeases, err)
			}
			return nil
		})
		newMember(t, store, "c").start().ready()
		if took := time.Since(lost); took > a.config.Lease.TTL/2 {
			t.Errorf("the newcomer waited for %s", took)
		}
	})
}

// TestNewcomerAfterARestore: a store is set back to a time before a host took its lease, when the network was as it is
// now, and the host is away. Another host writes once for all that leases may be missing, so a host that starts for the
// first time waits.
func TestNewcomerAfterARestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a, other, b := newMember(t, store, "a"), newMember(t, store, "other"), newMember(t, store, "b")
		a.config.Networks[0].Pools[0].Prefix = netip.MustParsePrefix("10.5.0.0/21")
		for _, m := range []*member{a, other} {
			m.deps.Store.Registry = &keeping{Registry: m.registry}
		}
		a.start().ready()
		other.start().ready()
		before := store.Backup()
		b.start().ready()
		subnet := b.subnet()
		b.stop()
		store.Restore(before)
		time.Sleep(2 * time.Second)
		n := a.inStore()
		if n.Restored.IsZero() || n.Revision == "" {
			t.Errorf("the store has %+v", n)
		}
		c := newMember(t, store, "c").start()
		agenttest.Eventually(t, func() error {
			if reason := c.reason(health.Lease); !strings.Contains(reason, waitsForOthers) {
				return fmt.Errorf("the lease's check says %q", reason)
			}
			return nil
		})
		b.start().ready()
		c.ready()
		if b.subnet() != subnet || c.subnet() == subnet {
			t.Errorf("b has %s, before %s; c has %s", b.subnet(), subnet, c.subnet())
		}
		wrote := len(a.said.With("the store was set back: new hosts")) + len(other.said.With("the store was set back: new hosts"))
		if now := a.inStore(); wrote != 1 || now.Restored != n.Restored {
			t.Errorf("%d hosts wrote the definition, %+v after %+v", wrote, now, n)
		}
		// From then on, the network may become smaller.
		for _, m := range []*member{b, c} {
			gone := m.subnet()
			m.stop()
			must(t, store.Client().Revoke(t.Context(), "n", gone))
		}
		time.Sleep(6 * a.config.Lease.TTL)
		began := time.Now()
		newMember(t, store, "d").start().ready()
		if took := time.Since(began); took > time.Second {
			t.Errorf("a host that started later waited for %s", took)
		}
	})
}

// TestNewcomerBeforeTheReturn: in the moment between a restore of the store and the claims of running hosts, nothing
// shows a new host that leases are missing, so it may take the subnet of a running one. That one withdraws and takes
// another.
func TestNewcomerBeforeTheReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a, b, c := newMember(t, store, "a"), newMember(t, store, "b"), newMember(t, store, "c")
		a.start().ready()
		d := a.rival("d", netip.Prefix{})
		before := store.Backup()
		b.start().ready()
		subnet := b.subnet()
		for _, m := range []*member{a, b} {
			m.deps.Store.Outage.Policy.RestoreInUse = time.Hour // no host writes that leases are missing
		}
		b.registry.SetOne("Acquire", registry.ErrUnavailable)
		store.Restore(before)
		c.start().ready()
		if c.subnet() != subnet {
			t.Fatalf("c has %s, b had %s", c.subnet(), subnet)
		}
		b.registry.SetOne("Acquire", nil)
		b.check(health.Lease, api.Critical, subnet.String(), `"c"`)
		store.EndSession(d.Session)
		must(t, store.Client().Revoke(t.Context(), "n", d.Subnet()))
		b.ready()
		a.applies(a.with(b, c))
		b.applies(b.with(a, c))
		c.applies(c.with(a, b))
		if b.subnet() != d.Subnet() || c.subnet() != subnet {
			t.Errorf("b has %s, want %s; c has %s", b.subnet(), d.Subnet(), c.subnet())
		}
	})
}

// keeping is a store that shows the leases that it has lost when it was set back, as Consul and etcd do.
type keeping struct {
	registry.Registry
	mu    sync.Mutex
	known registry.LeaseSet
}

func (k *keeping) WatchLeases(ctx context.Context, n registry.Network, after uint64) (registry.LeaseSet, uint64, error) {
	set, index, err := k.Registry.WatchLeases(ctx, n, after)
	if err != nil {
		return set, index, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.known.Leases {
		isThere := slices.ContainsFunc(set.Leases, func(now registry.Lease) bool { return now.Slot == l.Slot })
		if l.Missing = l.Missing || set.SetBack > k.known.SetBack; l.Missing && !isThere {
			l.Lost = true
			set.Leases = append(set.Leases, l)
		}
	}
	slices.SortFunc(set.Leases, func(a, b registry.Lease) int { return cmp.Compare(a.Slot, b.Slot) })
	k.known = set
	return set, index, nil
}

func TestNetworkDeletedWhileItsHostWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a := newMember(t, store, "a")
		a.placeErr = errors.New("no interface fits")
		a.start()
		a.check(health.Underlay, api.Critical, "no interface fits")
		if err := store.Client().DeleteNetwork(context.Background(), "n"); err != nil {
			t.Fatal(err)
		}
		a.check(health.Network, api.Critical, "leno network apply")
	})
}
