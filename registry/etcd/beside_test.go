package etcd

import (
	"net/netip"
	"testing"

	"github.com/lenonet/leno/registry"
)

// TestRecordBeside: a record that someone writes beside that of a host, with one of its subnets in another key, changes
// nothing: for the host, whose session may have ended, for the others, and for one that takes another lease.
func TestRecordBeside(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(*store) (key string){
		"the IPv4 subnet alone":             func(s *store) string { return s.flannelLease(t, "10.5.10.0-24", "192.0.2.99", true) },
		"the IPv4 subnet alone, with a TTL": func(s *store) string { return s.flannelLease(t, "10.5.10.0-24", "192.0.2.99", false) },
		"a lower IPv6 subnet": func(s *store) string {
			return s.flannelLease(t, "10.5.10.0-24&fd00:5:0:1::-64", "192.0.2.99", true)
		},
		"the IPv6 subnet": func(s *store) string {
			return s.flannelLease(t, "10.5.1.0-24&fd00:5:0:a::-64", "192.0.2.99", true)
		},
		"nonsense": func(s *store) string {
			key := s.keys.prefix + "/subnets/10.5.10.0-24"
			s.Put(t, key, []byte("x"))
			return key
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, common.Get(t))
			host, watcher := s.open(t), s.open(t)
			n := s.flannelNetwork(t, host, manySlots)
			c := vxlanClaim(t, 1)
			c.Prefer = n.Plan.Subnets(10)[0]
			before := acquire(t, host, n, c)
			follow(t, watcher, n, 0, []string{"10"})
			key := write(s)

			check := func(l registry.Lease) {
				t.Helper()
				for _, reader := range []*Client{host, watcher} {
					now, _, err := reader.WatchLease(testContext(t), n, l.Subnet(), 0)
					if err != nil || now.Node != c.Node || now.Session != l.Session || now.ModifyIndex != l.ModifyIndex {
						t.Errorf("the record is %+v, %v; want %+v", now, err, l)
					}
				}
				set, _, err := watcher.WatchLeases(testContext(t), n, 0)
				if err != nil || len(set.Leases) != 1 || set.Leases[0].Node != c.Node || len(set.Bad) != 1 || set.Bad[0].Key != key {
					t.Errorf("%+v, %v", set, err)
				}
			}
			check(before)
			c.MTU = 1400
			changed := acquire(t, host, n, again(c, before))
			if changed.Session != before.Session || changed.Slot != before.Slot {
				t.Errorf("held %+v, holds %+v", before, changed)
			}
			check(changed)
			other := vxlanClaim(t, 2)
			other.Prefer = changed.Subnet()
			l, err := s.open(t).Acquire(testContext(t), n, other)
			if err != nil || l.Slot == 10 || l.Slot == 1 {
				t.Errorf("another host got %+v, %v", l, err)
			}
			if err := watcher.Revoke(testContext(t), n.Name, l.Subnet()); err != nil {
				t.Fatal(err)
			}

			held, _ := parseSession(changed.Session)
			if _, err := s.admin.Revoke(testContext(t), held.alive); err != nil {
				t.Fatal(err)
			}
			changed.Session = ""
			check(changed)
			c = again(c, changed)
			c.Session, c.Running = before.Session, false
			back := acquire(t, s.open(t), n, c)
			if !back.Held() || back.Slot != before.Slot {
				t.Errorf("held %+v, holds %+v", before, back)
			}
			check(back)
		})
	}
}

// TestClaimOnKeyOfNoHost: a record whose key begins with a subnet, and is none that a host writes, keeps its subnet from
// everyone. A host that had the subnet before takes another one.
func TestClaimOnKeyOfNoHost(t *testing.T) {
	t.Parallel()
	for _, pools := range [][]string{{"10.5.0.0/16"}, {"fd00:5::/48"}, {"10.5.0.0/16", "fd00:5::/48"}} {
		for _, suffix := range []string{"&", "&x", "&fd00:5:0:1::-65", "$"} {
			s := newStore(t, common.Get(t))
			n, c := s.define(t, pools...), s.open(t)
			used := n.Plan.Subnets(10)[0]
			s.Put(t, s.keys.lease(n.Name, []netip.Prefix{used})+suffix, []byte("x"))
			returning := claim(1)
			returning.Prefer, returning.RecentUse, returning.Since = used, true, 1
			if l, err := c.Acquire(testContext(t), n, returning); err != nil || l.Slot == 10 {
				t.Errorf("%s%s: %+v, %v", used, suffix, l, err)
			}
		}
	}
}
