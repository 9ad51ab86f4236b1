package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/etcdtest"
	"github.com/lenonet/leno/registry"
)

// patience limits a test's calls and waits; only a failure takes that long.
const patience = 3 * time.Minute

// longOutage is longer than any call takes to notice that the store does not answer, also on a busy machine.
const longOutage = 3 * (keepAliveTime + keepAliveTimeout)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func settle(d time.Duration) func(*Config) { return func(c *Config) { c.Settle = d } }

// network returns a definition of the network "default" with subnets /24 or /64 and the backend alloc.
func network(t testing.TB, prefixes ...string) registry.Network {
	t.Helper()
	n := registry.Network{Name: "default"}
	for _, p := range prefixes {
		prefix := netip.MustParsePrefix(p)
		pool := registry.Pool{Prefix: prefix, SubnetLen: 24}
		if prefix.Addr().Is6() {
			pool.SubnetLen = 64
		}
		n.Plan = append(n.Plan, pool)
	}
	plan, err := n.Plan.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	n.Plan = plan
	if n.Backend, err = registry.NewBackend("alloc", nil); err != nil {
		t.Fatal(err)
	}
	return n
}

// define defines a network.
func (s *store) define(t *testing.T, prefixes ...string) registry.Network {
	t.Helper()
	n := network(t, prefixes...)
	c := s.open(t)
	if err := c.PutNetwork(testContext(t), n); err != nil {
		t.Fatal(err)
	}
	n, err := c.Network(testContext(t), n.Name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// claim returns the claim of host i, whose addresses are 192.0.2.i and 2001:db8::i.
func claim(i int) registry.Claim {
	backend, _ := registry.NewBackend("alloc", nil)
	return registry.Claim{
		Node:   fmt.Sprintf("host-%d", i),
		NodeID: fmt.Sprintf("00000000-0000-4000-8000-%012d", i),
		PublicIPs: []netip.Addr{
			netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}),
			netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i)),
		},
		MTU:     1500,
		Backend: backend,
		TTL:     10 * time.Minute, // no test takes so long
		Hold:    time.Hour,
	}
}

// claimOn returns the claim of host i that prefers a slot.
func claimOn(n registry.Network, i int, slot uint64) registry.Claim {
	c := claim(i)
	c.Prefer = n.Plan.Subnets(slot)[0]
	return c
}

// again returns the claim of a host that is using its lease.
func again(c registry.Claim, l registry.Lease) registry.Claim {
	c.Prefer, c.Session, c.Since, c.Running = l.Subnet(), l.Session, l.ModifyIndex, true
	return c
}

// acquire acquires a lease, on the slot that the claim prefers if it does. Otherwise it is one from 100 up in a large
// network: a random one may be one that a test names.
func acquire(t *testing.T, r registry.Registry, n registry.Network, c registry.Claim) registry.Lease {
	t.Helper()
	ctx, want := testContext(t), c.Prefer
	if slot := 100 + uint64(c.PublicIPs[0].As4()[3]); !want.IsValid() && n.Plan.InRange(slot) {
		c.Prefer = n.Plan.Subnets(slot)[0]
	}
	l, err := r.Acquire(ctx, n, c)
	for errors.Is(err, registry.ErrUnavailable) && ctx.Err() == nil { // of a server that was just restarted, as hosts do
		time.Sleep(20 * time.Millisecond)
		l, err = r.Acquire(ctx, n, c)
	}
	if err != nil {
		t.Fatal(err)
	}
	if want.IsValid() && l.Subnet() != want {
		t.Fatalf("%s got %s, want %s", c.Node, l.Subnet(), want)
	}
	return l
}

// summary is what a test wants to see of the leases: slots, with a "?" for missing and a "-" for lapsed leases.
func summary(set registry.LeaseSet) []string {
	out := []string{}
	for _, l := range set.Leases {
		text := fmt.Sprint(l.Slot)
		if !l.Held() {
			text += "-"
		}
		if l.Missing {
			text += "?"
		}
		out = append(out, text)
	}
	return out
}

// follow watches until the leases are the wanted ones, as summary has them. It fails on an error, and if a lease with
// one of the slots in always is not there.
func follow(t *testing.T, c *Client, n registry.Network, index uint64, want []string, always ...uint64) (
	registry.LeaseSet, uint64) {
	t.Helper()
	ctx := testContext(t)
	for {
		set, next, err := c.WatchLeases(ctx, n, index)
		if err != nil {
			t.Fatalf("waiting for %v: %v", want, err)
		}
		for _, slot := range always {
			if !slices.ContainsFunc(set.Leases, func(l registry.Lease) bool { return l.Slot == slot }) {
				t.Fatalf("slot %d was dropped: %v", slot, summary(set))
			}
		}
		if index = next; slices.Equal(summary(set), want) {
			return set, index
		}
	}
}

// reach is follow for a store that may be unavailable at first. No other error may happen.
func reach(t *testing.T, c *Client, n registry.Network, want []string, always ...uint64) (registry.LeaseSet, uint64) {
	t.Helper()
	retry(t, func(ctx context.Context) error {
		_, _, err := c.WatchLeases(ctx, n, 0)
		return err
	})
	return follow(t, c, n, registry.Known, want, always...)
}

// retryUntil repeats a call that the store may be too slow to answer until done is closed, and returns the last error.
func retryUntil(t *testing.T, done <-chan struct{}, call func(ctx context.Context) error) error {
	t.Helper()
	ctx := testContext(t)
	for {
		err := call(ctx)
		select {
		case <-done:
			return err
		default:
			if !errors.Is(err, registry.ErrUnavailable) || ctx.Err() != nil {
				t.Fatalf("ended too early: %v", err)
			}
		}
	}
}

// retry repeats a call until it does not return ErrUnavailable, and fails if it then returns an error.
func retry(t *testing.T, call func(ctx context.Context) error) {
	t.Helper()
	ctx := testContext(t)
	for {
		err := call(ctx)
		if err == nil {
			return
		}
		if !errors.Is(err, registry.ErrUnavailable) {
			t.Fatal(err)
		}
		if registry.Sleep(ctx, 50*time.Millisecond) != nil {
			t.Fatal(err)
		}
	}
}

// standsStill fails if a client considers what it knows of a network current while the store does not answer.
func standsStill(t *testing.T, c *Client, network string) (at time.Time) {
	t.Helper()
	at = c.Followed(network)
	if time.Sleep(100 * time.Millisecond); !c.Followed(network).Equal(at) {
		t.Errorf("Followed advances while nothing answers: %v", c.Followed(network).Sub(at))
	}
	return at
}

// wantFollowed fails if a client does not consider what it knows of a network current at a time or later.
func wantFollowed(t *testing.T, c *Client, network string, since time.Time) {
	t.Helper()
	if at := c.Followed(network); at.Before(since) {
		t.Errorf("followed until %v before it", since.Sub(at))
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

// ownStore returns a store on a server that the test may disturb.
func ownStore(t *testing.T, o etcdtest.Options) (*store, *etcdtest.Server) {
	t.Helper()
	server := etcdtest.Start(t, o)
	return newStore(t, server), server
}

// records returns the keys of a network's leases.
func (s *store) records(t *testing.T, n registry.Network) (keys []string) {
	t.Helper()
	for _, key := range s.Keys(t, "leases", n.Name) {
		if key != s.keys.marker(n.Name) {
			keys = append(keys, key)
		}
	}
	return keys
}
