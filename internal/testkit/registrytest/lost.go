package registrytest

import (
	"time"

	"github.com/lenonet/leno/registry"
)

// lostTests cover a store that has lost the leases of hosts.
var lostTests = []test{
	{"a newcomer waits for hosts whose leases were lost", func(s *suite) {
		r, newcomer := s.open(), s.open()
		n := s.network("default", wide)
		own, second, third := s.claim(0), s.claim(1), s.claim(2)
		first := s.acquire(r, n, own)
		other := s.acquire(s.open(), n, second)
		s.emptied(n)
		_, err := newcomer.Acquire(s.ctx(), n, third)
		s.wantErr(err, registry.ErrLeasesLost, "waiting for "+own.Node+", "+second.Node+" to claim again, until ",
			"Z at the latest")
		own.Session, own.Prefer = first.Session, first.Subnet()
		s.equal("slot", s.acquire(r, n, own).Slot, first.Slot)
		_, err = newcomer.Acquire(s.ctx(), n, third)
		s.wantErr(err, registry.ErrLeasesLost, second.Node)
		s.store.EndSession(s.T, other.Session)
		s.acquire(newcomer, n, third)
	}},
	{"a host at work on its subnet does not wait", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		own := s.claim(0)
		l := s.acquire(r, n, own)
		s.acquire(s.open(), n, s.claim(1))
		s.store.EndSession(s.T, l.Session) // it was cut off
		s.emptied(n)
		own.Prefer = l.Subnet()
		_, err := s.open().Acquire(s.ctx(), n, own)
		s.wantErr(err, registry.ErrLeasesLost, s.claim(1).Node)
		own.Running = true
		s.equal("slot", s.acquire(r, n, own).Slot, l.Slot)
	}},
	{"a host that saw the loss waits for others to notice", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		own, other := s.claim(0), s.claim(1)
		l := s.acquire(s.open(), n, own)
		s.emptied(n)
		s.store.EndSession(s.T, l.Session) // the store was set back to an earlier state
		other.Lost = time.Now()
		_, err := r.Acquire(s.ctx(), n, other)
		s.wantErr(err, registry.ErrLeasesLost, "other hosts", "until "+other.Lost.Add(other.TTL).UTC().Format(time.RFC3339))
		own.Prefer, own.RecentUse, own.Lost = l.Subnet(), true, other.Lost
		s.equal("slot", s.acquire(s.open(), n, own).Slot, l.Slot)
		_, err = r.Acquire(s.ctx(), n, other)
		s.wantErr(err, registry.ErrLeasesLost, "other hosts")
		other.Lost = other.Lost.Add(-other.TTL)
		s.acquire(r, n, other)
	}},
	{"a host that is claiming when the store is set back waits for others to notice", func(s *suite) {
		newcomer := s.open()
		n := s.network("default", wide)
		own, other := s.claim(0), s.claim(1)
		first := s.acquire(s.open(), n, own)
		s.emptied(n)
		_, err := newcomer.Acquire(s.ctx(), n, other)
		s.wantErr(err, registry.ErrLeasesLost, own.Node)
		s.emptied(n)
		s.store.EndSession(s.T, first.Session)
		_, err = newcomer.Acquire(s.ctx(), n, other) // it does not know of the loss
		s.wantErr(err, registry.ErrLeasesLost, "other hosts")
		own.Prefer, own.Running = first.Subnet(), true
		s.equal("slot", s.acquire(s.open(), n, own).Slot, first.Slot)
	}},
	{"a claim that other reasons keep from succeeding sees the store set back", func(s *suite) {
		newcomer := s.open()
		n := s.network("default", wide)
		own, other, rival := s.claim(0), s.claim(1), s.claim(2)
		first, before := s.acquire(s.open(), n, own), s.acquire(s.open(), n, rival)
		other.PublicIPs = rival.PublicIPs
		_, err := newcomer.Acquire(s.ctx(), n, other)
		s.wantErr(err, registry.ErrDuplicateAddress)
		s.emptied(n)
		s.store.EndSession(s.T, first.Session)
		s.store.EndSession(s.T, before.Session)
		_, err = newcomer.Acquire(s.ctx(), n, other)
		s.wantErr(err, registry.ErrLeasesLost, "other hosts")
	}},
	{"a claim does not wait for a loss of long ago", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		own := s.claim(0)
		first := s.acquire(r, n, own)
		s.ok(r.Release(s.ctx(), first))
		s.emptied(n)
		s.acquire(r, n, own) // the tree was created again since its last claim
	}},
	{"hosts of a new network wait for no others", func(s *suite) {
		n := s.network("default", wide)
		a, b := s.open(), s.open()
		l := s.acquire(a, n, s.claim(0))
		s.ok(b.Revoke(s.ctx(), n.Name, l.Subnet())) // its session stays alive
		s.acquire(b, n, s.claim(1))
	}},
	{"holders", func(s *suite) {
		r := s.open()
		n, m := s.network("default", wide), s.network("default-2", "10.9.0.0/16")
		one, two := s.claim(0), s.claim(1)
		a, b := s.acquire(r, n, one), s.acquire(s.open(), n, two)
		s.acquire(s.open(), m, s.claim(2))
		for range 2 { // with and without leases in the store
			holders, err := s.open().Holders(s.ctx(), n.Name)
			s.ok(err)
			var got []registry.Holder
			for _, h := range holders {
				if h.CreateIndex == 0 {
					s.Errorf("%+v", h)
				}
				got = append(got, registry.Holder{Node: h.Node, Session: h.Session})
			}
			s.equal("holders", got, []registry.Holder{{Node: one.Node, Session: a.Session}, {Node: two.Node, Session: b.Session}})
			s.emptied(n)
		}
		s.ok(r.Release(s.ctx(), a))
		holders, err := s.open().Holders(s.ctx(), n.Name)
		s.ok(err)
		if len(holders) > 2 {
			s.Errorf("%+v", holders)
		}
	}},
	{"a lost lease is restored for its host", func(s *suite) {
		r, other := s.open(), s.open()
		n := s.network("default", small) // three slots
		c := s.claim(0)
		l := s.acquire(r, n, c)
		second := s.claim(1)
		kept := s.acquire(other, n, second)
		s.store.EndSession(s.T, l.Session)
		s.emptied(n)
		s.store.Delete(s.T, s.key("leases", n.Name, "_"))
		s.wantErr(other.Restore(s.ctx(), n, l, c.Hold), registry.ErrUncertain)
		second.Session, second.Prefer, second.Running = kept.Session, kept.Subnet(), true
		s.acquire(other, n, second)
		s.ok(other.Restore(s.ctx(), n, l, c.Hold))
		s.wantErr(other.Restore(s.ctx(), n, l, c.Hold), registry.ErrConflict)
		s.wantErr(other.Restore(s.ctx(), n, kept, c.Hold), registry.ErrConflict)
		restored := s.lapsed(s.open(), n, l.Slot)
		if !restored.SameValue(l) || restored.NodeID != l.NodeID {
			s.Errorf("restored %+v, not %+v", restored, l)
		}
		third, fourth := s.claim(2), s.claim(3)
		third.Prefer, fourth.Prefer = l.Subnet(), l.Subnet()
		if got := s.acquire(s.open(), n, third); got.Slot == l.Slot {
			s.Errorf("%+v", got)
		}
		_, err := s.open().Acquire(s.ctx(), n, fourth)
		s.wantErr(err, registry.ErrNetworkFull)
		if back := s.acquire(r, n, c); back.Slot != l.Slot || back.NodeID != l.NodeID {
			s.Errorf("had %+v, has %+v", l, back)
		}
	}},
	{"a restored lease expires", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		l := s.acquire(r, n, s.claim(0))
		s.acquire(s.open(), n, s.claim(1))
		s.ok(r.Release(s.ctx(), l))
		s.ok(r.Restore(s.ctx(), n, l, time.Hour))
		lapsed := s.lapsed(r, n, l.Slot)
		s.ok(r.Expire(s.ctx(), lapsed))
		s.gone(s.leaseKey(n, l.Slot))
	}},
}

// emptied removes everything about a network from the store, like a deletion of the whole tree, and writes the
// definition again.
func (s *suite) emptied(n registry.Network) {
	s.Helper()
	for _, part := range []string{"leases", "changes", "networks"} {
		for _, key := range s.store.Keys(s.T, part) {
			s.store.Delete(s.T, key)
		}
	}
	n.CreateIndex, n.ModifyIndex = 0, 0
	s.ok(s.open().PutNetwork(s.ctx(), n))
}
