package etcd

import (
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/lenonet/leno/registry"
)

// manySlots is the configuration of a network of both families with 255 slots.
var manySlots = strings.NewReplacer("/22", "/16", "/62", "/56").Replace(bothFamilies)

// TestClaimBesideFlannel: in a network of both families with a flannel host, a claim succeeds although other hosts have
// claimed since its view, unless a flannel host has taken one of its subnets under another key.
func TestClaimBesideFlannel(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	c := s.open(t)
	n := s.flannelNetwork(t, c, manySlots)
	s.flannelLease(t, "10.5.1.0-24&fd00:5:0:1::-64", "192.0.2.99", false)
	acquire(t, c, n, vxlanClaim(t, 1))
	take := func(i int, slot uint64, meanwhile func()) (registry.Lease, error) {
		t.Helper()
		a := &acquisition{conn: s.open(t).own, network: n, claim: vxlanClaim(t, i)}
		if _, err := a.Current(testContext(t)); err != nil {
			t.Fatal(err)
		}
		meanwhile()
		return a.Take(testContext(t), registry.Choice{Slot: slot})
	}
	claimed := func() {
		other := vxlanClaim(t, 3)
		other.Prefer = n.Plan.Subnets(30)[0]
		acquire(t, c, n, other)
	}
	if l, err := take(2, 20, claimed); err != nil || l.Slot != 20 {
		t.Fatalf("%+v, %v", l, err)
	}
	crossed := func() { s.flannelLease(t, "10.5.60.0-24&fd00:5:0:28::-64", "192.0.2.98", false) } // 0x28 is 40
	if _, err := take(4, 40, crossed); !errors.Is(err, errRefused) {
		t.Errorf("%v", err)
	}
	if _, _, err := c.WatchLease(testContext(t), n, n.Plan.Subnets(40)[0], 0); !errors.Is(err, registry.ErrLeaseNotFound) {
		t.Errorf("the record was kept: %v", err)
	}
}

// TestClaimsTogetherBesideFlannel: no subnet of either family has two hosts when many hosts claim together beside one with
// flannel.
func TestClaimsTogetherBesideFlannel(t *testing.T) {
	t.Parallel()
	const hosts = 16
	s := newStore(t, common.Get(t))
	c := s.open(t)
	n := s.flannelNetwork(t, c, strings.NewReplacer("/22", "/19", "/62", "/59").Replace(bothFamilies)) // 31 slots
	s.flannelLease(t, "10.5.1.0-24&fd00:5:0:1::-64", "192.0.2.99", false)
	acquire(t, c, n, vxlanClaim(t, 0))
	var running sync.WaitGroup
	leases := make([]registry.Lease, hosts)
	for i := range leases {
		host, claim := s.open(t), vxlanClaim(t, i+1)
		running.Go(func() {
			var err error
			if leases[i], err = host.Acquire(testContext(t), n, claim); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	used := map[netip.Prefix]bool{}
	for _, l := range leases {
		for _, p := range l.Subnets {
			if used[p] {
				t.Errorf("%s has two hosts", p)
			}
			used[p] = true
		}
	}
	if want := hosts * 2; len(used) != want {
		t.Errorf("%d subnets are used, want %d", len(used), want)
	}
}
