package consul

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
)

// TestUnusedNetworksAreForgotten: knowledge of a network's leases is dropped after the last call about them, and stays
// while a watch of them blocks.
func TestUnusedNetworksAreForgotten(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.open(t, func(c *Config) { c.Idle = 100 * time.Millisecond })
	watched := putNetwork(t, s, "watched", "10.5.0.0/16")
	acquire(t, c, watched, 0)
	_, index, err := c.WatchLeases(testContext(t), watched, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	blocked := make(chan error)
	go func() {
		_, _, err := c.WatchLeases(ctx, watched, index)
		blocked <- err
	}()
	eventually(t, "the watch blocks", func() bool {
		c.shared.followers.mu.Lock()
		defer c.shared.followers.mu.Unlock()
		return c.shared.followers.byNetwork["watched"].users == 1
	})
	before := followerOf(c, "watched")
	for _, name := range []string{"looked-at", "looked-at-too"} {
		n := putNetwork(t, s, name, "10.6.0.0/16")
		if l := acquire(t, c, n, 1); l.Subnet() != n.Plan.Subnets(l.Slot)[0] {
			t.Error(l)
		}
		if _, _, err := c.WatchLeases(testContext(t), n, 0); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the networks without a watch are forgotten", func() bool { return known(c) == 1 })
	if followerOf(c, "watched") != before {
		t.Error("the network that is watched was forgotten")
	}
	if at := c.Followed("looked-at"); !at.IsZero() {
		t.Errorf("followed at %s", at)
	}
	cancel()
	<-blocked
	eventually(t, "the network that was watched is forgotten", func() bool { return known(c) == 0 })
}

// TestDeletedNetworkIsForgotten: leases of a deleted network are not shown as lost ones when it is defined again.
func TestDeletedNetworkIsForgotten(t *testing.T) {
	t.Parallel()
	for _, forget := range []bool{true, false} {
		s := newStore(t)
		c, dead := s.open(t), s.open(t)
		n := putNetwork(t, s, "default", "10.5.0.0/16")
		acquire(t, c, n, 0)
		subnet := acquire(t, dead, n, 1).Subnet()
		if set, _, err := c.WatchLeases(testContext(t), n, 0); err != nil || len(set.Leases) != 2 {
			t.Fatalf("%+v, %v", set, err)
		}
		if err := c.DeleteNetwork(testContext(t), "default"); err != nil {
			t.Fatal(err)
		}
		for _, prefix := range []string{c.kv.keys.Leases("default"), c.kv.keys.Changes("default")} {
			if _, err := s.admin.KV().DeleteTree(prefix, nil); err != nil {
				t.Fatal(err)
			}
		}
		if forget {
			c.Forget("default")
		}
		n = putNetwork(t, s, "default", "10.5.0.0/16")
		set, _, err := c.WatchLeases(testContext(t), n, 0)
		if err != nil {
			t.Fatal(err)
		}
		shown := slices.ContainsFunc(set.Leases, func(l registry.Lease) bool { return l.Subnet() == subnet })
		if shown == forget {
			t.Errorf("forgotten: %t, shown: %t", forget, shown)
		}
	}
}

// known returns the number of networks of which the client would know leases in the next call.
func known(c *Client) int {
	c.shared.followers.mu.Lock()
	defer c.shared.followers.mu.Unlock()
	c.shared.followers.dropIdleLocked()
	return len(c.shared.followers.byNetwork)
}

// TestForgottenNetworkIsReadAgain: a forgotten network is read from the beginning, and the time since its leases lapsed
// starts again.
func TestForgottenNetworkIsReadAgain(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.open(t, func(c *Config) { c.Idle = time.Second })
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	l := acquire(t, c, n, 0)
	s.EndSession(t, l.Session)
	lapsed := func() registry.Lease {
		set, _, err := c.WatchLeases(testContext(t), n, 0)
		if err != nil || len(set.Leases) != 1 || set.Leases[0].Held() {
			t.Fatal(set, err)
		}
		return set.Leases[0]
	}
	first := lapsed()
	for first.Lapsed < 300*time.Millisecond { // longer than the second reading takes
		time.Sleep(10 * time.Millisecond)
		first = lapsed()
	}
	eventually(t, "the network is forgotten", func() bool { return known(c) == 0 })
	if again := lapsed(); again.Lapsed >= first.Lapsed && again.Lapsed > 0 || again.Subnet() != l.Subnet() {
		t.Errorf("lapsed for %s, and then for %s", first.Lapsed, again.Lapsed)
	}
}

// TestRenewAfterThePoolsGrew: the record of a lease has another slot number once the network's pools have changed, and is
// no second lease of its host.
func TestRenewAfterThePoolsGrew(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c, ctx := s.open(t), testContext(t)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	l := acquire(t, c, n, 0)
	n.Plan = network("default", "10.4.0.0/15").Plan
	set, _, err := c.WatchLeases(ctx, n, 0)
	if err != nil || len(set.Leases) != 1 || set.Leases[0].Slot == l.Slot {
		t.Fatalf("%+v, %v, before %+v", set.Leases, err, l)
	}
	if err := c.Renew(ctx, l); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := s.Get(t, c.kv.keys.Lease(n.Name, l.Subnet())); !ok {
		t.Error("the record was removed")
	}
}
