package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/etcdtest"
	"github.com/lenonet/leno/registry"
)

// meter counts the bytes that a client receives.
type meter struct{ received atomic.Int64 }

func (m *meter) count(c *Config) {
	c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		return meteredConn{conn, m}, err
	}
}

type meteredConn struct {
	net.Conn
	*meter
}

func (c meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received.Add(int64(n))
	return n, err
}

// fill writes keys below the prefix, more than size bytes in all, that mean nothing.
func (s *store) fill(t *testing.T, size int) {
	t.Helper()
	const part = 100 << 10
	for i := range size/part + 1 {
		key := fmt.Sprintf("%s/other/%d", s.keys.prefix, i)
		if _, err := s.admin.Put(testContext(t), key, strings.Repeat("x", part)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCostIdle: a host that follows the changes reads nothing to check what it knows.
func TestCostIdle(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	n := s.define(t, "10.5.0.0/16")
	const size = 2 << 20
	s.fill(t, size)
	var m meter
	c := s.open(t, m.count)
	l := acquire(t, c, n, claimOn(n, 1, 10))
	_, index := follow(t, c, n, 0, []string{"10"})
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	go func() { _, _, _ = c.WatchLeases(ctx, n, index) }()
	awaitFollowing(t, c)
	before := m.received.Load()
	for range 10 {
		if _, _, err := c.WatchReservations(testContext(t), n, registry.Known); err != nil {
			t.Fatal(err)
		}
		if err := c.Renew(testContext(t), l); err != nil {
			t.Fatal(err)
		}
		if err := c.Probe(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	if n := m.received.Load() - before; n > size/10 {
		t.Errorf("%d bytes", n)
	}
}

// TestCostClaim: a host that follows the changes claims and reads its lease without reading everything, and a reading goes on when its caller
// gives up.
func TestCostClaim(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	n := s.define(t, "10.5.0.0/16")
	acquire(t, s.open(t), n, claimOn(n, 1, 10)) // which creates the marker
	const size = 2 << 20
	s.fill(t, size)
	var m meter
	c := s.open(t, m.count)
	follow(t, c, n, 0, []string{"10"})
	awaitFollowing(t, c)
	before := m.received.Load()
	for i := 2; i < 6; i++ {
		acquire(t, c, n, claim(i))
	}
	for _, slot := range []uint64{10, 200} {
		_, _, err := c.WatchLease(testContext(t), n, n.Plan.Subnets(slot)[0], 0)
		if err != nil && !errors.Is(err, registry.ErrLeaseNotFound) {
			t.Fatal(err)
		}
	}
	if n := m.received.Load() - before; n > size/10 {
		t.Errorf("%d bytes for claims", n)
	}

	hasty, cancel := context.WithCancel(testContext(t))
	late := s.open(t)
	if err := late.own.mirror.Lock(hasty); err != nil { // no reading can begin
		t.Fatal(err)
	}
	cancel()
	_, err := late.Acquire(hasty, n, claim(7))
	wantErr(t, err, context.Canceled)
	late.own.mirror.Unlock()
	awaitFollowing(t, late)
}

// TestCostDisconnect: a host whose connection is lost and made again at once goes on, and reads only what has changed.
func TestCostDisconnect(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	n := s.define(t, "10.5.0.0/16")
	host, link := s.open(t), newLink(t, s)
	acquire(t, host, n, claimOn(n, 1, 10))
	const size = 2 << 20
	s.fill(t, size)
	var m meter
	c := s.open(t, link.config, m.count)
	_, index := follow(t, c, n, 0, []string{"10"})
	acquire(t, host, n, claimOn(n, 2, 20))
	_, index = follow(t, c, n, index, []string{"10", "20"}) // by the watch
	before := m.received.Load()
	link.closeAll()
	acquire(t, host, n, claimOn(n, 3, 30))
	follow(t, c, n, index, []string{"10", "20", "30"})
	if n := m.received.Load() - before; n > size/10 {
		t.Errorf("%d bytes", n)
	}
}

// TestCostAfterRestore: when the leases that a restored store has lost are given up, hosts claim again without reading
// everything.
func TestCostAfterRestore(t *testing.T) {
	t.Parallel()
	s, server := ownStore(t, etcdtest.Options{})
	n := s.define(t, "10.5.0.0/16")
	const size = 2 << 20
	s.fill(t, size)
	var m meter
	c, host := s.open(t, m.count, settle(time.Second)), s.open(t)
	acquire(t, host, n, claimOn(n, 1, 10))
	snapshot := server.SaveSnapshot(t)
	acquire(t, host, n, claimOn(n, 2, 20))
	follow(t, c, n, 0, []string{"10", "20"})
	server.RestoreSnapshot(t, snapshot)
	reach(t, c, n, []string{"10"})
	awaitFollowing(t, c)
	before := m.received.Load()
	acquire(t, c, n, claimOn(n, 3, 30))
	if n := m.received.Load() - before; n > size/10 {
		t.Errorf("%d bytes", n)
	}
}

// TestCostRestart: a host that still holds its lease reads only its own record when it starts, and its next claim writes
// nothing.
func TestCostRestart(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	n := s.define(t, "10.5.0.0/16")
	l := acquire(t, s.open(t), n, claimOn(n, 1, 10))
	const size = 2 << 20
	s.fill(t, size)
	var m meter
	c := s.open(t, m.count)
	for range 2 {
		if got := acquire(t, c, n, again(claim(1), l)); got.ModifyIndex != l.ModifyIndex || got.Session != l.Session {
			t.Errorf("had %+v, has %+v", l, got)
		}
	}
	if n := m.received.Load(); n > size/10 {
		t.Errorf("%d bytes", n)
	}
}

// TestAbandonedSession: a host whose session never got its key does not delay others while the store is whole, and does
// once the store was emptied.
func TestAbandonedSession(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	n := s.define(t, "10.5.0.0/16")
	c := s.open(t)
	acquire(t, c, n, claimOn(n, 1, 10))
	tree, err := c.own.mirror.Refresh(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	made := tree.Get(s.keys.marker(n.Name)).created
	left, _, err := c.own.sessions.create(testContext(t), n.Name, claim(2), made)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.admin.Delete(testContext(t), s.keys.session(n.Name, left.kept)); err != nil {
		t.Fatal(err)
	}
	acquire(t, s.open(t), n, claimOn(n, 3, 30))

	s.empty(t)
	n.ModifyIndex = 0
	if err := c.PutNetwork(testContext(t), n); err != nil {
		t.Fatal(err)
	}
	_, err = s.open(t).Acquire(testContext(t), n, claim(4))
	wantErr(t, err, registry.ErrLeasesLost)
}
