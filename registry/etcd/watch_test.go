package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/internal/testkit/etcdtest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/replica"
)

// TestDeletedBetweenReadings: a lease whose deletion is learned only after the records were read again is not shown as
// missing for longer than that.
func TestDeletedBetweenReadings(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	n := s.define(t, "10.5.0.0/16")
	link := newLink(t, s)
	watcher, host := s.open(t, link.config, settle(time.Hour)), s.open(t)
	acquire(t, host, n, claimOn(n, 1, 10))
	l := acquire(t, host, n, claimOn(n, 2, 20))
	follow(t, watcher, n, 0, []string{"10", "20"})
	link.cut()
	if err := host.Release(testContext(t), l); err != nil {
		t.Fatal(err)
	}
	awaitNotFollowing(t, watcher)
	link.mend()
	reach(t, watcher, n, []string{"10"})
}

// awaitFailure blocks until WatchLeases returns ErrUnavailable.
func awaitFailure(t *testing.T, c *Client, n registry.Network) {
	t.Helper()
	start := time.Now()
	for index := registry.Known; ; {
		_, next, err := c.WatchLeases(testContext(t), n, index)
		if index = next; err == nil {
			continue
		}
		wantErr(t, err, registry.ErrUnavailable)
		if d := time.Since(start); d > longOutage {
			t.Errorf("WatchLeases failed after %v", d)
		}
		return
	}
}

// TestCompactedWhileDisconnected: the deletion of a lease may be compacted away before a client learns of it. Then it
// shows the lease as missing for a while.
func TestCompactedWhileDisconnected(t *testing.T) {
	t.Parallel()
	s, server := ownStore(t, etcdtest.Options{})
	n := s.define(t, "10.5.0.0/16")
	link := newLink(t, s)
	watcher, host := s.open(t, link.config, settle(3*time.Second)), s.open(t)
	acquire(t, host, n, claimOn(n, 1, 10))
	l := acquire(t, host, n, claimOn(n, 2, 20))
	follow(t, watcher, n, 0, []string{"10", "20"})
	link.cut()
	if err := host.Release(testContext(t), l); err != nil {
		t.Fatal(err)
	}
	acquire(t, host, n, claimOn(n, 3, 30))
	resp, err := s.admin.Put(testContext(t), s.keys.prefix+"/any", "")
	if err != nil {
		t.Fatal(err)
	}
	server.Compact(t, resp.Header.Revision)
	awaitNotFollowing(t, watcher)
	link.mend()
	set, index := reach(t, watcher, n, []string{"10", "20?", "30"})
	if set.SetBack != 0 || set.Leases[1].Lost {
		t.Errorf("the store was not set back: %d, lost %t", set.SetBack, set.Leases[1].Lost)
	}
	start := time.Now()
	_, index = follow(t, watcher, n, index, []string{"10", "30"})
	if d := time.Since(start); d > 30*time.Second { // ten times as long as they are kept
		t.Errorf("given up after %v", d)
	}
	acquire(t, host, n, claimOn(n, 4, 40))
	follow(t, watcher, n, index, []string{"10", "30", "40"})
}

// TestCompactedBeforeWatch: a client that has not followed the changes for a while reads everything again.
func TestCompactedBeforeWatch(t *testing.T) {
	t.Parallel()
	s, server := ownStore(t, etcdtest.Options{})
	n := s.define(t, "10.5.0.0/16")
	watcher := s.open(t)
	watcher.own.mirror.Idle = 20 * time.Millisecond
	l := acquire(t, watcher, n, claimOn(n, 1, 10))
	_, index := follow(t, watcher, n, 0, []string{"10"})
	awaitNotFollowing(t, watcher)
	other := s.open(t)
	c := again(claim(1), l)
	c.MTU = 1400
	acquire(t, other, n, c)
	resp, err := s.admin.Put(testContext(t), s.keys.prefix+"/any", "")
	if err != nil {
		t.Fatal(err)
	}
	server.Compact(t, resp.Header.Revision)
	set, index, err := watcher.WatchLeases(testContext(t), n, index)
	if err != nil || len(set.Leases) != 1 || set.Leases[0].MTU != 1400 {
		t.Fatalf("%+v, %v", set, err)
	}
	acquire(t, other, n, claimOn(n, 2, 20))
	follow(t, watcher, n, index, []string{"10", "20"})
}

