package registrytest

import (
	"net/netip"
	"strings"

	"github.com/lenonet/leno/registry"
)

var familyTests = []test{
	{"ipv6", func(s *suite) {
		n := s.network("six", "fd00:5::/48")
		c := s.claim(0)
		c.Prefer = netip.MustParsePrefix("fd00:5:0:22::/64")
		c.PublicIPs = []netip.Addr{netip.MustParseAddr("2001:db8::1")}
		l := s.acquire(s.open(), n, c)
		s.equal("subnet", l.Subnet(), c.Prefer)
		s.equal("keys", s.leaseKeys(n), []string{s.leaseKey(n, 0x22)})
		set, _, err := s.open().WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		s.equal("set", set, registry.LeaseSet{Leases: []registry.Lease{l}})
		s.acquire(s.open(), n, s.claim(1))
	}},
	{"dual stack", func(s *suite) {
		n := s.network("dual", "fd00:5::/48", wide)
		r := s.open()
		c := s.claim(0)
		subnets := []netip.Prefix{netip.MustParsePrefix("10.5.34.0/24"), netip.MustParsePrefix("fd00:5:0:22::/64")}
		c.Prefer = subnets[1]
		l := s.acquire(r, n, c)
		s.equal("subnets", l.Subnets, subnets)
		s.equal("keys", s.leaseKeys(n), []string{s.leaseKey(n, 34)})
		for _, subnet := range subnets {
			got, _, err := s.open().WatchLease(s.ctx(), n, subnet, 0)
			s.ok(err)
			s.equal("lease by "+subnet.String(), got, l)
		}
		s.ok(r.Revoke(s.ctx(), n.Name, subnets[1]))
		s.gone(s.leaseKey(n, 34))

		reservation := registry.Reservation{Subnet: subnets[1], Node: "host-x"}
		s.ok(r.AddReservation(s.ctx(), n, reservation, false))
		reservation.Subnet = subnets[0]
		s.ok(r.AddReservation(s.ctx(), n, reservation, false))
		set, _, err := r.WatchReservations(s.ctx(), n, 0)
		s.ok(err)
		if len(set.Reservations) != 1 || set.Reservations[0].Subnet != subnets[0] || set.Reservations[0].Slot != 34 {
			s.Fatalf("got %+v", set)
		}
		s.ok(r.RemoveReservation(s.ctx(), n.Name, subnets[1]))
		s.equal("reservations", s.store.Keys(s.T, "reservations"), []string(nil))
	}},
	{"a second record of a slot is not a second holder", func(s *suite) {
		n := s.network("dual", "fd00:5::/48", wide)
		l := s.acquire(s.open(), n, s.claim(0))
		value, _, _ := s.store.Get(s.T, s.leaseKey(n, l.Slot))
		key := s.key("leases", n.Name, registry.SubnetKey(l.Subnets[1]))
		s.store.Put(s.T, key, []byte(strings.Replace(string(value), l.Subnet().String(), l.Subnets[1].String(), 1)))
		set, _, err := s.open().WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		s.equal("leases", set.Leases, []registry.Lease{l})
		s.equal("bad", badKeys(set.Bad), []string{key})
	}},
	{"a network that gains a family", func(s *suite) {
		n := s.network("default", wide)
		r := s.open()
		l := s.acquire(r, n, s.claim(0))
		n.Plan = s.plan(wide, "fd00:5::/48")
		s.ok(r.PutNetwork(s.ctx(), n))
		n, err := r.Network(s.ctx(), n.Name)
		s.ok(err)
		// The record stays valid until its host rewrites it.
		set, _, err := s.open().WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		s.equal("before", set, registry.LeaseSet{Leases: []registry.Lease{l}})
		again := s.acquire(r, n, s.claim(0))
		if again.Slot != l.Slot || len(again.Subnets) != 2 || again.Session != l.Session {
			s.Fatalf("was %+v, is %+v", l, again)
		}
	}},
	{"a network that loses a family", func(s *suite) {
		n := s.network("default", wide, "fd00:5::/48")
		r := s.open()
		l := s.acquire(r, n, s.claim(0))
		key := s.leaseKey(n, l.Slot)
		n.Plan = s.plan(wide)
		s.ok(r.PutNetwork(s.ctx(), n))
		n, err := r.Network(s.ctx(), n.Name)
		s.ok(err)
		// The record has more subnets than the network, until its host takes its slot again. No other host gets the
		// slot before that.
		set, _, err := s.open().WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		s.equal("bad", badKeys(set.Bad), []string{key})
		other := s.claim(1)
		other.Prefer = l.Subnet()
		if got := s.acquire(s.open(), n, other); got.Slot == l.Slot {
			s.Fatalf("%s went to another host", got.Subnet())
		}
		mine := s.claim(0)
		mine.Session, mine.Prefer = l.Session, l.Subnet()
		again := s.acquire(r, n, mine)
		if again.Slot != l.Slot || len(again.Subnets) != 1 || again.Session != l.Session {
			s.Fatalf("was %+v, is %+v", l, again)
		}
	}},
}
