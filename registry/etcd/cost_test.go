package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/replica"
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

// BenchmarkChange measures what one change of a lease costs a host in a network with 5,000 hosts.
func BenchmarkChange(b *testing.B) {
	const hosts = 5000
	keys := layout{"/coreos.com/network", "default"}
	n := network(b, "10.0.0.0/8")
	var records []*record
	put := func(key, value string, lease clientv3.LeaseID) {
		records = append(records, &record{key: key, value: []byte(value), lease: lease, created: 5, modified: 5})
	}
	put(keys.definition(n.Name), "{}", 0)
	put(keys.marker(n.Name), markerValue, 0)
	conn := newConnection(newServers(Config{Prefix: keys.prefix, Network: keys.network}, user{}), &atomic.Int64{})
	for i := range hosts {
		a := &acquisition{conn: conn, network: n, claim: claim(i)}
		l, value, err := a.record(uint64(i + 10))
		if err != nil {
			b.Fatal(err)
		}
		put(keys.lease(n.Name, l.Subnets), string(value), clientv3.LeaseID(i+1))
		put(keys.session(n.Name, clientv3.LeaseID(i+1)), `{"node":"x"}`, clientv3.LeaseID(hosts+i+1))
	}
	t := replica.NewTree(0, 10, records)
	changed := keys.lease(n.Name, n.Plan.Subnets(20))
	first := n.Plan.Subnets(hosts / 2)[0]
	view := conn.views.leases(n.Name)
	read, kept := conn.reader(n)
	if _, _, _, err := view.Compare(t, n, read, kept); err != nil { // which parses all
		b.Fatal(err)
	}
	for b.Loop() {
		r := *t.Get(changed)
		r.modified = t.Revision + 1
		t = t.Apply(replica.Change[*record]{Key: r.key, Revision: r.modified, Record: &r})
		conn.recordOn(t, n.Name, first)
		conn.keys.definitions(t)
		if _, _, _, err := view.Compare(t, n, read, kept); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMassStart measures a start of 80 hosts at once in a network with 800 leases. Each host reads as an agent does:
// its last lease, a claim, its lease again.
func BenchmarkMassStart(b *testing.B) {
	const hosts = 80
	for b.Loop() {
		s := newStore(b, common.Get(b))
		n := network(b, "10.0.0.0/8")
		if err := s.open(b).PutNetwork(b.Context(), n); err != nil {
			b.Fatal(err)
		}
		for i := range 800 {
			a := &acquisition{network: n, claim: claim(i + 1000)}
			l, value, err := a.record(uint64(i + 1000))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := s.admin.Put(b.Context(), s.keys.lease(n.Name, l.Subnets), string(value)); err != nil {
				b.Fatal(err)
			}
		}
		var m meter
		var failed atomic.Int64
		var running sync.WaitGroup
		for i := range hosts {
			c := s.open(b, m.count)
			running.Go(func() {
				mine := claim(i)
				mine.PublicIPs = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})}
				for {
					ctx, cancel := context.WithTimeout(b.Context(), 15*time.Second)
					_, _, _ = c.WatchLease(ctx, n, n.Plan.Subnets(uint64(i + 10))[0], 0)
					l, err := c.Acquire(ctx, n, mine)
					if err == nil {
						_, _, err = c.WatchLease(ctx, n, l.Subnet(), 0)
					}
					cancel()
					if err == nil {
						return
					}
					if failed.Add(1)%40 == 1 {
						b.Log(err)
					}
				}
			})
		}
		running.Wait()
		b.ReportMetric(float64(m.received.Load())/1e6, "MB")
		b.ReportMetric(float64(failed.Load()), "failed")
	}
}