// TestRestart: a server that is killed and started again.
func TestRestart(t *testing.T) {
	t.Parallel()
	s, server := ownStore(t, etcdtest.Options{})
	n := s.define(t, "10.5.0.0/16")
	watcher, host := s.open(t), s.open(t)
	c := claimOn(n, 1, 10)
	l := acquire(t, host, n, c)
	_, index := follow(t, watcher, n, 0, []string{"10"})
	failed := make(chan error, 1)
	go func() {
		_, _, err := watcher.WatchLeases(testContext(t), n, index)
		failed <- err
	}()
	server.Stop(0)
	start := time.Now()
	wantErr(t, <-failed, registry.ErrUnavailable)
	if d := time.Since(start); d > keepAliveTime { // at once, not because a check of the connection has failed
		t.Errorf("the watch failed after %v", d)
	}
	wantFollowed(t, watcher, n.Name, start.Add(-longOutage))
	standsStill(t, watcher, n.Name)
	wantErr(t, host.Renew(testContext(t), l), registry.ErrUnavailable)
	server.Restart(0)
	retry(t, func(ctx context.Context) error { return host.Renew(ctx, l) })
	retry(t, func(ctx context.Context) error { _, err := host.Acquire(ctx, n, again(c, l)); return err })
	_, index = reach(t, watcher, n, []string{"10"})
	back := time.Now()
	acquire(t, host, n, claimOn(n, 2, 20))
	follow(t, watcher, n, index, []string{"10", "20"})
	wantFollowed(t, watcher, n.Name, back)
}

// TestLeaderLost: hosts go on when a cluster elects another leader.
func TestLeaderLost(t *testing.T) {
	t.Parallel()
	s, server := ownStore(t, etcdtest.Options{Members: 3})
	n := s.define(t, "10.5.0.0/16")
	watcher, host := s.open(t), s.open(t)
	c := claimOn(n, 1, 10)
	l := acquire(t, host, n, c)
	follow(t, watcher, n, 0, []string{"10"})
	leader := leaderOf(t, s)
	server.Stop(leader)
	start := time.Now()
	retry(t, func(ctx context.Context) error { return host.Renew(ctx, l) })
	retry(t, func(ctx context.Context) error { _, err := host.Acquire(ctx, n, claimOn(n, 2, 20)); return err })
	reach(t, watcher, n, []string{"10", "20"}, 10)
	if d := time.Since(start); d > longOutage {
		t.Errorf("back after %v", d)
	}
	// Without a majority, the remaining member serves nothing.
	server.Stop((leader + 1) % 3)
	awaitFailure(t, watcher, n)
	_, err := host.Acquire(testContext(t), n, claim(3))
	wantErr(t, err, registry.ErrUnavailable)
	wantErr(t, host.Renew(testContext(t), l), registry.ErrUnavailable)
	_, err = host.own.doIf(testContext(t), []clientv3.Cmp{unchanged("any", 0)})
	wantErr(t, err, registry.ErrUnavailable)
	server.Restart((leader + 1) % 3)
	retry(t, func(ctx context.Context) error { return host.Renew(ctx, l) })
	reach(t, watcher, n, []string{"10", "20"}, 10, 20)
}

// leaderOf returns the member that leads the cluster.
func leaderOf(t *testing.T, s *store) int {
	t.Helper()
	for i, endpoint := range s.endpoints {
		status, err := s.admin.Status(testContext(t), endpoint)
		if err != nil {
			t.Fatal(err)
		}
		if status.Leader == status.Header.MemberId {
			return i
		}
	}
	t.Fatal("no leader")
	return 0
}

