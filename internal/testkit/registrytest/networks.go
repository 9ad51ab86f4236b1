package registrytest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
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
		s.store.Delete(s.T, s.key("networks", "default"))
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
	{"put keeps required encryption", func(s *suite) {
		r, other := s.open(), s.open()
		n := s.definition("default", wide)
		n.Encryption = registry.EncryptionRequired
		s.ok(r.PutNetwork(s.ctx(), n))
		got, err := other.Network(s.ctx(), "default")
		s.ok(err)
		s.equal("encryption", got.Encryption, registry.EncryptionRequired)
		set, index, err := other.WatchNetworks(s.ctx(), 0)
		s.ok(err)
		s.equal("networks", set.Networks, []registry.Network{got})
		got.Encryption = ""
		s.ok(r.PutNetwork(s.ctx(), got))
		set, _, err = other.WatchNetworks(s.ctx(), index)
		s.ok(err)
		s.equal("encryption after a change", set.Networks[0].Encryption, "")
	}},
	{"put keeps revisions", func(s *suite) {
		r, other := s.open(), s.open()
		s.ok(r.PutNetwork(s.ctx(), s.definition("default", wide).Replacing(registry.Network{})))
		first, err := other.Network(s.ctx(), "default")
		s.ok(err)
		next := first
		next.Backend = s.backend(`{"vni":2}`)
		next = next.Replacing(first)
		next.FromBlock, next.Restored, next.RestoredLeases = true, time.Date(2026, 11, 22, 21, 40, 0, 0, time.UTC), 3
		s.ok(r.PutNetwork(s.ctx(), next))
		set, _, err := other.WatchNetworks(s.ctx(), 0)
		s.ok(err)
		got := set.Networks[0]
		next.CreateIndex, next.ModifyIndex = got.CreateIndex, got.ModifyIndex
		s.equal("network", got, next)
		if !got.Replaced(first) || first.Replaced(got) {
			s.Errorf("%+v does not replace %+v", got, first)
		}
	}},
	{"put refuses a definition that no host could read", func(s *suite) {
		r := s.open()
		for name, change := range map[string]func(*registry.Network){
			"no name":       func(n *registry.Network) { n.Name = "" },
			"name with /":   func(n *registry.Network) { n.Name = "a/b" },
			"no pools":      func(n *registry.Network) { n.Plan = nil },
			"host bits":     func(n *registry.Network) { n.Plan[0].Prefix = netip.MustParsePrefix("10.5.0.1/16") },
			"no backend":    func(n *registry.Network) { n.Backend = registry.Backend{} },
			"encryption":    func(n *registry.Network) { n.Encryption = "optional" },
			"subnet length": func(n *registry.Network) { n.Plan[0].SubnetLen = 31 },
		} {
			n := s.definition("default", wide)
			change(&n)
			if err := r.PutNetwork(s.ctx(), n); !errors.Is(err, registry.ErrInvalid) {
				s.Errorf("%s: got %v, want %v", name, err, registry.ErrInvalid)
			}
		}
		if keys := s.store.Keys(s.T, "networks"); len(keys) > 0 {
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
		before := time.Now()
		s.ok(r.DeleteNetwork(s.ctx(), "default"))
		for _, client := range []registry.Registry{r, s.open()} {
			s.deleted(client, n, before)
			s.wantErr(client.DeleteNetwork(s.ctx(), "default"), registry.ErrNetworkNotFound, "deleted at")
		}

		s.stays(n, l)
		s.equal("reservations", s.store.Keys(s.T, "reservations"), []string{s.reservationKey(other, 9)})
		// Another client can still revoke the lease to clean up.
		s.ok(r.Revoke(s.ctx(), n.Name, l.Subnet()))
		s.gone(s.leaseKey(n, l.Slot))
	}},
	{"a deletion names what it ended", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		next := n.Replacing(n)
		s.ok(r.PutNetwork(s.ctx(), next))
		n, err := r.Network(s.ctx(), "default")
		s.ok(err)
		s.equal("lineage", n.Lineage, next.Lineage)
		before := time.Now()
		s.ok(r.DeleteNetwork(s.ctx(), "default"))
		s.deleted(r, n, before)
		var d *registry.DeletedError
		if _, err := r.Network(s.ctx(), "default"); !errors.As(err, &d) {
			s.Fatalf("got %v", err)
		}
		s.store.Delete(s.T, s.key("networks", "default"))
		s.ok(r.PutDeletion(s.ctx(), d.Deletion))
		var again *registry.DeletedError
		if _, err := r.Network(s.ctx(), "default"); !errors.As(err, &again) {
			s.Fatalf("got %v", err)
		}
		s.equal("lineage put back", again.Lineage, d.Lineage)
	}},
	{"delete and define again", func(s *suite) {
		r := s.open()
		first := s.network("default", wide)
		s.ok(r.DeleteNetwork(s.ctx(), "default"))
		s.ok(s.open().PutNetwork(s.ctx(), s.definition("default", small)))
		n, err := r.Network(s.ctx(), "default")
		s.ok(err)
		s.equal("plan", n.Plan, s.plan(small))
		if n.ModifyIndex <= first.ModifyIndex {
			s.Errorf("modify index %d, %d before", n.ModifyIndex, first.ModifyIndex)
		}
		set, _, err := r.WatchNetworks(s.ctx(), 0)
		s.ok(err)
		s.equal("networks", names(set), []string{"default"})
		s.equal("deletions", set.Deleted, []registry.Deletion(nil))
		s.wantErr(r.PutNetwork(s.ctx(), s.definition("default", wide)), registry.ErrNetworkExists)
	}},
	{"delete an unusable definition", func(s *suite) {
		r := s.open()
		s.store.Put(s.T, s.key("networks", "default"), []byte("{"))
		s.ok(r.DeleteNetwork(s.ctx(), "default"))
		_, err := r.Network(s.ctx(), "default")
		s.wantErr(err, registry.ErrNetworkNotFound, "deleted at")
	}},
	// A network whose definition vanished without DeleteNetwork is missing for every client, and not deleted.
	{"lost is not deleted", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		s.network("other", "10.6.0.0/16")
		s.acquire(r, n, s.claim(0))
		_, index, err := r.WatchNetworks(s.ctx(), 0)
		s.ok(err)
		s.store.Delete(s.T, s.key("networks", "default"))
		set, _, err := r.WatchNetworks(s.ctx(), index)
		s.ok(err)
		s.equal("networks", names(set), []string{"other"})
		for _, client := range []registry.Registry{r, s.open()} {
			s.lost(client, "default")
			set, _, err := client.WatchNetworks(s.ctx(), 0)
			s.ok(err)
			s.equal("networks", names(set), []string{"other"})
			s.equal("deletions", set.Deleted, []registry.Deletion(nil))
		}
		// A host that used it puts it back, once.
		s.ok(s.open().PutNetwork(s.ctx(), registry.Network{Name: n.Name, Plan: n.Plan, Backend: n.Backend}))
		s.wantErr(s.open().PutNetwork(s.ctx(), registry.Network{Name: n.Name, Plan: n.Plan, Backend: n.Backend}), registry.ErrNetworkExists)
		_, err = r.Network(s.ctx(), "default")
		s.ok(err)
	}},
	{"all is lost", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		s.acquire(r, n, s.claim(0))
		_, index, err := r.WatchNetworks(s.ctx(), 0)
		s.ok(err)
		for _, key := range s.store.Keys(s.T) {
			s.store.Delete(s.T, key)
		}
		for what, client := range map[string]registry.Registry{"a client that knew the store": r, "one of a new process": s.open()} {
			s.lost(client, "default")
			set, next, err := client.WatchNetworks(s.ctx(), index)
			if err != nil || len(set.Networks)+len(set.Deleted)+len(set.Bad) > 0 || next == index {
				s.Errorf("%s sees the networks %+v at %d after %d, %v", what, set, next, index, err)
			}
			_, _, err = client.WatchLeases(s.ctx(), n, 0)
			s.wantErr(err, registry.ErrUncertain)
		}
	}},
	{"delete what the store has lost", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		l := s.acquire(r, n, s.claim(0))
		s.store.Delete(s.T, s.key("networks", "default"))
		before := time.Now()
		s.ok(s.open().DeleteNetwork(s.ctx(), "default"))
		s.stays(n, l)
		n.CreateIndex = 0
		s.deleted(s.open(), n, before)
		// Without leases there is nothing to delete.
		s.wantErr(r.DeleteNetwork(s.ctx(), "other"), registry.ErrNetworkNotFound)
		_, _, ok := s.store.Get(s.T, s.key("networks", "other"))
		s.equal("a record of it", ok, false)
	}},
	{"create only where there is no record", func(s *suite) {
		r := s.open()
		n := s.definition("default", wide)
		n.ModifyIndex = registry.Absent
		s.ok(r.PutNetwork(s.ctx(), n))
		s.wantErr(r.PutNetwork(s.ctx(), n), registry.ErrConflict)
		s.ok(r.DeleteNetwork(s.ctx(), "default"))
		s.wantErr(r.PutNetwork(s.ctx(), n), registry.ErrConflict)
		_, err := r.Network(s.ctx(), "default")
		deleted := &registry.DeletedError{}
		if !errors.As(err, &deleted) {
			s.Fatalf("the deletion is gone: %v", err)
		}
		n.ModifyIndex = deleted.ModifyIndex
		s.ok(r.PutNetwork(s.ctx(), n))
	}},
	{"put a deletion back", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		s.ok(r.DeleteNetwork(s.ctx(), "default"))
		_, err := r.Network(s.ctx(), "default")
		deleted := &registry.DeletedError{}
		if !errors.As(err, &deleted) {
			s.Fatalf("it is not deleted: %v", err)
		}
		old := registry.Deletion{Network: "default", Time: deleted.Time.Add(-time.Hour)}
		s.wantErr(r.PutDeletion(s.ctx(), old), registry.ErrConflict)
		for _, key := range s.store.Keys(s.T, "networks") {
			s.store.Delete(s.T, key)
		}
		s.lost(r, "default")
		s.ok(s.open().PutDeletion(s.ctx(), old))
		s.deleted(r, registry.Network{Name: n.Name, Plan: n.Plan}, old.Time)
		_, err = r.Network(s.ctx(), "default")
		if !errors.As(err, &deleted) || !deleted.Time.Equal(old.Time) {
			s.Errorf("%v, deleted at %s", err, old.Time)
		}
		n.ModifyIndex = registry.Absent
		s.wantErr(r.PutNetwork(s.ctx(), n), registry.ErrConflict)
		s.ok(r.PutNetwork(s.ctx(), s.definition("default", wide)))
		s.wantErr(r.PutDeletion(s.ctx(), old), registry.ErrConflict)
		s.wantErr(r.PutDeletion(s.ctx(), registry.Deletion{Network: "No/", Time: old.Time}), registry.ErrInvalid)
	}},
	{"delete reservations alone", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		s.ok(r.AddReservation(s.ctx(), n, registry.Reservation{Subnet: n.Plan.Subnets(9)[0], Node: "host-x"}, false))
		s.store.Delete(s.T, s.key("networks", "default"))
		s.ok(r.DeleteNetwork(s.ctx(), "default"))
		s.gone(s.reservationKey(n, 9))
		s.lost(r, "default")
	}},
	{"the record of a deletion stays as long as leases", func(s *suite) {
		r := s.open()
		n := s.network("default", wide)
		l := s.acquire(r, n, s.claim(0))
		put := func(name string, deleted time.Time) {
			record := fmt.Sprintf(`{"version":1,"name":%q,"deleted":%q}`, name, deleted.UTC().Format(time.RFC3339))
			s.store.Put(s.T, s.key("networks", name), []byte(record))
		}
		old := time.Now().Add(-registry.DeletionKept - time.Hour)
		put("default", old)
		put("without", old)
		put("recent", time.Now().AddDate(1, 0, 0)) // by a host with another clock
		var last []string                          // by a host with a clock that is behind
		for i := range registry.DeletionsKept - 1 {
			last = append(last, fmt.Sprintf("last-%03d", i))
			put(last[i], old)
		}
		deletions := func() (out []string) {
			s.network("trigger", "10.6.0.0/16")
			s.ok(r.DeleteNetwork(s.ctx(), "trigger"))
			set, _, err := r.WatchNetworks(s.ctx(), 0)
			s.ok(err)
			for _, d := range set.Deleted {
				out = append(out, d.Network)
			}
			return out
		}
		s.equal("deletions", deletions(), slices.Concat([]string{"default"}, last, []string{"recent", "trigger"}))
		s.ok(r.Release(s.ctx(), l))
		s.equal("deletions without leases", deletions(), slices.Concat(last, []string{"recent", "trigger"}))
	}},
	{"many old deletions", func(s *suite) { // more than fit into one transaction
		r := s.open()
		s.network("default", wide)
		old := time.Now().Add(-registry.DeletionKept - time.Hour)
		for i := range registry.DeletionsKept + 130 {
			name := fmt.Sprint("old-", i)
			value, err := registry.FormatDeletion(registry.Deletion{Network: name, Time: old})
			s.ok(err)
			s.store.Put(s.T, s.key("networks", name), value)
		}
		s.ok(r.DeleteNetwork(s.ctx(), "default"))
		set, _, err := r.WatchNetworks(s.ctx(), 0)
		s.ok(err)
		left := func(d registry.Deletion) bool { return d.Network == "default" }
		if len(set.Deleted) > registry.DeletionsKept+1 || !slices.ContainsFunc(set.Deleted, left) {
			s.Errorf("%d deletions are left: %+v", len(set.Deleted), set.Deleted)
		}
	}},
	{"a deletion that no host wrote", func(s *suite) {
		r := s.open()
		s.network("default", wide)
		for _, value := range []string{
			`{"version":1,"name":"default","deleted":true}`,
			`{"version":1,"name":"default","deleted":""}`,
			`{"version":1,"name":"default","deleted":null}`,
			`{"version":1,"name":"other","deleted":"2026-11-22T21:40:00Z"}`,
			`{"version":2,"name":"default","deleted":"2026-11-22T21:40:00Z"}`,
			`{"name":"default","deleted":"2026-11-22T21:40:00Z"}`,
			`{"version":1,"name":"default","deleted":"2026-11-22T21:40:00Z","pools":[{"prefix":"10.5.0.0/16"}]}`,
			`{"version":1,"name":"default","deleted":"2026-11-22T21:40:00Z","backend":{"type":"vxlan"}}`,
		} {
			s.store.Put(s.T, s.key("networks", "default"), []byte(value))
			_, err := r.Network(s.ctx(), "default")
			s.wantErr(err, registry.ErrInvalid)
			set, _, err := r.WatchNetworks(s.ctx(), 0)
			s.ok(err)
			if len(set.Deleted) > 0 || len(set.Bad) != 1 {
				s.Errorf("%s: %+v", value, set)
			}
		}
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
		s.store.Put(s.T, keys[2], value) // contains another name
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

// deleted checks that a client sees n as deleted at about the current time.
func (s *suite) deleted(r registry.Registry, n registry.Network, before time.Time) {
	s.Helper()
	_, err := r.Network(s.ctx(), n.Name)
	s.wantErr(err, registry.ErrNetworkNotFound, "deleted at")
	set, _, watchErr := r.WatchNetworks(s.ctx(), 0)
	s.ok(watchErr)
	i := slices.IndexFunc(set.Deleted, func(d registry.Deletion) bool { return d.Network == n.Name })
	var of *registry.DeletedError
	if !errors.As(err, &of) || i < 0 || !reflect.DeepEqual(set.Deleted[i], of.Deletion) {
		s.Fatalf("got %v and %+v", err, set)
	}
	switch d := of.Deletion; {
	case d.Time.Before(before.Truncate(time.Second)) || d.Time.After(time.Now()):
		s.Errorf("deleted at %s, it was at %s", d.Time, before)
	case n.CreateIndex != 0 && d.CreateIndex != n.CreateIndex, d.ModifyIndex <= n.ModifyIndex:
		s.Errorf("deletion %+v of %+v", d, n)
	case !reflect.DeepEqual(d.Lineage, n.Lineage):
		s.Errorf("deletion %+v does not name %+v", d, n)
	case !(&belief.Definition{Network: n, Used: before.Add(-time.Minute)}).IsEndedBy(d):
		s.Errorf("deletion %+v does not end %+v", d, n)
	}
	_, err = r.Acquire(s.ctx(), n, s.claim(25))
	s.wantErr(err, registry.ErrNetworkNotFound, "deleted at")
}

// lost checks that a client sees no definition and no deletion.
func (s *suite) lost(r registry.Registry, name string) {
	s.Helper()
	_, err := r.Network(s.ctx(), name)
	s.wantErr(err, registry.ErrNetworkNotFound)
	if deleted := (*registry.DeletedError)(nil); errors.As(err, &deleted) {
		s.Errorf("network %s is taken for deleted: %v", name, err)
	}
}

func names(set registry.NetworkSet) []string {
	var out []string
	for _, n := range set.Networks {
		out = append(out, n.Name)
	}
	return out
}
