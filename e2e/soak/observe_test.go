package soak

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	consul "github.com/hashicorp/consul/api"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/api"
)

func compare(t *testing.T, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestNotices(t *testing.T) {
	log := `2026-11-21T18:00:00.000Z [ERROR] leno: this host has another subnet now, its containers must be restarted: network=n subnet=10.5.6.0/24 before=10.5.1.0/24
2026-11-21T18:00:01.000Z [WARN]  leno: lease was lost, taking it back: network=n subnet=10.5.1.0/24
`
	compare(t, noticesIn("a", 1, log), []Notice{{"a", 1, six}})
}

func TestReadOf(t *testing.T) {
	lease := func(subnet string) []byte {
		return []byte(`{"version":1,"subnet":"` + subnet + `","subnets":["` + subnet + `"],"node":"a"}`)
	}
	got := readOf(consul.KVPairs{
		{Key: "leno/leases/leased/10.5.1.0-24", Value: lease("10.5.1.0/24"), Session: "s"},
		{Key: "leno/leases/leased/_", Value: []byte("a marker")},
		{Key: "leno/leases/carried/10.5.2.0-24", Value: lease("10.5.2.0/24")},
		{Key: "leno/changes/leased/1", Value: lease("10.5.3.0/24")},
		{Key: "leno/networks/leased"},
	}, at(1))
	compare(t, got, []Read{
		{Span: at(1), Network: carried, Records: []Record{{Entry{two, "a"}, []netip.Prefix{two}, ""}}},
		{Span: at(1), Network: leased, Defined: true, Records: []Record{{Entry{one, "a"}, []netip.Prefix{one}, "s"}}},
	})
}

func TestDestination(t *testing.T) {
	to, err := netlink.ParseIPNet("10.5.2.0/24")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		route netlink.Route
		ok    bool
	}{
		{"a peer's", netlink.Route{Protocol: 108, Type: unix.RTN_UNICAST, Dst: to}, true},
		{"the rest of the network", netlink.Route{Protocol: 108, Type: unix.RTN_UNREACHABLE, Dst: to}, false},
		{"somebody else's", netlink.Route{Protocol: 2, Type: unix.RTN_UNICAST, Dst: to}, false},
		{"the default route", netlink.Route{Protocol: 108, Type: unix.RTN_UNICAST}, false},
	} {
		if got, ok := destination(c.route); ok != c.ok || ok && got != two {
			t.Errorf("%s: %s, %v", c.name, got, ok)
		}
	}
}

func TestTroubles(t *testing.T) {
	got := troubles(api.Health{
		Checks:   []api.Check{{Name: "consul", Status: api.Passing, Reason: "it answers"}},
		Networks: []api.NetworkHealth{{Checks: []api.Check{{Name: "lease", Status: api.Warning, Reason: "lost"}}}},
	})
	compare(t, got, "lease warning: lost")
}
