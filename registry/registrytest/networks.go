package registrytest

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/registry"
)

var networkTests = []test{
	{"put creates once", func(s *suite) {
		r, other := s.open(), s.open()
		want := s.definition("default", wide)
		s.ok(r.PutNetwork(s.ctx(), want))

		got, err := other.Network(s.ctx(), "default")
		s.ok(err)
		if got.ModifyIndex == 0 || got.CreateIndex == 0 {
			s.Errorf("indices %d, %d, want what the store says", got.CreateIndex, got.ModifyIndex)
		}
		want.CreateIndex, want.ModifyIndex = got.CreateIndex, got.ModifyIndex
		s.equal("network", got, want)
		s.wantErr(other.PutNetwork(s.ctx(), s.definition("default", small)), registry.ErrNetworkExists)
		after, err := r.Network(s.ctx(), "default")
		s.ok(err)
		s.equal("network after a refused put", after, want)

		if _, _, ok := s.store.Get(s.T, s.key("leases", "default", "_")); !ok {
			s.Error("the marker of the leases was not created")
		}
		value, _, _ := s.store.Get(s.T, s.key("networks", "default"))
		if _, err := registry.ParseNetwork("default", value); err != nil {
			s.Errorf("stored %s: %v", value, err)
		}
	}},
	{"put replaces one version", func(s *suite) {
		r, other := s.open(), s.open()
		first := s.network("default", wide)
		next := first
		next.Backend = s.backend(`{"vni":2}`)
		s.ok(r.PutNetwork(s.ctx(), next))
		got, err := other.Network(s.ctx(), "default")
		s.ok(err)
		if !got.Backend.Equal(next.Backend) || got.ModifyIndex <= first.ModifyIndex {
			s.Fatalf("got %+v, want the new backend and a higher index than %d", got, first.ModifyIndex)
		}
		s.wantErr(other.PutNetwork(s.ctx(), next), registry.ErrConflict)
		s.ok(r.DeleteNetwork(s.ctx(), "default"))
		s.wantErr(r.PutNetwork(s.ctx(), got), registry.ErrConflict)
	}},
	{"put stores effective values", func(s *suite) {
		r := s.open()
		n := s.definition("default", wide)
		n.Plan = registry.Plan{{Prefix: netip.MustParsePrefix(wide)}}
		s.ok(r.PutNetwork(s.ctx(), n))
		got, err := r.Network(s.ctx(), "default")
		s.ok(err)
		s.equal("plan", got.Plan, s.plan(wide))
		value, _, _ := s.store.Get(s.T, s.key("networks", "default"))
		s.equal("value", string(value), `{"version":1,"name":"default","pools":[{"prefix":"10.5.0.0/16","subnet_len":24,`+
			`"min":"10.5.1.0","max":"10.5.255.0"}],"backend":{"type":"vxlan","vni":1,"port":8472}}`)
	}},
	{"put refuses what nobody could read", func(s *suite) {
		r := s.open()
		for name, change := range map[string]func(*registry.Network){
			"no name":       func(n *registry.Network) { n.Name = "" },
			"name with /":   func(n *registry.Network) { n.Name = "a/b" },
			"no pools":      func(n *registry.Network) { n.Plan = nil },
			"host bits":     func(n *registry.Network) { n.Plan[0].Prefix = netip.MustParsePrefix("10.5.0.1/16") },
			"no backend":    func(n *registry.Network) { n.Backend = registry.Backend{} },
			"subnet length": func(n *registry.Network) { n.Plan[0].SubnetLen = 31 },
		} {
			n := s.definition("default", wide)
			change(&n)
			if err := r.PutNetwork(s.ctx(), n); !errors.Is(err, registry.ErrInvalid) {
				s.Errorf("%s: got %v, want %v", name, err, registry.ErrInvalid)
			}
		}
		if keys := s.store.Keys(s.T, s.key("networks")+"/"); len(keys) > 0 {
			s.Errorf("stored %v", keys)
		}
	}},
	{"get", func(s *suite) {
		r := s.open()
		_, err := r.Network(s.ctx(), "default")
		s.wantErr(err, registry.ErrNetworkNotFound)
		s.store.Put(s.T, s.key("networks", "default"), []byte(`{"version":1`))
		_, err = r.Network(s.ctx(), "default")
		s.wantErr(err, registry.ErrInvalid)
	}},
	{"delete", func(s *suite) {
		r := s.open()
		s.wantErr(r.DeleteNetwork(s.ctx(), "default"), registry.ErrNetworkNotFound)
		n, other := s.network("default", wide), s.network("default-2", "10.6.0.0/16")
		c := s.claim(0)
		c.Prefer = n.Plan.Subnets(20)[0]
		l := s.acquire(r, n, c)
		for _, network := range []registry.Network{n, other} {
			s.ok(r.AddReservation(s.ctx(), network, registry.Reservation{Subnet: network.Plan.Subnets(9)[0], Node: "host-x"}, false))
		}
		s.ok(r.DeleteNetwork(s.ctx(), "default"))
		_, err := r.Network(s.ctx(), "default")
		s.wantErr(err, registry.ErrNetworkNotFound)
		s.wantErr(r.DeleteNetwork(s.ctx(), "default"), registry.ErrNetworkNotFound)

		s.stays(n, l)
		s.equal("reservations", s.store.Keys(s.T, s.key("reservations")+"/"), []string{s.reservationKey(other, 9)})
		// Whoever cleans up after it can still take the lease away.
		s.ok(r.Revoke(s.ctx(), n.Name, l.Subnet()))
		s.gone(s.leaseKey(n, l.Slot))
	}},
	{"watch", func(s *suite) {
		r, other := s.open(), s.open()
		s.network("b", wide)
		set, index, err := r.WatchNetworks(s.ctx(), 0)
		s.ok(err)
		s.equal("networks", names(set), []string{"b"})
		s.blocks("WatchNetworks", func(ctx context.Context) error {
			_, _, err := r.WatchNetworks(ctx, index)
			return err
		})

		follow := func(what string, change func() error, want ...string) {
			s.Helper()
			changed := make(chan error, 1)
			go func() { changed <- change() }()
			for ctx := s.ctx(); ; {
				set, next, err := r.WatchNetworks(ctx, index)
				if err != nil {
					s.Fatalf("%s: %v", what, err)
				}
				if index = next; slices.Equal(names(set), want) {
					break
				}
			}
			s.ok(<-changed)
		}
		follow("put", func() error { return other.PutNetwork(s.ctx(), s.definition("a", "10.6.0.0/16")) }, "a", "b")
		follow("delete", func() error { return other.DeleteNetwork(s.ctx(), "b") }, "a")
	}},
	{"watch sees a change of a definition", func(s *suite) {
		r, other := s.open(), s.open()
		n := s.network("default", wide)
		_, index, err := r.WatchNetworks(s.ctx(), 0)
		s.ok(err)
		n.Backend = s.backend(`{"vni":7}`)
		s.ok(other.PutNetwork(s.ctx(), n))
		set, _, err := r.WatchNetworks(s.ctx(), index)
		s.ok(err)
		if len(set.Networks) != 1 || !set.Networks[0].Backend.Equal(n.Backend) {
			s.Fatalf("got %+v", set)
		}
	}},
	{"watch does not wake for leases", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		_, index, err := r.WatchNetworks(s.ctx(), 0)
		s.ok(err)
		s.acquire(r, n, s.claim(0))
		s.blocks("WatchNetworks", func(ctx context.Context) error {
			_, _, err := r.WatchNetworks(ctx, index)
			return err
		})
	}},
	{"watch skips bad records by name", func(s *suite) {
		r := s.open()
		s.network("default", wide)
		keys := []string{s.key("networks", "bad"), s.key("networks", "nested", "key"), s.key("networks", "other")}
		s.store.Put(s.T, keys[0], []byte(`[]`))
		s.store.Put(s.T, keys[1], []byte(`{}`))
		value, _, _ := s.store.Get(s.T, s.key("networks", "default"))
		s.store.Put(s.T, keys[2], value) // says another name
		set, _, err := r.WatchNetworks(s.ctx(), 0)
		s.ok(err)
		s.equal("networks", names(set), []string{"default"})
		s.equal("bad", badKeys(set.Bad), keys)
		for _, b := range set.Bad {
			if b.Reason == "" {
				s.Errorf("%s: no reason", b.Key)
			}
		}
	}},
	{"as", func(s *suite) {
		r := s.open().As(s.store.Token())
		s.ok(r.PutNetwork(s.ctx(), s.definition("default", wide)))
		n, err := s.open().Network(s.ctx(), "default")
		s.ok(err)
		l := s.acquire(r, n, s.claim(0))
		s.ok(r.As(s.store.Token()).Renew(s.ctx(), l))
		set, _, err := r.WatchLeases(s.ctx(), n, 0)
		s.ok(err)
		s.equal("slots", slots(set.Leases), []uint64{l.Slot})
	}},
}

func names(set registry.NetworkSet) []string {
	var out []string
	for _, n := range set.Networks {
		out = append(out, n.Name)
	}
	return out
}
