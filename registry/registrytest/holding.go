package registrytest

import (
	"net/netip"

	"github.com/lenonet/leno/registry"
)

var holdingTests = []test{
	{"a running host keeps its slot over an older record of its own", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		c := s.claim(0)
		old := s.acquire(r, n, c)
		// As after a restore: the record of now is gone, an earlier one is back
		// under the session that still lives.
		c.Session, c.Running = old.Session, true
		c.Prefer = n.Plan.Subnets(old.Slot%3 + 100)[0]
		now := s.acquire(r, n, c)
		s.equal("subnet", now.Subnet(), c.Prefer)
		s.equal("session", now.Session, old.Session)
		s.gone(s.leaseKey(n, old.Slot))

		// A host that is not running goes back to its record.
		c.Running, c.Prefer = false, old.Subnet()
		again := s.acquire(r, n, c)
		s.equal("subnet", again.Subnet(), now.Subnet())
	}},
	{"renew writes nothing", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		l := s.acquire(r, n, s.claim(0))
		_, index, err := r.WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		for range 3 {
			s.ok(r.Renew(s.ctx(), l))
		}
		_, now, err := r.WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		s.equal("index", now, index)
	}},
	{"renew without a session", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		l := s.acquire(r, n, s.claim(0))
		s.store.EndSession(s.T, l.Session)
		s.wantErr(r.Renew(s.ctx(), l), registry.ErrLeaseLost)
		l.Session = ""
		s.wantErr(r.Renew(s.ctx(), l), registry.ErrLeaseLost)
	}},
	{"release", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		l := s.acquire(r, n, s.claim(0))
		s.ok(r.Release(s.ctx(), l))
		s.gone(s.leaseKey(n, l.Slot))
		s.wantErr(r.Renew(s.ctx(), l), registry.ErrLeaseLost)
		s.ok(r.Release(s.ctx(), l))
		s.acquire(r, n, s.claim(0))
	}},
	{"release after a change of attributes", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		c := s.claim(0)
		l := s.acquire(r, n, c)
		c.MTU = 1400
		s.acquire(r, n, c)
		s.ok(r.Release(s.ctx(), l)) // with the older copy
		s.gone(s.leaseKey(n, l.Slot))
	}},
	{"release of a lease taken by another leaves it alone", func(s *suite) {
		r, other := s.open(), s.open()
		n := s.network("default", wide)
		l := s.acquire(r, n, s.claim(0))
		s.ok(other.Revoke(s.ctx(), n.Name, l.Subnet()))
		c := s.claim(1)
		c.Prefer = l.Subnet()
		taken := s.acquire(other, n, c)
		s.equal("slot", taken.Slot, l.Slot)

		s.ok(r.Release(s.ctx(), l))
		s.stays(n, taken)
		s.wantErr(r.Renew(s.ctx(), l), registry.ErrLeaseLost) // its session ended all the same
		s.ok(other.Renew(s.ctx(), taken))
	}},
	{"release of a lapsed lease", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		l := s.acquire(r, n, s.claim(0))
		s.store.EndSession(s.T, l.Session)
		s.ok(r.Release(s.ctx(), l))
	}},
	{"revoke", func(s *suite) {
		r, other := s.open(), s.open()
		n := s.network("default", wide)
		c := s.claim(0)
		l := s.acquire(r, n, c)
		s.wantErr(other.Revoke(s.ctx(), n.Name, n.Plan.Subnets(0)[0]), registry.ErrLeaseNotFound)
		s.ok(other.Revoke(s.ctx(), n.Name, l.Subnet()))
		s.gone(s.leaseKey(n, l.Slot))
		s.wantErr(other.Revoke(s.ctx(), n.Name, l.Subnet()), registry.ErrLeaseNotFound)

		// The session does not know: only the record tells.
		s.ok(r.Renew(s.ctx(), l))
		_, _, err := r.WatchLease(s.ctx(), n, l.Subnet(), 0)
		if !revoked(err) {
			s.Fatalf("got %v for a revoked lease", err)
		}

		c.Session, c.Prefer = l.Session, l.Subnet()
		again := s.acquire(r, n, c)
		if again.Slot != l.Slot || again.Session != l.Session || again.CreateIndex == l.CreateIndex {
			s.Fatalf("was %+v, is %+v: want the same slot and session in a new record", l, again)
		}
	}},
	{"revoke of a lapsed lease", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		l := s.acquire(r, n, s.claim(0))
		s.store.EndSession(s.T, l.Session)
		s.ok(s.open().Revoke(s.ctx(), n.Name, l.Subnet()))
		s.gone(s.leaseKey(n, l.Slot))
	}},
	{"revoke of an unusable record", func(s *suite) {
		n := s.network("default", wide)
		s.store.Put(s.T, s.leaseKey(n, 9), []byte(`{`))
		s.ok(s.open().Revoke(s.ctx(), n.Name, n.Plan.Subnets(9)[0]))
		s.gone(s.leaseKey(n, 9))
	}},
	{"revoke leaves the marker and the reservations", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		c := s.claim(0)
		s.ok(r.AddReservation(s.ctx(), n, registry.Reservation{Subnet: n.Plan.Subnets(9)[0], Node: c.Node}, false))
		l := s.acquire(r, n, c)
		s.ok(r.Revoke(s.ctx(), n.Name, l.Subnet()))
		s.equal("keys", s.store.Keys(s.T, s.key("leases", n.Name)+"/"), []string{s.key("leases", n.Name, "_")})
		s.equal("reservations", s.store.Keys(s.T, s.key("reservations")+"/"), []string{s.reservationKey(n, 9)})
		s.wantErr(r.Revoke(s.ctx(), n.Name, netip.Prefix{}), registry.ErrLeaseNotFound)
	}},
	{"expire", func(s *suite) {
		r, other := s.open(), s.open()
		n := s.network("default", wide)
		c := s.claim(0)
		l := s.acquire(r, n, c)
		s.wantErr(other.Expire(s.ctx(), l), registry.ErrConflict) // held
		s.stays(n, l)

		s.store.EndSession(s.T, l.Session)
		lapsed := s.lapsed(other, n, l.Slot)
		s.wantErr(other.Expire(s.ctx(), l), registry.ErrConflict) // an older version
		again := s.acquire(r, n, c)
		s.wantErr(other.Expire(s.ctx(), lapsed), registry.ErrConflict) // taken back
		s.stays(n, again)

		s.store.EndSession(s.T, again.Session)
		lapsed = s.lapsed(other, n, l.Slot)
		s.ok(other.Expire(s.ctx(), lapsed))
		s.gone(s.leaseKey(n, l.Slot))
		s.wantErr(other.Expire(s.ctx(), lapsed), registry.ErrConflict)
	}},
}
