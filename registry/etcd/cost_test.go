package etcd

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

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
