package soak

import (
	"net/netip"
	"os"
	"testing"
	"time"

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
	compare(t, noticesIn("a", 1, log), []Notice{{"a", "n", 1, six}})
}

func TestReadOf(t *testing.T) {
	lease := func(subnet string) []byte {
		return []byte(`{"version":1,"subnet":"` + subnet + `","subnets":["` + subnet + `"],"node":"a"}`)
	}
	got := readOf(consul.KVPairs{
		{Key: "leno/leases/lease/10.5.1.0-24", Value: lease("10.5.1.0/24"), Session: "s"},
		{Key: "leno/leases/lease/10.5.6.0-24", Value: []byte("nonsense"), Session: "s"},
		{Key: "leno/leases/lease/nonsense", Value: []byte("nonsense")},
		{Key: "leno/leases/lease/_", Value: []byte("a marker")},
		{Key: "leno/leases/carry/10.5.2.0-24", Value: lease("10.5.2.0/24")},
		{Key: "leno/leases/unknown/10.5.2.0-24", Value: lease("10.5.2.0/24")},
		{Key: "leno/changes/lease/1", Value: lease("10.5.3.0/24")},
		{Key: "leno/networks/lease", Value: []byte(`{"version":1,"pools":[{"prefix":"10.5.0.0/16"}],"backend":{"vni":1,"type":"vxlan"}}`)},
		{Key: "leno/networks/carry", Value: []byte(`{"version":1,"name":`)},
		{Key: "leno/networks/lease-temp", Value: []byte(`{"version":1,"name":"lease-temp","deleted":"2026-11-22T21:40:00Z"}`)},
	}, at(1))
	var seen []Read
	for _, r := range got {
		if r.State != stateMissing || len(r.Records) > 0 {
			seen = append(seen, r)
		}
	}
	compare(t, seen, []Read{
		{Span: at(1), Network: "carry", State: stateUnreadable, Records: []Record{{Entry{two, "a"}, []netip.Prefix{two}, ""}}},
		{Span: at(1), Network: "lease", State: stateDefined, Definition: `[{"prefix":"10.5.0.0/16"}] {"type":"vxlan","vni":1}`, Records: []Record{
			{Entry{one, "a"}, []netip.Prefix{one}, "s"},
			{Entry{six, ""}, []netip.Prefix{six}, "s"},
		}},
		{Span: at(1), Network: "lease-temp", State: stateDeleted},
	})
}

// TestWaits checks that the time that threads have waited counts once, also after a process was
// replaced.
func TestWaits(t *testing.T) {
	var w waits
	now := map[int]time.Duration{1: 5, 2: 7}
	look := func(pid int) time.Duration { return now[pid] }
	if got := w.add([]int{1, 2}, look); got != 12 {
		t.Errorf("first %d", got)
	}
	now[1], now[2] = 9, 6 // a thread of the second process ended
	if got := w.add([]int{1, 2}, look); got != 16 {
		t.Errorf("then %d", got)
	}
	now[3] = 2
	if got := w.add([]int{1, 3}, look); got != 18 {
		t.Errorf("with another process %d", got)
	}
	if runQueueWait(os.Getpid()) < 0 {
		t.Error("less than nothing")
	}
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
		{"another program's", netlink.Route{Protocol: 2, Type: unix.RTN_UNICAST, Dst: to}, false},
		{"the default route", netlink.Route{Protocol: 108, Type: unix.RTN_UNICAST}, false},
	} {
		if got, ok := destination(c.route); ok != c.ok || ok && got != two {
			t.Errorf("%s: %s, %v", c.name, got, ok)
		}
	}
}

func TestTroubles(t *testing.T) {
	h := api.Health{
		Checks: []api.Check{{Name: "consul", Status: api.Passing, Reason: "it answers"}},
		Networks: []api.NetworkHealth{
			{Network: "a", Checks: []api.Check{{Name: "lease", Status: api.Warning, Reason: "lost"}}},
			{Network: "b", Checks: []api.Check{{Name: "lease", Status: api.Critical, Reason: "none"}}},
		},
	}
	status, trouble := troubles(h, "a")
	compare(t, []string{status, trouble}, []string{api.Warning, "lease warning: lost"})
}