// TestPaused: a server that does not answer any more although its connections stay open.
func TestPaused(t *testing.T) {
	t.Parallel()
	s, server := ownStore(t, etcdtest.Options{})
	n := s.define(t, "10.5.0.0/16")
	c := s.open(t)
	l := acquire(t, c, n, claimOn(n, 1, 10))
	l2 := acquire(t, c, n, claimOn(n, 2, 20))
	_, index := follow(t, c, n, 0, []string{"10", "20"})
	calls := map[string]func(ctx context.Context) error{
		"WatchLeases":   func(ctx context.Context) error { _, _, err := c.WatchLeases(ctx, n, index); return err },
		"WatchNetworks": func(ctx context.Context) error { _, _, err := c.WatchNetworks(ctx, 0); return err },
		"Reservations":  func(ctx context.Context) error { _, _, err := c.WatchReservations(ctx, n, 0); return err },
		"Acquire":       func(ctx context.Context) error { _, err := c.Acquire(ctx, n, claim(3)); return err },
		"PutNetwork":    func(ctx context.Context) error { return c.PutNetwork(ctx, n) },
		"Revoke":        func(ctx context.Context) error { return c.Revoke(ctx, n.Name, l2.Subnet()) },
		"Renew":         func(ctx context.Context) error { return c.Renew(ctx, l) },
		"Release":       func(ctx context.Context) error { return c.Release(ctx, l2) },
		"Probe":         func(ctx context.Context) error { return c.Probe(ctx) },
		"Holders":       func(ctx context.Context) error { _, err := c.Holders(ctx, n.Name); return err },
	}
	server.Pause(0)
	start := time.Now()
	type result struct {
		name string
		err  error
		took time.Duration
	}
	results := make(chan result, len(calls))
	for name, call := range calls {
		go func() {
			err := call(testContext(t))
			results <- result{name, err, time.Since(start)}
		}()
	}
	for range calls {
		r := <-results
		if !errors.Is(r.err, registry.ErrUnavailable) || r.took > longOutage {
			t.Errorf("%s after %v: %v", r.name, r.took, r.err)
		}
	}
	if at := standsStill(t, c, n.Name); at.IsZero() || at.After(start.Add(time.Second)) {
		t.Errorf("followed %v after the pause", at.Sub(start))
	}
	server.Resume(0)
	back := time.Now()
	retry(t, func(ctx context.Context) error { // the calls about slot 20 may have taken place
		set, _, err := c.WatchLeases(ctx, n, 0)
		if err == nil && !slices.Contains(summary(set), "10") {
			t.Errorf("slot 10 was dropped: %v", summary(set))
		}
		return err
	})
	wantFollowed(t, c, n.Name, back)
}

// TestEachCallerLearnsOfTheReturn: several callers of one client are told of an outage. When the store is back, each is
// answered once, even if another one was answered before.
func TestEachCallerLearnsOfTheReturn(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t, etcdtest.Options{})
	s := newStore(t, server)
	n := s.define(t, "10.5.0.0/16")
	c := s.open(t)
	_, index, err := c.WatchLeases(t.Context(), n, 0)
	if err != nil {
		t.Fatal(err)
	}
	server.Stop(0)
	if _, _, err := c.WatchLeases(t.Context(), n, index); !errors.Is(err, registry.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	server.Restart(0)
	ctx := testContext(t)
	for {
		if _, _, err = c.WatchLeases(ctx, n, 0); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.WatchLeases(ctx, n, index); err != nil {
		t.Errorf("the one that was told of the failure: %v", err)
	}
}

// TestManyChangesAtOnce: a caller is told of many changes at once in few answers, of the first of them without a pause,
// and of the last of them at all.
func TestManyChangesAtOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	n := s.define(t, "10.5.0.0/16")
	c, host := s.open(t), s.open(t)
	first := claimOn(n, 1, 10)
	l := acquire(t, host, n, first)
	_, index := follow(t, c, n, 0, []string{"10"})
	time.Sleep(2 * replica.ComparePause)
	key := s.LeaseKey(n, l.Slot)
	value, _, _ := s.Get(t, key)
	const changes = 100
	done := make(chan error, 1)
	start := time.Now()
	go func() {
		for i := range changes {
			changed := bytes.Replace(value, []byte(`"mtu":1500`), fmt.Appendf(nil, `"mtu":%d`, 1300+i), 1)
			_, err := s.admin.Put(testContext(t), key, string(s.embed(key, changed)), clientv3.WithIgnoreLease())
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for answers := 1; ; answers++ {
		set, next, err := c.WatchLeases(testContext(t), n, index)
		if err != nil || len(set.Leases) != 1 {
			t.Fatalf("%+v, %v", set, err)
		}
		if index = next; set.Leases[0].MTU != 1300+changes-1 {
			continue
		}
		if most := int(time.Since(start)/replica.ComparePause) + 2; answers > most {
			t.Errorf("%d answers, at most %d are due", answers, most)
		}
		break
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
