package etcd

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
)

// once makes a link do something with the first bytes that contain text.
func (l *link) once(text string, what action, then func()) {
	done := &atomic.Bool{}
	l.do(func(data []byte) action {
		if !bytes.Contains(data, []byte(text)) || !done.CompareAndSwap(false, true) {
			return pass
		}
		then()
		return what
	})
}

// TestClaimWithoutAnswer: the connection is lost when a claim was sent. A host never gets two records.
func TestClaimWithoutAnswer(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]action{"dropped": drop, "sent": send, "late": late} {
		for _, refusing := range []bool{false, true} {
			for _, holding := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s refusing=%t holding=%t", name, refusing, holding), func(t *testing.T) {
					t.Parallel()
					testClaimWithoutAnswer(t, what, refusing, holding)
				})
			}
		}
	}
}

// testClaimWithoutAnswer loses the connection. If refusing is set, it stays so until the claim has failed. If holding is
// set, the host has a lease already and changes it.
func testClaimWithoutAnswer(t *testing.T, what action, refusing, holding bool) {
	s := newStore(t, common.Get(t))
	n := s.define(t, "10.5.0.0/16")
	link := newLink(t, s)
	host := s.open(t, link.config)
	if refusing { // the host is to claim again before the bytes arrive
		link.lateness = 2500 * time.Millisecond
	}
	c := claim(1)
	if holding {
		c = again(c, acquire(t, host, n, c))
		c.MTU = 1400
	}
	host.own.timeout = 500 * time.Millisecond
	lost := make(chan struct{})
	link.once("PublicIP", what, func() {
		if refusing {
			link.refuse()
		}
		close(lost)
	})
	var l registry.Lease
	err := retryUntil(t, lost, func(ctx context.Context) (err error) {
		l, err = host.Acquire(ctx, n, c)
		return err
	})
	if refusing {
		wantErr(t, err, registry.ErrUnavailable)
		link.mend() // late bytes are still on their way when the host claims again
	}
	retry(t, func(ctx context.Context) error {
		l, err = host.Acquire(ctx, n, c)
		return err
	})
	if holding && l.Subnet() != c.Prefer {
		t.Errorf("got %s, had %s", l.Subnet(), c.Prefer)
	}
	if what == late {
		<-link.passed
		time.Sleep(200 * time.Millisecond)
	}
	keys := s.records(t, n)
	if len(keys) != 1 || keys[0] != s.LeaseKey(n, l.Slot) {
		t.Errorf("the lease is %s, and the records are %v", l.Subnet(), keys)
	}
	set, _, err := s.open(t).WatchLeases(testContext(t), n, 0)
	if err != nil || len(set.Leases) != 1 || set.Leases[0].Session != l.Session || set.Leases[0].MTU != c.MTU {
		t.Errorf("%+v, %v; the lease is %+v", set, err, l)
	}
	retry(t, func(ctx context.Context) error { return host.Renew(ctx, l) }) // the connection may only be lost now
	holders, err := s.open(t).Holders(testContext(t), n.Name)
	if err != nil || len(holders) != 1 {
		t.Errorf("%+v, %v", holders, err)
	}
}

// TestSecondLease: a claim takes effect after a later one has found the host's lease as it should be. The renewal removes
// what the first one wrote.
func TestSecondLease(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	n := s.define(t, "10.5.0.0/16")
	link := newLink(t, s)
	link.release = make(chan struct{})
	pass := sync.OnceFunc(func() { close(link.release) })
	defer pass()
	host := s.open(t, link.config)
	first := claimOn(n, 1, 10)
	l := acquire(t, host, n, first)
	host.own.timeout = 500 * time.Millisecond
	lost := make(chan struct{})
	link.once("PublicIP", late, func() {
		link.refuse()
		close(lost)
	})
	other := again(first, l)
	other.Prefer = n.Plan.Subnets(20)[0]
	err := retryUntil(t, lost, func(ctx context.Context) error {
		_, err := host.Acquire(ctx, n, other)
		return err
	})
	wantErr(t, err, registry.ErrUnavailable)
	link.mend()
	retry(t, func(ctx context.Context) error {
		got, err := host.Acquire(ctx, n, again(first, l))
		if err == nil && got.ModifyIndex != l.ModifyIndex {
			t.Errorf("%+v, before %+v", got, l)
		}
		return err
	})
	pass()
	<-link.passed
	follow(t, host, n, registry.Known, []string{"10", "20"}, 10)
	stale := l
	stale.ModifyIndex--
	for _, tt := range []struct {
		renewed registry.Lease
		left    int
	}{{stale, 2}, {l, 1}, {l, 1}} {
		retry(t, func(ctx context.Context) error { return host.Renew(ctx, tt.renewed) })
		keys := s.records(t, n)
		if len(keys) != tt.left || keys[0] != s.LeaseKey(n, 10) {
			t.Errorf("records %v, want %d", keys, tt.left)
		}
	}
	follow(t, host, n, registry.Known, []string{"10"}, 10)
}

// TestDefinitionWithoutAnswer is the same for the definition of a network. A host that can connect again knows the
// outcome.
func TestDefinitionWithoutAnswer(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]action{"dropped": drop, "sent": send, "late": late} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, common.Get(t))
			n := network(t, "10.5.0.0/16")
			link := newLink(t, s)
			c := s.open(t, link.config)
			link.once("SubnetLen", what, func() {})
			err := c.PutNetwork(testContext(t), n, registry.Reservation{
				Network: n.Name,
				Subnet:  n.Plan.Subnets(7)[0],
				Node:    "host-7",
			})
			if err != nil {
				t.Fatal(err)
			}
			if what == late {
				<-link.passed
				time.Sleep(200 * time.Millisecond)
			}
			got, err := c.Network(testContext(t), n.Name)
			if err != nil {
				t.Fatal(err)
			}
			if set, _, err := c.WatchReservations(testContext(t), got, 0); err != nil || len(set.Reservations) != 1 {
				t.Errorf("%+v, %v", set, err)
			}
			acquire(t, c, got, claimOn(got, 1, 10))
		})
	}
}
