package registrytest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/registry"
)

// malformedLease returns the i-th of many unusable records, each with a different fault; sound is the value of a sound
// lease.
func malformedLease(i int, sound string) string {
	kinds := []string{
		``,
		`{`,
		`null`,
		`[]`,
		`"text"`,
		"\x00\xff\xfe",
		strings.Repeat(`[`, 5000),
		strings.Repeat(`x`, 64<<10),
		`{"version":2}`,
		strings.Replace(sound, `"version":1`, `"version":"1"`, 1),
		strings.Replace(sound, `"mtu":1450`, `"mtu":-1`, 1),
		strings.Replace(sound, `"public_ip":"`, `"public_ip":"x`, 1),
		sound, // another slot's
	}
	return kinds[i%len(kinds)]
}

var malformedTests = []test{
	{"a hundred leases change nothing", func(s *suite) {
		n := s.network("default", wide)
		r := s.open()
		var want []registry.Lease
		for i, slot := range []uint64{200, 201} {
			c := s.claim(i)
			c.Prefer = n.Plan.Subnets(slot)[0]
			want = append(want, s.acquire(r, n, c))
		}
		sound, _, _ := s.store.Get(s.T, s.leaseKey(n, 200))

		var keys []string
		for i := range 90 {
			keys = append(keys, s.leaseKey(n, uint64(1+i)))
		}
		for _, name := range []string{"x", "...", "10.5.95.0", "10.5.96.0-25", "10.5.97.1-24", "10.9.0.0-24", "fd00::-64",
			"10.5.98.0-24/deeper", "010.5.99.0-24", "__"} {
			keys = append(keys, s.key("leases", "default", name))
		}
		for i, key := range keys {
			s.store.Put(s.T, key, []byte(malformedLease(i, string(sound))))
		}
		slices.Sort(keys)
		check := func(r registry.Registry) {
			s.Helper()
			set, index := s.watchUntil(r, n, "all bad records", func(set registry.LeaseSet) bool { return len(set.Bad) == len(keys) })
			s.equal("leases", set.Leases, want)
			s.equal("bad", badKeys(set.Bad), keys)
			for _, b := range set.Bad {
				if b.Reason == "" || len(b.Reason) > 1000 {
					s.Errorf("%s: reason of %d bytes", b.Key, len(b.Reason))
				}
			}
			s.blocks("WatchLeases", func(ctx context.Context) error {
				_, _, err := r.WatchLeases(ctx, n, index)
				return err
			})
		}
		check(r)
		check(s.open())
		for _, l := range want {
			s.ok(r.Renew(s.ctx(), l))
		}
		want = append(want, s.acquire(r, n, s.claim(2)))
		slices.SortFunc(want, func(a, b registry.Lease) int { return int(a.Slot) - int(b.Slot) })
		check(r)
	}},
	{"values and names that are too large are not kept", func(s *suite) {
		const size = 100_000
		n := s.network("default", wide)
		watcher := s.open()
		c, other := s.claim(0), s.claim(1)
		c.Prefer, other.Prefer = n.Plan.Subnets(1)[0], n.Plan.Subnets(2)[0]
		want := []registry.Lease{s.acquire(watcher, n, c)}
		long := strings.Repeat("k", size)
		s.store.Put(s.T, s.leaseKey(n, 200), []byte(long))
		s.store.Put(s.T, s.key("leases", n.Name, long), nil)
		s.store.Put(s.T, s.reservationKey(n, 100), []byte(long))
		s.store.Put(s.T, s.key("reservations", n.Name, long), []byte(long))
		want = append(want, s.acquire(s.open(), n, other))
		check := func(bad []registry.BadRecord) {
			s.Helper()
			s.equal("bad records", len(bad), 2)
			reason := fmt.Sprintf("%d bytes, at most %d are read", size, registry.MaxRecordSize)
			for _, b := range bad {
				if isLong := strings.Contains(b.Key, "kkk"); len(b.Key) > 5000 || !isLong && !strings.Contains(b.Reason, reason) {
					s.Errorf("%.100s is kept with %d bytes and skipped because of: %s", b.Key, len(b.Key), b.Reason)
				}
			}
		}
		for _, r := range []registry.Registry{watcher, s.open()} {
			set, _ := s.watchUntil(r, n, "all bad records", func(set registry.LeaseSet) bool { return len(set.Bad) >= 2 })
			s.equal("leases", set.Leases, want)
			check(set.Bad)
			reserved, _, err := r.WatchReservations(s.ctx(), n, 0)
			s.ok(err)
			check(reserved.Bad)
		}
	}},
	{"slots under bad records are not given out", func(s *suite) {
		for _, name := range []string{"lease", "reservation"} {
			n := s.network(name, small)
			key := s.leaseKey(n, 2)
			if name == "reservation" {
				key = s.reservationKey(n, 2)
			}
			s.store.Put(s.T, key, []byte(`{"version":7}`))
			c := s.claim(0)
			c.Prefer = n.Plan.Subnets(2)[0]
			var got []uint64
			for i := range 2 {
				c.Node, c.NodeID, c.PublicIPs = s.claim(i).Node, s.claim(i).NodeID, s.claim(i).PublicIPs
				got = append(got, s.acquire(s.open(), n, c).Slot)
			}
			slices.Sort(got)
			s.equal("slots beside a bad "+name, got, []uint64{1, 3})
			_, err := s.open().Acquire(s.ctx(), n, s.claim(2))
			s.wantErr(err, registry.ErrNetworkFull)
		}
	}},
	{"a record of another plan keeps the addresses it may be using", func(s *suite) {
		n := s.network("default", small)
		// Covers slots 2 and 3.
		s.store.Put(s.T, s.key("leases", n.Name, "10.7.2.0-23"), []byte(`{}`))
		s.equal("slot", s.acquire(s.open(), n, s.claim(0)).Slot, uint64(1))
		_, err := s.open().Acquire(s.ctx(), n, s.claim(1))
		s.wantErr(err, registry.ErrNetworkFull)
	}},
	{"reservations", func(s *suite) {
		n := s.network("default", wide)
		r := s.open()
		s.ok(r.AddReservation(s.ctx(), n, registry.Reservation{Subnet: n.Plan.Subnets(3)[0], Node: "host-x"}, false))
		var keys []string
		for i, value := range []string{``, `{}`, `{"version":1,"subnet":"10.5.12.0/24"}`, `{"version":1,"subnet":"10.5.99.0/24","node":"a"}`,
			`{"version":1,"subnet":"10.5.14.0/24","node":"a","node_id":"b"}`} {
			key := s.reservationKey(n, uint64(10+i))
			s.store.Put(s.T, key, []byte(value))
			keys = append(keys, key)
		}
		nested := s.key("reservations", n.Name, "deep", "key")
		s.store.Put(s.T, nested, []byte(`{}`))
		set, _, err := r.WatchReservations(s.ctx(), n, 0)
		s.ok(err)
		s.equal("slots", reservedSlots(set), []uint64{3})
		s.equal("bad", badKeys(set.Bad), append(keys, nested))
		for i := range keys {
			s.ok(r.RemoveReservation(s.ctx(), n.Name, n.Plan.Subnets(uint64(10 + i))[0]))
		}
		if set, _, err = r.WatchReservations(s.ctx(), n, 0); err != nil || len(set.Bad) != 1 {
			s.Fatalf("bad records left: %v, %v", set.Bad, err)
		}
	}},
	{"a record overwritten under its lock is written again", func(s *suite) {
		n := s.network("default", wide)
		r := s.open()
		c := s.claim(0)
		l := s.acquire(r, n, c)
		s.store.Put(s.T, s.leaseKey(n, l.Slot), []byte(`{}`))
		if _, session, _ := s.store.Get(s.T, s.leaseKey(n, l.Slot)); session != l.Session {
			s.Fatal("the lock went with the value")
		}
		c.Session = l.Session
		again := s.acquire(r, n, c)
		if again.Slot != l.Slot || again.Session != l.Session || again.CreateIndex != l.CreateIndex {
			s.Fatalf("was %+v, is %+v", l, again)
		}
	}},
	{"an identity in a bad record counts for no host", func(s *suite) {
		n := s.network("default", wide)
		c := s.claim(0)
		value := fmt.Sprintf(`{"version":1,"subnet":"10.5.9.0/24","node":%q,"node_id":%q,"public_ip":%q,"mtu":1,"backend":{"type":"vxlan"}}`,
			c.Node, c.NodeID, c.PublicIPs[0])
		s.store.Put(s.T, s.leaseKey(n, 9), []byte(value))
		if l := s.acquire(s.open(), n, c); l.Slot == 9 {
			s.Error("took the slot of an unusable record")
		}
	}},
}

func reservedSlots(set registry.ReservationSet) []uint64 {
	var out []uint64
	for _, r := range set.Reservations {
		out = append(out, r.Slot)
	}
	return out
}
