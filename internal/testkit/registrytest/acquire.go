package registrytest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/lenonet/leno/registry"
)

var acquireTests = []test{
	{"fresh", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		l := s.acquire(r, n, s.claim(0))
		if !n.Plan.InRange(l.Slot) {
			s.Errorf("slot %d is out of the plan's range", l.Slot)
		}
		if other := s.acquire(s.open(), n, s.claim(1)); other.Slot == l.Slot || other.Session == l.Session {
			s.Errorf("two hosts got %+v and %+v", l, other)
		}
	}},
	{"repeat writes nothing", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		c := s.claim(0)
		l := s.acquire(r, n, c)
		_, index, err := s.open().WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		s.equal("repeated", s.acquire(r, n, c), l)
		c.Session, c.Prefer = l.Session, l.Subnet()
		s.equal("repeated with its session", s.acquire(r, n, c), l)
		// The value is compared, not its spelling.
		c.Backend = registry.Backend{Type: "vxlan", Object: []byte(`{ "vtep_mac": "0a:58:00:00:00:00", "type": "vxlan" }`)}
		s.equal("repeated with other spacing", s.acquire(r, n, c), l)
		_, now, err := s.open().WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		s.equal("index of the leases", now, index)
	}},
	{"changed attributes", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		c := s.claim(0)
		last := s.acquire(r, n, c)
		first := last
		for _, change := range []func(){
			func() { c.MTU = 1400 },
			func() { c.Backend = s.backend(`{"vtep_mac":"0a:58:00:00:00:99"}`) },
			func() { c.Session = last.Session },
			func() {
				c.PublicIPs = []netip.Addr{netip.MustParseAddr("192.0.2.200"), netip.MustParseAddr("2001:db8::1")}
				c.Running, c.Since = true, last.ModifyIndex
			},
			func() { c.Node = "renamed" },
		} {
			before := c
			change()
			l := s.acquire(r, n, c)
			if l.Slot != first.Slot || l.Session != first.Session || l.CreateIndex != first.CreateIndex {
				s.Fatalf("was %+v, is %+v: want the same slot, session and create index", first, l)
			}
			if wrote := l.ModifyIndex > last.ModifyIndex; wrote == (before.Session != c.Session) {
				s.Fatalf("was %+v, is %+v: written %v", last, l, wrote)
			}
			last = l
		}
	}},
	{"checks the definition", func(s *suite) {
		r := s.open()
		stale := s.network("default", wide)
		l := s.acquire(r, stale, s.claim(0))

		// The same plan under another version, even one that is not known, does not prevent the claim.
		now := stale
		now.Backend = s.backend(`{"vni":7}`)
		s.ok(s.open().PutNetwork(s.ctx(), now))
		s.acquire(r, stale, s.claim(1))
		unknown := stale
		unknown.ModifyIndex, unknown.CreateIndex = 0, 0
		s.acquire(r, unknown, s.claim(2))

		// Another plan does: two hosts with different plans could overlap.
		now, err := r.Network(s.ctx(), "default")
		s.ok(err)
		now.Plan = s.plan(wide)
		now.Plan[0].SubnetLen, now.Plan[0].Min, now.Plan[0].Max = 25, netip.Addr{}, netip.Addr{}
		s.ok(s.open().PutNetwork(s.ctx(), now))
		for _, n := range []registry.Network{stale, unknown} {
			_, err = r.Acquire(s.ctx(), n, s.claim(3))
			s.wantErr(err, registry.ErrConflict, "another plan")
		}
		if now, err = r.Network(s.ctx(), "default"); err != nil {
			s.Fatal(err)
		}
		s.acquire(r, now, s.claim(3))

		// When the definition is unusable or lost, the previous one stays in force.
		s.store.Put(s.T, s.key("networks", "default"), []byte("{"))
		s.acquire(r, now, s.claim(4))
		s.store.Delete(s.T, s.key("networks", "default"))
		s.acquire(r, now, s.claim(5))

		s.ok(s.open().DeleteNetwork(s.ctx(), "default"))
		_, err = r.Acquire(s.ctx(), now, s.claim(6))
		s.wantErr(err, registry.ErrNetworkNotFound, "deleted at")
		s.stays(stale, l)
	}},
	{"adopts its session", func(s *suite) {
		n := s.network("default", wide)
		c := s.claim(0)
		l := s.acquire(s.open(), n, c)
		c.Session, c.Prefer = l.Session, l.Subnet()
		s.equal("adopted", s.acquire(s.open(), n, c), l)
	}},
	{"adopts its lease by node id alone", func(s *suite) {
		n := s.network("default", wide)
		c := s.claim(0)
		l := s.acquire(s.open(), n, c)
		c.Session = "00000000-1111-2222-3333-444444444444"
		s.equal("adopted", s.acquire(s.open(), n, c), l)
	}},
	{"adopts its lease by name when its state is lost", func(s *suite) {
		n := s.network("default", wide)
		c := s.claim(0)
		l := s.acquire(s.open(), n, c)
		c.NodeID = "a-new-id"
		again := s.acquire(s.open(), n, c)
		if again.Slot != l.Slot || again.Session != l.Session {
			s.Fatalf("was %+v, is %+v", l, again)
		}
	}},
	{"takes its lapsed lease back", func(s *suite) {
		n := s.network("default", wide)
		c := s.claim(0)
		r := s.open()
		l := s.acquire(r, n, c)
		s.store.EndSession(s.T, l.Session)
		c.Session = l.Session
		again := s.acquire(r, n, c)
		if again.Slot != l.Slot || again.Session == l.Session || again.CreateIndex != l.CreateIndex {
			s.Fatalf("was %+v, is %+v: want the same slot under a new session, never deleted", l, again)
		}
	}},
	{"takes its lapsed lease back by name when its state and address are lost", func(s *suite) {
		n := s.network("default", wide)
		c := s.claim(0)
		l := s.acquire(s.open(), n, c)
		s.store.EndSession(s.T, l.Session)
		c.NodeID, c.PublicIPs = "a-new-id", s.claim(1).PublicIPs
		if again := s.acquire(s.open(), n, c); again.Slot != l.Slot {
			s.Fatalf("was %+v, is %+v", l, again)
		}
	}},
	{"takes a lapsed lease back that another host watches", func(s *suite) {
		n := s.network("default", small)
		other := s.open()
		c := s.claim(0)
		l := s.acquire(s.open(), n, c)
		s.store.EndSession(s.T, l.Session)
		s.lapsed(other, n, l.Slot)
		if again := s.acquire(s.open(), n, c); again.Slot != l.Slot {
			s.Fatalf("was %+v, is %+v", l, again)
		}
	}},
	{"prefers the subnet held before", func(s *suite) {
		n := s.network("default", wide)
		for _, tt := range []struct {
			host   int
			prefer string
			want   bool
		}{
			{0, "10.5.77.0/24", true},
			{1, "10.5.77.0/24", false}, // in use
			{2, "10.5.0.0/24", false},  // out of range
			{3, "10.9.0.0/24", false},  // another network's
			{4, "10.5.78.0/25", false}, // another length
		} {
			c := s.claim(tt.host)
			c.Prefer = netip.MustParsePrefix(tt.prefer)
			if l := s.acquire(s.open(), n, c); (l.Subnet() == c.Prefer) != tt.want {
				s.Errorf("host %d preferred %s and got %s", tt.host, tt.prefer, l.Subnet())
			}
		}
	}},
	{"full", func(s *suite) {
		n := s.network("default", small)
		for i := range 3 {
			s.acquire(s.open(), n, s.claim(i))
		}
		_, err := s.open().Acquire(s.ctx(), n, s.claim(3))
		s.wantErr(err, registry.ErrNetworkFull, n.Name)
	}},
	{"reuses the one lapsed longest past hold", func(s *suite) {
		n := s.network("default", small)
		r := s.open()
		var leases []registry.Lease
		for i := range 3 {
			leases = append(leases, s.acquire(s.open(), n, s.claim(i)))
		}
		for _, i := range []int{1, 2, 0} {
			s.store.EndSession(s.T, leases[i].Session)
			s.lapsed(r, n, leases[i].Slot)
		}
		c := s.claim(3)
		c.Hold = time.Hour
		_, err := r.Acquire(s.ctx(), n, c)
		s.wantErr(err, registry.ErrNetworkFull)
		// A host that has just started cannot know how long they have lapsed.
		_, err = s.open().Acquire(s.ctx(), n, c)
		s.wantErr(err, registry.ErrNetworkFull)

		for i, want := range []int{1, 2, 0} {
			c := s.claim(3 + i)
			c.Hold = time.Nanosecond
			if l := s.acquire(r, n, c); l.Slot != leases[want].Slot {
				s.Fatalf("took slot %d, want %d", l.Slot, leases[want].Slot)
			}
		}
	}},
	{"a free slot comes before a lapsed one", func(s *suite) {
		n := s.network("default", small)
		r := s.open()
		l := s.acquire(s.open(), n, s.claim(0))
		s.store.EndSession(s.T, l.Session)
		s.lapsed(r, n, l.Slot)
		for i := 1; i < 3; i++ {
			c := s.claim(i)
			c.Hold = time.Nanosecond
			if got := s.acquire(r, n, c); got.Slot == l.Slot {
				s.Fatal("took the lapsed slot while others were free")
			}
		}
	}},
	{"refuses a claim that no host could read", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		for name, change := range map[string]func(*registry.Claim){
			"no node":            func(c *registry.Claim) { c.Node = "" },
			"no node id":         func(c *registry.Claim) { c.NodeID = "" },
			"no address":         func(c *registry.Claim) { c.PublicIPs = nil },
			"address of overlay": func(c *registry.Claim) { c.PublicIPs = []netip.Addr{netip.MustParseAddr("10.5.3.1")} },
			"no mtu":             func(c *registry.Claim) { c.MTU = 0 },
			"no backend":         func(c *registry.Claim) { c.Backend = registry.Backend{} },
		} {
			c := s.claim(0)
			change(&c)
			if _, err := r.Acquire(s.ctx(), n, c); !errors.Is(err, registry.ErrInvalid) {
				s.Errorf("%s: got %v, want %v", name, err, registry.ErrInvalid)
			}
		}
		s.equal("keys", s.store.Keys(s.T, "leases", n.Name), []string{s.key("leases", n.Name, "_")})
	}},
	{"networks do not mix", func(s *suite) {
		n, longer := s.network("default", small), s.network("default-2", small)
		r := s.open()
		c := s.claim(0)
		l, l2 := s.acquire(r, n, c), s.acquire(r, longer, c)
		if l.Session == l2.Session {
			s.Error("two networks share a session: releasing one would end both")
		}
		s.ok(r.Release(s.ctx(), l))
		s.stays(longer, l2)
		s.ok(r.Renew(s.ctx(), l2))
	}},
}

