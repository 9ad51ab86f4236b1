package etcd

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"go.uber.org/goleak"

	"github.com/lenonet/leno/internal/testkit/waiting"
	"github.com/lenonet/leno/registry"
)

func isFollowing(c *Client) bool {
	return c.own.mirror.Followed() != nil
}

func awaitNotFollowing(t *testing.T, c *Client) {
	t.Helper()
	waiting.Until(t, "the changes are no longer followed", func() bool { return !isFollowing(c) })
}

func awaitFollowing(t *testing.T, c *Client) {
	t.Helper()
	waiting.Until(t, "the changes are followed", func() bool { return isFollowing(c) })
}

// TestIdle: the changes are followed only while calls wait for them, and nothing is missed after a break.
func TestIdle(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	n := s.define(t, "10.5.0.0/16")
	c, other := s.open(t), s.open(t)
	c.own.mirror.Idle = 50 * time.Millisecond
	acquire(t, other, n, claimOn(n, 1, 10))
	_, index := follow(t, c, n, 0, []string{"10"})
	for i := 2; i < 5; i++ {
		awaitNotFollowing(t, c)
		l := acquire(t, other, n, claimOn(n, i, 20))
		_, index = follow(t, c, n, index, []string{"10", "20"})
		awaitNotFollowing(t, c)
		if err := other.Release(testContext(t), l); err != nil {
			t.Fatal(err)
		}
		_, index = follow(t, c, n, index, []string{"10"})
	}
	// A call that waits keeps it going.
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	waiting := make(chan error, 1)
	go func() {
		_, _, err := c.WatchLeases(ctx, n, index)
		waiting <- err
	}()
	awaitFollowing(t, c)
	for end := time.Now().Add(6 * c.own.mirror.Idle); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if !isFollowing(c) {
			t.Fatal("the changes are not followed although a call waits")
		}
	}
	cancel()
	wantErr(t, <-waiting, context.Canceled)
}

// TestIdleRace: a call that begins to wait when following ends for want of calls does not fail.
func TestIdleRace(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	n := s.define(t, "10.5.0.0/16")
	c := s.open(t)
	c.own.mirror.Idle = time.Nanosecond
	acquire(t, c, n, claimOn(n, 1, 10))
	_, index := follow(t, c, n, 0, []string{"10"})
	for start := time.Now(); time.Since(start) < time.Second; {
		ctx, cancel := context.WithTimeout(testContext(t), 3*time.Millisecond)
		_, _, err := c.WatchLeases(ctx, n, index)
		cancel()
		if err != nil { // after a call that failed, the next one returns at once
			wantErr(t, err, context.DeadlineExceeded)
		}
	}
}

// TestClose: nothing is left of a closed client, and its calls fail at once. It is not parallel, because other tests
// have goroutines.
func TestClose(t *testing.T) {
	s := newStore(t, common.Get(t))
	n := s.define(t, "10.5.0.0/16")
	s.revision(t) // so that the test's own client has connected
	before := goleak.IgnoreCurrent()
	c := New(Config{Endpoints: s.endpoints, Prefix: s.keys.prefix, Network: s.keys.network, Settle: time.Hour})
	acquire(t, c, n, claimOn(n, 1, 10))
	_, index := follow(t, c, n, 0, []string{"10"})
	for i := range 16 {
		user := string(rune('a' + i))
		if _, _, err := c.As(user+":x").WatchLeases(testContext(t), n, 0); err != nil {
			t.Fatal(err)
		}
	}
	waiting := make(chan error, 1)
	go func() {
		_, _, err := c.WatchLeases(testContext(t), n, index)
		waiting <- err
	}()
	awaitFollowing(t, c)
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-waiting; err == nil {
		t.Error("a call that waited succeeded")
	}
	for _, call := range []func() error{
		func() error { _, _, err := c.WatchLeases(testContext(t), n, index); return err },
		func() error { return c.Probe(testContext(t)) },
		func() error { _, err := c.As("z:x").Network(testContext(t), n.Name); return err },
	} {
		if call() == nil {
			t.Error("a call of a closed client succeeded")
		}
	}
	left := goleak.Find(before)
	for deadline := time.Now().Add(patience); left != nil && time.Now().Before(deadline); {
		left = goleak.Find(before) // which waits for a while
	}
	if left != nil {
		t.Error(left)
	}
}

// TestInventedUsers: a caller's user costs no connection, and nothing of it is left after its request, whether or not the
// store has authentication.
func TestInventedUsers(t *testing.T) {
	t.Parallel()
	t.Run("no authentication", func(t *testing.T) {
		t.Parallel()
		s := newStore(t, common.Get(t))
		n := s.define(t, "10.5.0.0/16")
		testInventedUsers(t, s, n, nil)
	})
	t.Run("wrong passwords", func(t *testing.T) {
		t.Parallel()
		s := newStore(t, withAuth.Get(t))
		testInventedUsers(t, s, network(t, "10.5.0.0/16"), registry.ErrDenied)
	})
}

func testInventedUsers(t *testing.T, s *store, n registry.Network, want error) {
	var dialed atomic.Int32
	c := s.open(t, func(c *Config) {
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			dialed.Add(1)
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
	})
	var left []weak.Pointer[connection]
	for i := range 20 {
		guest := c.As(fmt.Sprintf("invented-%d:x", i)).(*Client)
		_, err := guest.Network(testContext(t), n.Name)
		wantErr(t, err, want)
		_, _, err = guest.WatchLeases(testContext(t), n, 0)
		wantErr(t, err, want)
		left = append(left, weak.Make(guest.own))
	}
	if got := dialed.Load(); got != 1 {
		t.Errorf("%d connections", got)
	}
	isFree := func(p weak.Pointer[connection]) bool { return p.Value() == nil }
	waiting.Until(t, "all users are forgotten", func() bool {
		runtime.GC()
		left = slices.DeleteFunc(left, isFree)
		return len(left) == 0
	})
}
