package consul

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// found returns the result of HostRecords as text: for a lease its network, subnet and named host, for a session its name.
func found(t *testing.T, s *store, left registry.HostRecords) (out []string) {
	t.Helper()
	for _, l := range left.Leases {
		held := "lapsed"
		if l.Held() {
			held = "held"
		}
		out = append(out, l.Network+" "+l.Subnet().String()+" "+l.NodeID+" "+held)
	}
	for _, id := range left.Sessions {
		entry, _, err := s.admin.Session().Info(id, nil)
		if err != nil || entry == nil {
			t.Fatal(entry, err)
		}
		out = append(out, "session "+entry.Name[len(s.prefix)+1:])
	}
	slices.Sort(out)
	return out
}

// TestHostRecords finds all records of one host, whatever happened to its records and networks, and none of other hosts.
func TestHostRecords(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := testContext(t)
	c := s.open(t)
	one, two := putNetwork(t, s, "one", "10.5.0.0/16"), putNetwork(t, s, "two", "10.6.0.0/16")
	held := acquire(t, c, one, 1)
	gone := acquire(t, c, two, 1)
	acquire(t, c, one, 0)
	stray, err := c.sessions.Create(ctx, "one", claim(1))
	if err != nil {
		t.Fatal(err)
	}
	// A host with another node id but the same name holds this one.
	twin := claim(1)
	twin.NodeID, twin.PublicIPs = "id-twin", []netip.Addr{netip.MustParseAddr("192.0.2.99")}
	s.Put(t, s.prefix+"/leases/one/10.7.99.0-24", []byte(`{"node":"host-1","node_id":"id-twin","public_ips":["192.0.2.99"]}`))
	locked, err := c.sessions.Create(ctx, "one", twin)
	if err != nil {
		t.Fatal(err)
	}
	pair, _, err := s.admin.KV().Get(s.prefix+"/leases/one/10.7.99.0-24", nil)
	if err != nil {
		t.Fatal(err)
	}
	pair.Session = locked
	if ok, _, err := s.admin.KV().Acquire(pair, nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := c.DeleteNetwork(ctx, "two"); err != nil {
		t.Fatal(err)
	}
	s.Put(t, s.prefix+"/leases/one/junk", []byte(`{"node_id":"id-1"}`))
	s.Put(t, s.prefix+"/leases/one/10.7.98.0-24", []byte(`{"node_id":"id-1","mtu":"no number"}`))

	me := registry.Host{Node: "host-1", NodeID: "id-1"}
	all := []string{
		"one 10.7.98.0/24 id-1 lapsed", "one 10.7.99.0/24 id-twin held", "one " + held.Subnet().String() + " id-1 held",
		"session one/host-1", "two " + gone.Subnet().String() + " id-1 held",
	}
	of := func(network string, h registry.Host) []string {
		t.Helper()
		left, err := c.HostRecords(ctx, network, h)
		if err != nil {
			t.Fatal(err)
		}
		return found(t, s, left)
	}
	slices.Sort(all)
	if diff := cmp.Diff(all, of("", me)); diff != "" {
		t.Errorf("all networks (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"two " + gone.Subnet().String() + " id-1 held"}, of("two", me)); diff != "" {
		t.Errorf("one network (-want +got):\n%s", diff)
	}
	if got := of("", registry.Host{NodeID: "id-9", Node: "host-9"}); got != nil {
		t.Errorf("of an unknown host: %q", got)
	}
	if diff := cmp.Diff([]string{"session one/host-1"}, of("two", registry.Host{Node: "renamed", Sessions: []string{stray}})); diff != "" {
		t.Errorf("a session of a host with another name by now (-want +got):\n%s", diff)
	}
	// A record that lost its content is found by its lock.
	pair, _, err = s.admin.KV().Get(s.prefix+"/leases/one/"+registry.SubnetKey(held.Subnet()), nil)
	if err != nil {
		t.Fatal(err)
	}
	pair.Value = []byte("x")
	if ok, _, err := s.admin.KV().Acquire(pair, nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if diff := cmp.Diff([]string{"one " + held.Subnet().String() + "  held"}, of("one", registry.Host{Sessions: []string{held.Session}})); diff != "" {
		t.Errorf("by session (-want +got):\n%s", diff)
	}

	left, err := c.HostRecords(ctx, "", me)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range left.Leases {
		if l.NodeID == "id-1" {
			if err := c.Release(ctx, l); err != nil {
				t.Error(err)
			}
		}
	}
	for range 2 {
		if err := c.EndSession(ctx, stray); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{"one 10.7.99.0/24 id-twin held"}, of("", me)); diff != "" {
		t.Errorf("afterwards (-want +got):\n%s", diff)
	}
}

// TestLeftUnderTheAgentsRights: the rights of an agent are enough to clean up after it.
func TestLeftUnderTheAgentsRights(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := testContext(t)
	n := putNetwork(t, s, "one", "10.5.0.0/16")
	node := nodeOf(t, s)
	rules := `
		key_prefix "` + s.prefix + `/leases/" { policy = "write" }
		key_prefix "` + s.prefix + `/changes/" { policy = "write" }
		key_prefix "` + s.prefix + `/" { policy = "read" }
		session "` + node + `" { policy = "write" }
		service "leno" { policy = "write" }
		agent "` + node + `" { policy = "read" }`
	secret, _ := s.newToken(t, rules)
	c := s.open(t).As(secret).(*Client)
	acquire(t, c, n, 1)
	if _, err := c.sessions.Create(ctx, "one", claim(1)); err != nil {
		t.Fatal(err)
	}
	service := registry.Service{Name: "leno", ID: "leno-rights"}
	if err := c.Announce(ctx, service, registry.Verdict{Status: api.HealthPassing}); err != nil {
		t.Fatal(err)
	}
	left, err := c.HostRecords(ctx, "", registry.Host{Node: "host-1", NodeID: "id-1"})
	if err != nil || len(left.Leases) != 1 || len(left.Sessions) != 1 {
		t.Fatalf("%+v, %v", left, err)
	}
	shown, ok, err := c.RegisteredService(ctx, service.ID)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, err := range []error{c.Release(ctx, left.Leases[0]), c.EndSession(ctx, left.Sessions[0]), c.Withdraw(ctx, shown)} {
		if err != nil {
			t.Error(err)
		}
	}
	if got := s.sessions(t, "one"); len(got) != 0 {
		t.Errorf("sessions %q", got)
	}
}

// TestLeftIsWholeOrAnError: records that the token may not see are not taken for deleted.
func TestLeftIsWholeOrAnError(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := putNetwork(t, s, "one", "10.5.0.0/16")
	acquire(t, s.open(t), n, 1)
	secret, _ := s.newToken(t, `key_prefix "`+s.prefix+`/networks/" { policy = "read" }`)
	_, err := s.open(t).As(secret).(*Client).HostRecords(testContext(t), "", registry.Host{NodeID: "id-1"})
	wantIs(t, err, registry.ErrDenied)
	_, err = s.open(t, func(c *Config) { c.Address = "127.0.0.1:1" }).HostRecords(testContext(t), "", registry.Host{NodeID: "id-1"})
	wantIs(t, err, registry.ErrUnavailable)
}

func TestRegisteredService(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := testContext(t)
	c := s.open(t)
	if _, ok, err := c.RegisteredService(ctx, "leno-shown"); ok || err != nil {
		t.Error(ok, err)
	}
	want := registry.Service{Name: "leno", ID: "leno-shown", Port: 5366, Tags: []string{"a"}, Meta: map[string]string{"node_id": "x"}}
	if err := c.Announce(ctx, want, registry.Verdict{Status: api.HealthPassing}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Withdraw(context.Background(), want) })
	got, ok, err := c.RegisteredService(ctx, want.ID)
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); !ok || err != nil || diff != "" {
		t.Error(ok, err, diff)
	}

	// The same agent under another name, and other services.
	for _, s := range []registry.Service{
		{Name: "mesh", ID: "mesh-before", Meta: map[string]string{"node_id": "x"}},
		{Name: "leno", ID: "leno-other", Meta: map[string]string{"node_id": "y"}},
		{Name: "web", ID: "web-1"},
	} {
		if err := c.Announce(ctx, s, registry.Verdict{Status: api.HealthPassing}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Withdraw(context.Background(), s) })
	}
	doubles, err := c.Duplicates(ctx, want, "node_id")
	if err != nil || len(doubles) != 1 || doubles[0].ID != "mesh-before" || doubles[0].Name != "mesh" {
		t.Error(doubles, err)
	}
}