var identityTests = []test{
	{"another live host has our name", func(s *suite) {
		n := s.network("default", wide)
		l := s.acquire(s.open(), n, s.claim(0))
		c := s.claim(1)
		c.Node = l.Node
		_, err := s.open().Acquire(s.ctx(), n, c)
		s.wantErr(err, registry.ErrDuplicateNode, l.Node, l.NodeID, c.NodeID, l.PublicIPs[0].String(), c.PublicIPs[0].String(), l.Subnet().String())
	}},
	{"another live host has our address", func(s *suite) {
		n := s.network("default", wide)
		l := s.acquire(s.open(), n, s.claim(0))
		c := s.claim(1)
		c.PublicIPs = append(c.PublicIPs, l.PublicIPs...)
		_, err := s.open().Acquire(s.ctx(), n, c)
		s.wantErr(err, registry.ErrDuplicateAddress, l.Node, c.Node, l.PublicIPs[0].String(), l.Subnet().String())
	}},
	{"hosts behind one NAT", func(s *suite) {
		n := s.network("default", wide)
		behind := func(i, port int, local string) registry.Claim {
			c := s.claim(i)
			c.PublicIPs = s.claim(0).PublicIPs
			c.Backend = s.backend(fmt.Sprintf(`{"vtep_mac":"0a:58:00:00:00:%s","public_port":%d,"local_ips":[%q]}`, id2hex(i), port, local))
			return c
		}
		r := s.open()
		c := behind(0, 51820, "198.51.100.1")
		l := s.acquire(r, n, c)
		next := behind(1, 51821, "198.51.100.2")
		other := s.acquire(s.open(), n, next)
		s.stays(n, l)
		s.stays(n, other)
		if addrs := l.LocalIPs(); len(addrs) != 1 || addrs[0].String() != "198.51.100.1" {
			s.Errorf("local addresses %s", addrs)
		}
		_, err := s.open().Acquire(s.ctx(), n, behind(2, 51821, "198.51.100.3"))
		s.wantErr(err, registry.ErrDuplicateAddress, other.Node)
		named := behind(3, 51823, "198.51.100.4")
		named.Node = other.Node
		_, err = s.open().Acquire(s.ctx(), n, named)
		s.wantErr(err, registry.ErrDuplicateNode, other.Node)
		// A copy of a host has another address of its own.
		copied := next
		copied.Backend = behind(1, 51824, "198.51.100.5").Backend
		_, err = s.open().Acquire(s.ctx(), n, copied)
		s.wantErr(err, registry.ErrDuplicateNode, "copied")
		s.stays(n, other)
	}},
	{"another live host has our node id", func(s *suite) {
		n := s.network("default", wide)
		l := s.acquire(s.open(), n, s.claim(0))
		c := s.claim(1)
		c.NodeID = l.NodeID
		_, err := s.open().Acquire(s.ctx(), n, c)
		s.wantErr(err, registry.ErrDuplicateNode, l.Node, c.Node)
	}},
	{"our record lives under another address", func(s *suite) {
		n := s.network("default", wide)
		r := s.open()
		c := s.claim(0)
		l := s.acquire(r, n, c)
		c.PublicIPs, c.Session, c.Prefer, c.Since = s.claim(1).PublicIPs, l.Session, l.Subnet(), l.ModifyIndex
		_, err := r.Acquire(s.ctx(), n, c)
		s.wantErr(err, registry.ErrDuplicateNode, l.Node, l.NodeID, l.PublicIPs[0].String(), c.PublicIPs[0].String())
		s.stays(n, l)
		// First with both addresses, for any host that may answer, then with ours alone.
		both := c
		both.PublicIPs = append(slices.Clone(l.PublicIPs), c.PublicIPs...)
		knocked := s.acquire(r, n, both)
		moved := s.acquire(r, n, c)
		if knocked.Session != l.Session || moved.Session != l.Session || moved.Slot != l.Slot || moved.PublicIPs[0] != c.PublicIPs[0] {
			s.Errorf("was %+v, is %+v, then %+v", l, knocked, moved)
		}
	}},
	{"our slot is under another's record of before", func(s *suite) {
		n := s.network("default", wide)
		r := s.open()
		l := s.acquire(r, n, s.claim(0))
		c := s.claim(1)
		c.Prefer, c.Running, c.Since = l.Subnet(), true, l.ModifyIndex+1
		_, err := r.Acquire(s.ctx(), n, c)
		s.wantErr(err, registry.ErrSetBack, l.Node, l.Subnet().String())
		var rival *registry.RivalError
		if !errors.As(err, &rival) || rival.Lease.Session != l.Session {
			s.Errorf("rival %+v", rival)
		}
		s.stays(n, l)
		s.store.EndSession(s.T, l.Session)
		lapsed, _, err := r.WatchLease(s.ctx(), n, l.Subnet(), 0)
		s.ok(err)
		c.Since = lapsed.ModifyIndex + 1
		if got := s.acquire(r, n, c); got.Slot != l.Slot || got.NodeID != c.NodeID {
			s.Errorf("got %+v", got)
		}
	}},
	{"an address moves to us from a live host", func(s *suite) {
		n := s.network("default", wide)
		l := s.acquire(s.open(), n, s.claim(0))
		r := s.open()
		c := s.claim(1)
		own := s.acquire(r, n, c)
		c.PublicIPs = l.PublicIPs
		_, err := r.Acquire(s.ctx(), n, c)
		s.wantErr(err, registry.ErrDuplicateAddress, l.Node, c.Node)
		s.stays(n, own)
	}},
	{"another host takes our name or address later", func(s *suite) {
		n := s.network("default", wide)
		c := s.claim(0)
		older := []registry.Lease{s.acquire(s.open(), n, s.claim(6)), s.acquire(s.open(), n, s.claim(7))}
		l := s.acquire(s.open(), n, c)
		for i, take := range []func(thief *registry.Lease){
			func(thief *registry.Lease) { thief.Node = c.Node },
			func(thief *registry.Lease) { thief.PublicIPs = c.PublicIPs },
			func(thief *registry.Lease) { thief.Node, thief.PublicIPs = c.Node, c.PublicIPs },
			// The session of this host ends once, as when Consul's agent is restarted.
			func(thief *registry.Lease) { *thief, thief.Node, c.Running = older[0], c.Node, true },
			func(thief *registry.Lease) { *thief, thief.PublicIPs = older[1], c.PublicIPs },
		} {
			thief := s.acquire(s.open(), n, s.claim(8+i))
			take(&thief)
			value, err := registry.FormatLease(thief)
			s.ok(err)
			s.store.Put(s.T, s.leaseKey(n, thief.Slot), value)
			if c.Running {
				s.store.EndSession(s.T, l.Session)
			}
			// A running host writes its record again, and so does one that has just started.
			c.Session, c.Prefer, c.Since, c.MTU = l.Session, l.Subnet(), l.ModifyIndex, c.MTU-1
			again := s.acquire(s.open(), n, c) // by a client that knows all records
			if again.Slot != l.Slot || !c.Running && again.Session != l.Session {
				s.Errorf("had %+v, has %+v", l, again)
			}
			l = again
		}
		// It may not take the address of the other host, though.
		other := s.acquire(s.open(), n, s.claim(2))
		c.PublicIPs = other.PublicIPs
		c.Session, c.Prefer, c.Since = l.Session, l.Subnet(), l.ModifyIndex
		_, err := s.open().Acquire(s.ctx(), n, c)
		s.wantErr(err, registry.ErrDuplicateAddress, other.Node)
		// A host that has just started may be one that the living host has replaced.
		s.store.EndSession(s.T, l.Session)
		c.PublicIPs, c.Running = l.PublicIPs, false
		if _, err = s.open().Acquire(s.ctx(), n, c); !errors.As(err, new(*registry.RivalError)) {
			s.Errorf("got %v", err)
		}
	}},
	{"a lapsed host's name and address are free", func(s *suite) {
		n := s.network("default", wide)
		l := s.acquire(s.open(), n, s.claim(0))
		s.store.EndSession(s.T, l.Session)
		c := s.claim(1)
		c.PublicIPs = l.PublicIPs
		if got := s.acquire(s.open(), n, c); got.Slot == l.Slot {
			s.Error("took a lapsed lease of another host within its hold")
		}
	}},
}
