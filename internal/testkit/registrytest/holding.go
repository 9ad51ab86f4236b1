package registrytest

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/lenonet/leno/registry"
)

var holdingTests = []test{
	{"a running host keeps its slot over an older record of its own", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		c := s.claim(0)
		old := s.acquire(r, n, c)
		// As after a restore: the current record is gone, and an earlier one is back under the session that is still
		// alive.
		c.Session, c.Running = old.Session, true
		c.Prefer = n.Plan.Subnets(old.Slot%3 + 100)[0]
		now := s.acquire(r, n, c)
		s.equal("subnet", now.Subnet(), c.Prefer)
		s.equal("session", now.Session, old.Session)
		s.gone(s.leaseKey(n, old.Slot))

		// A host that is not running returns to its record.
		c.Running, c.Prefer = false, old.Subnet()
		again := s.acquire(r, n, c)
		s.equal("subnet", again.Subnet(), now.Subnet())
	}},
	{"a host that takes another slot removes its lapsed lease", func(s *suite) {
		r, n := s.open(), s.network("default", wide)
		c := s.claim(0)
		old, other := s.acquire(r, n, c), s.acquire(r, n, s.claim(1))
		for _, l := range []registry.Lease{old, other} {
			s.store.EndSession(s.T, l.Session)
		}
		c.Avoid = old.Subnet()
		now := s.acquire(s.open(), n, c)
		if now.Slot == old.Slot || now.Slot == other.Slot {
			s.Fatalf("slot %d", now.Slot)
		}
		s.gone(s.leaseKey(n, old.Slot))
		s.lapsed(r, n, other.Slot)
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
	{"a client stays usable when it has reconnected", func(s *suite) {
		r, n := s.open(), s.network("default", wide)
		l := s.acquire(r, n, s.claim(0))
		_, index, err := r.WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		r.Reconnect()
		s.ok(r.Renew(s.ctx(), l))
		s.acquire(r.As(s.store.Token()), n, s.claim(1))
		set, _, err := r.WatchLeases(s.ctx(), n, index)
		s.ok(err)
		s.equal("leases", len(set.Leases), 2)
	}},
	{"renew removes what else is under the session", func(s *suite) {
		r, n := s.open(), s.network("default", wide)
		l := s.acquire(r, n, s.claim(0))
		// A session is no secret: another program locks a record with it that names the host.
		c := s.claim(1)
		c.Session = l.Session
		forged := s.acquire(s.open(), n, c)
		s.equal("session", forged.Session, l.Session)
		copied := l
		copied.Slot, copied.Subnets = forged.Slot, forged.Subnets
		value, err := registry.FormatLease(copied)
		s.ok(err)
		s.store.Put(s.T, s.leaseKey(n, forged.Slot), value)
		ctx := s.ctx()
		for isThere := true; isThere; {
			_, _, err = r.WatchLeases(ctx, n, 0)
			s.ok(err)
			s.ok(r.Renew(ctx, l))
			_, _, isThere = s.store.Get(s.T, s.leaseKey(n, forged.Slot))
		}
		s.stays(n, l)
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
		s.wantErr(r.Renew(s.ctx(), l), registry.ErrLeaseLost) // its session ended nevertheless
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

		// The session does not tell, only the record does.
		s.ok(r.Renew(s.ctx(), l))
		for _, r := range []registry.Registry{r, other, s.open()} {
			_, index, err := r.WatchLease(s.ctx(), n, l.Subnet(), 0)
			s.wantErr(err, registry.ErrLeaseRevoked)
			if index == 0 {
				s.Fatal("index 0 would make the next watch not block")
			}
			if !registry.RevokedFrom(err, c.NodeID) || registry.RevokedFrom(err, s.claim(1).NodeID) {
				s.Fatalf("revoked from %q: %t, from another host: %t", c.NodeID, registry.RevokedFrom(err, c.NodeID), registry.RevokedFrom(err, s.claim(1).NodeID))
			}
		}

		c.Session, c.Prefer, c.Running, c.Avoid = l.Session, l.Subnet(), true, l.Subnet()
		again := s.acquire(r, n, c)
		if again.Slot == l.Slot || again.Session != l.Session {
			s.Fatalf("was %+v, is %+v: want another slot under the same session", l, again)
		}
		_, _, err := r.WatchLease(s.ctx(), n, l.Subnet(), 0)
		s.wantErr(err, registry.ErrLeaseRevoked)
	}},
	{"only the last of a slot's records may be revoked", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		c := s.claim(0)
		c.Prefer = n.Plan.Subnets(7)[0]
		for _, tt := range []struct {
			name string
			lose func(l registry.Lease)
			want error
		}{
			{"deleted by hand", func(l registry.Lease) { s.store.Delete(s.T, s.leaseKey(n, l.Slot)) }, registry.ErrLeaseNotFound},
			{"revoked", func(l registry.Lease) { s.ok(s.open().Revoke(s.ctx(), n.Name, l.Subnet())) }, registry.ErrLeaseRevoked},
			{"released", func(l registry.Lease) { s.ok(r.Release(s.ctx(), l)) }, registry.ErrLeaseNotFound},
			{"revoked again", func(l registry.Lease) { s.ok(s.open().Revoke(s.ctx(), n.Name, l.Subnet())) }, registry.ErrLeaseRevoked},
			{"revoked when lapsed", func(l registry.Lease) {
				s.store.EndSession(s.T, l.Session)
				s.ok(s.open().Revoke(s.ctx(), n.Name, l.Subnet()))
			}, registry.ErrLeaseRevoked},
			{"expired", func(l registry.Lease) {
				s.store.EndSession(s.T, l.Session)
				other := s.open()
				s.ok(other.Expire(s.ctx(), s.lapsed(other, n, l.Slot)))
			}, registry.ErrLeaseNotFound},
		} {
			l := s.acquire(r, n, c)
			c.Session = l.Session
			if l.Slot != 7 {
				s.Fatalf("before %s: slot %d, want 7", tt.name, l.Slot)
			}
			if got, _, err := r.WatchLease(s.ctx(), n, l.Subnet(), 0); err != nil || got.Session != l.Session {
				s.Fatalf("before %s: %+v, %v", tt.name, got, err)
			}
			tt.lose(l)
			_, _, err := s.open().WatchLease(s.ctx(), n, l.Subnet(), 0)
			if !errors.Is(err, tt.want) {
				s.Errorf("%s: %v, want %v", tt.name, err, tt.want)
			}
		}
	}},
	{"a revoked slot goes to other hosts first", func(s *suite) {
		r := s.open()
		n := s.network("default", small)
		c := s.claim(0)
		l := s.acquire(r, n, c)
		s.acquire(s.open(), n, s.claim(1))
		s.ok(s.open().Revoke(s.ctx(), n.Name, l.Subnet()))
		c.Session, c.Prefer, c.Running, c.Avoid = l.Session, l.Subnet(), true, l.Subnet()
		moved := s.acquire(r, n, c)
		if moved.Slot == l.Slot {
			s.Fatal("took the revoked slot while another was free")
		}
		// When there is no other slot, the revoked one is better than none.
		taken := s.open()
		s.acquire(taken, n, s.claim(2))
		c.Avoid, c.Prefer = moved.Subnet(), moved.Subnet()
		s.ok(s.open().Revoke(s.ctx(), n.Name, moved.Subnet()))
		s.equal("slot", s.acquire(r, n, c).Slot, moved.Slot)
		// A reservation returns it to the host.
		s.ok(r.AddReservation(s.ctx(), n, registry.Reservation{Subnet: moved.Subnet(), Node: c.Node}, false))
		s.ok(s.open().Revoke(s.ctx(), n.Name, moved.Subnet()))
		s.ok(s.open().Revoke(s.ctx(), n.Name, l.Subnet()))
		s.equal("slot", s.acquire(r, n, c).Slot, moved.Slot)
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
		for _, value := range []string{`{`, `{"version":1,"node_id":7}`, strings.Repeat("x", registry.MaxRecordSize+1)} {
			s.store.Put(s.T, s.leaseKey(n, 9), []byte(value))
			s.ok(s.open().Revoke(s.ctx(), n.Name, n.Plan.Subnets(9)[0]))
			s.gone(s.leaseKey(n, 9))
			// The record does not tell whose it was, so it may be any host's.
			_, _, err := s.open().WatchLease(s.ctx(), n, n.Plan.Subnets(9)[0], 0)
			s.wantErr(err, registry.ErrLeaseRevoked)
			if !registry.RevokedFrom(err, s.claim(0).NodeID) || !registry.RevokedFrom(err, s.claim(1).NodeID) {
				s.Errorf("%.20q: not revoked from anyone", value)
			}
		}
	}},
	{"revoke leaves the marker and the reservations", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		c := s.claim(0)
		s.ok(r.AddReservation(s.ctx(), n, registry.Reservation{Subnet: n.Plan.Subnets(9)[0], Node: c.Node}, false))
		l := s.acquire(r, n, c)
		s.ok(r.Revoke(s.ctx(), n.Name, l.Subnet()))
		s.equal("keys", s.store.Keys(s.T, "leases", n.Name), []string{s.key("leases", n.Name, "_")})
		s.equal("reservations", s.store.Keys(s.T, "reservations"), []string{s.reservationKey(n, 9)})
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
