package network

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestRenewalInTime: a session is renewed before it ends once the store can be used, however long pauses have grown,
// and even if a call hangs.
func TestRenewalInTime(t *testing.T) {
	for _, lease := range []config.Lease{
		{TTL: 10 * time.Second, RenewMargin: 20 * time.Second / 3},
		{TTL: 10 * time.Second, RenewMargin: 9 * time.Second},
		{TTL: 2 * time.Minute, RenewMargin: 80 * time.Second},
		{TTL: 10 * time.Minute, RenewMargin: 5 * time.Minute},
	} {
		for _, hangs := range []bool{false, true} {
			name := fmt.Sprintf("ttl %s, margin %s, hangs %t", lease.TTL, lease.RenewMargin, hangs)
			simulated(t, name, func(t *testing.T) { renewalInTime(t, lease, hangs) })
		}
	}
}

func renewalInTime(t *testing.T, lease config.Lease, hangs bool) {
	a := newMember(t, memory.New(), "a")
	a.deps.Log, a.config.Lease = hclog.NewNullLogger(), lease
	a.config.Lease.Hold = 100 * lease.TTL
	a.start().subnet()
	synctest.Wait() // until the first renewal is under way
	session := func() string { l, _ := a.run.Lease(); return l.Session }
	renewed := func() time.Time { return a.run.lease.Status().Renewed }
	first := session()
	for range 20 {
		// Only renewals fail, so that nothing else wakes the loop. What is left of the margin must then suffice for a
		// pause, and for a call that hangs.
		left := lease.RenewMargin / 4
		if hangs {
			left += lease.RenewMargin / 2
		}
		last := renewed()
		a.registry.SetHanging(hangs)
		a.registry.SetOne("Renew", registry.ErrUnavailable)
		time.Sleep(time.Until(last.Add(lease.TTL - left)))
		a.registry.SetHanging(false)
		a.registry.SetOne("Renew", nil)
		for renewed() == last {
			if time.Since(last) > lease.TTL+lease.TTL/1000 {
				t.Fatal("not renewed within its ttl")
			}
			time.Sleep(lease.TTL / 1000)
		}
	}
	if session() != first {
		t.Error("the session was lost")
	}
}
