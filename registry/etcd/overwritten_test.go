package etcd

import (
	"net/netip"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/registry"
)

// TestOverwrittenByJSON checks that a host keeps its subnet when another program writes JSON without the member "leno"
// over its record.
func TestOverwrittenByJSON(t *testing.T) {
	t.Parallel()
	for _, value := range []string{`{"version":1,"subnet":"nonsense"}`, "[]", "nonsense"} {
		s := newStore(t, common.Get(t))
		c := s.open(t)
		ctx := t.Context()
		n := registry.Network{
			Name:    "default",
			Plan:    registry.Plan{{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 24}},
			Backend: registry.Backend{Type: "host-gw"},
		}
		if err := c.PutNetwork(ctx, n); err != nil {
			t.Fatal(err)
		}
		n, err := c.Network(ctx, n.Name)
		if err != nil {
			t.Fatal(err)
		}
		claim := registry.Claim{
			Node:      "host-1",
			NodeID:    "00000000-0000-0000-0000-000000000001",
			PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			MTU:       1500,
			Backend:   n.Backend,
			TTL:       10 * time.Minute,
			Hold:      time.Minute,
		}
		before, err := c.Acquire(ctx, n, claim)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.admin.Put(ctx, s.LeaseKey(n, before.Slot), value, clientv3.WithIgnoreLease()); err != nil {
			t.Fatal(err)
		}
		claim.Session, claim.Prefer, claim.Running, claim.Since = before.Session, before.Subnet(), true, before.ModifyIndex
		after, err := c.Acquire(ctx, n, claim)
		if err != nil || after.Slot != before.Slot || after.Session != before.Session {
			t.Errorf("%s: had %s, has %s, %v", value, before.Subnet(), after.Subnet(), err)
		}
	}
}
