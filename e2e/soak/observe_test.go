package soak

import (
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

func pairWith(key string, value []byte, session string) pair {
	return pair{key: key, value: value, record: value, session: session}
}

func TestReadOf(t *testing.T) {
	lease := func(subnet string) []byte {
		return []byte(`{"version":1,"subnet":"` + subnet + `","subnets":["` + subnet + `"],"node":"a"}`)
	}
	got := readOf([]pair{
		pairWith("leno/leases/lease/10.5.1.0-24", lease("10.5.1.0/24"), "s"),
		pairWith("leno/leases/lease/10.5.6.0-24", []byte("nonsense"), "s"),
		pairWith("leno/leases/lease/nonsense", []byte("nonsense"), ""),
		pairWith("leno/leases/lease/_", []byte("a marker"), ""),
		pairWith("leno/leases/carry/10.5.2.0-24", lease("10.5.2.0/24"), ""),
		pairWith("leno/leases/unknown/10.5.2.0-24", lease("10.5.2.0/24"), ""),
		pairWith("leno/changes/lease/1", lease("10.5.3.0/24"), ""),
		pairWith("leno/networks/lease", []byte(`{"version":1,"pools":[{"prefix":"10.5.0.0/16"}],"backend":{"vni":1,"type":"vxlan"}}`), ""),
		pairWith("leno/networks/carry", []byte(`{"version":1,"name":`), ""),
		pairWith("leno/networks/lease-t", []byte(`{"version":1,"name":"lease-t","deleted":"2026-11-22T21:40:00Z"}`), ""),
	}, at(1))
	var seen []Read
	for _, r := range got {
		if r.State != stateMissing || len(r.Records) > 0 {
			seen = append(seen, r)
		}
	}
	compare(t, seen, []Read{
		{Span: at(1), Network: "carry", State: stateUnreadable, Records: []Record{{Entry{two, "a"}, []netip.Prefix{two}, ""}}},
		{Span: at(1), Network: "lease", State: stateDefined, Definition: `[{"prefix":"10.5.0.0/16"}] vxlan {"vni":1}`,
			Backends: []Backend{{"vxlan", false}}, Records: []Record{
				{Entry{one, "a"}, []netip.Prefix{one}, "s"},
				{Entry{six, ""}, []netip.Prefix{six}, "s"},
			}},
		{Span: at(1), Network: "lease-t", State: stateDeleted},
	})
}

// TestSwitchedState checks that the meaning of a definition is the same during a switch and after it.
func TestSwitchedState(t *testing.T) {
	record := func(backends string) pair {
		return pairWith("leno/networks/carry", []byte(`{"version":1,"pools":[{"prefix":"10.5.0.0/16"}],`+backends+`}`), "")
	}
	both := []Backend{{"vxlan", false}, {"udp", true}}
	udp, vxlan := `[{"prefix":"10.5.0.0/16"}] udp {"device":"b","port":9}`, `[{"prefix":"10.5.0.0/16"}] vxlan {"vni":1}`
	for _, c := range []struct {
		carriage string // members of the record
		means    string
		backends []Backend
	}{
		{`"backend":{"type":"vxlan","vni":1},"switch":{"to":{"type":"udp","port":9}}`, udp, both},
		{`"backend":{"type":"vxlan","vni":1},"switch":{"direction":"stopped","to":{"port":9,"type":"udp"}}`, udp, both},
		{`"backend":{"type":"vxlan","vni":1},"switch":{"to":{"type":"udp","port":9},"direction":"back"}`, vxlan, both},
		{`"backend":{"type":"udp","port":9},"epoch":{"number":1}`, udp, both[1:]},
		{`"backend":{"type":"vxlan","vni":1}`, vxlan, both[:1]},
	} {
		for _, read := range readOf([]pair{record(c.carriage)}, at(1)) {
			if read.Network == "carry" && (read.State != stateDefined || read.Definition != c.means || !slices.Equal(read.Backends, c.backends)) {
				t.Errorf("%s: %+v", c.carriage, read)
			}
		}
	}
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

// TestEtcdKeys checks that each key in etcd stands for one key in Consul.
func TestEtcdKeys(t *testing.T) {
	e := &etcdStore{}
	for key, want := range map[string]string{
		"leno/networks/carry":                     "/coreos.com/network/config",
		"leno/networks/lease":                     "/coreos.com/network/leno/networks/lease/config",
		"leno/leases/carry/10.5.2.0-24&fd00::-64": "/coreos.com/network/subnets/10.5.2.0-24&fd00::-64",
		"leno/leases/lease/10.6.2.0-24":           "/coreos.com/network/leno/networks/lease/subnets/10.6.2.0-24",
		"leno/reservations/lease-t/10.10.0.0-24":  "/coreos.com/network/leno/reservations/lease-t/10.10.0.0-24",
	} {
		got := e.stored(key)
		if got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
		if back, ok := unstored(got); !ok || back != key {
			t.Errorf("%s is %s, %t, want %s", got, back, ok, key)
		}
	}
	for _, key := range []string{"/coreos.com/network/leno/markers/lease", "/coreos.com/network/leno/sessions/lease/a"} {
		if got, ok := unstored(key); ok {
			t.Errorf("%s is %s", key, got)
		}
	}
}
