package kernel_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/reconcile"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

func TestMain(m *testing.M) {
	nstest.RunMoreAtOnce()
	m.Run()
}

// host returns a namespace with one end of an underlay and a device of ours.
func host(t *testing.T) (*nstest.NS, *kernel.Handle) {
	t.Helper()
	a, b := nstest.New(t), nstest.New(t)
	nstest.Join(
		nstest.Joint{NS: a, Link: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8::1/64"}},
		nstest.Joint{NS: b, Link: "eth0", Addrs: []string{"192.0.2.2/24", "2001:db8::2/64"}})
	a.Sh(`ip link add leno-t type vxlan id 7 dev eth0 dstport 8472 nolearning local 192.0.2.1
ip addr add 10.5.1.0/32 dev leno-t
ip link set leno-t up`)
	var h *kernel.Handle
	a.Do(func() {
		var err error
		if h, err = kernel.Open(); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if err := h.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
	})
	return a, h
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

// settle applies a want, and checks that the table then holds exactly its entries and that applying
// it again writes nothing.
func settle[K, V comparable](t *testing.T, table reconcile.Table[K, V], compare func(a, b K) int, want map[K]V) {
	t.Helper()
	if _, err := reconcile.Apply(t.Context(), reconcile.Want("entry", table, compare, want, nil)); err != nil {
		t.Fatalf("apply: %v", err)
	}
	got, err := table.List(t.Context())
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	if !maps.Equal(got, want) {
		t.Fatalf("table\n%swant\n%s", reconcile.Dump(got, compare), reconcile.Dump(want, compare))
	}
	again, err := reconcile.Apply(t.Context(), reconcile.Want("entry", table, compare, want, nil))
	if err != nil || again.Writes() != 0 {
		t.Fatalf("second apply: %+v, %v", again, err)
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	ns, h := host(t)
	link, eth := ns.Index("leno-t"), ns.Index("eth0")
	pools := []netip.Prefix{prefix("10.5.0.0/16"), prefix("fd00:5::/48")}
	ns.Sh(`ip route add 10.5.77.0/24 via 192.0.2.9 proto static
ip route add 10.9.0.0/16 via 192.0.2.9 proto 108
ip route add 10.5.78.0/24 via 192.0.2.9 table 100 proto 108
ip -6 route add fd00:5:0:77::/64 via 2001:db8::9 proto static`)
	foreign := ns.Sh("ip route; ip route show table 100; ip -6 route")
	table := h.Routes(kernel.Owner{Links: []int{link}, Pools: pools})

	onlink := kernel.Route{Link: link, Via: addr("10.5.2.0"), Onlink: true}
	states := []map[kernel.RouteKey]kernel.Route{
		{
			{Dst: pools[0], Metric: kernel.UnreachableMetric}: {Unreachable: true},
			{Dst: pools[1], Metric: kernel.UnreachableMetric}: {Unreachable: true},
			{Dst: prefix("10.5.2.0/24")}:                      onlink,
			{Dst: prefix("fd00:5:0:2::/64")}:                  {Link: link, Via: addr("fd00:5:0:2::"), Onlink: true},
			{Dst: prefix("10.5.3.0/24")}:                      {Link: eth, Via: addr("192.0.2.3")},
			{Dst: prefix("fd00:5:0:3::/64")}:                  {Link: eth, Via: addr("2001:db8::3")},
			{Dst: prefix("10.5.4.0/24")}:                      {Link: link},
			{Dst: prefix("fd00:5:0:4::/64")}:                  {Link: link},
		},
		{ // the same keys lead elsewhere
			{Dst: pools[0], Metric: kernel.UnreachableMetric}: {Unreachable: true},
			{Dst: prefix("10.5.2.0/24")}:                      {Link: eth, Via: addr("192.0.2.3"), Src: addr("192.0.2.1")},
			{Dst: prefix("fd00:5:0:2::/64")}:                  {Link: eth, Via: addr("2001:db8::3")},
			{Dst: prefix("10.5.3.0/24")}:                      {Unreachable: true},
			{Dst: prefix("fd00:5:0:3::/64")}:                  {Unreachable: true},
			{Dst: prefix("10.5.4.0/24")}:                      onlink,
			{Dst: prefix("fd00:5:0:4::/64")}:                  {Link: link, Via: addr("fd00:5:0:4::"), Onlink: true},
			{Dst: prefix("10.5.2.0/24"), Metric: 9}:           onlink,
		},
		{},
	}
	for _, i := range []int{0, 1, 0, 2, 1, 2} {
		settle(t, table, kernel.CompareRoutes, states[i])
	}
	if got := ns.Sh("ip route; ip route show table 100; ip -6 route"); got != foreign {
		t.Errorf("foreign routes\n%swant\n%s", got, foreign)
	}

	t.Run("a foreign route of the same name stays", func(t *testing.T) {
		want := map[kernel.RouteKey]kernel.Route{
			{Dst: prefix("10.5.76.0/24")}: onlink,
			{Dst: prefix("10.5.77.0/24")}: onlink,
			{Dst: prefix("10.5.78.0/24")}: onlink,
		}
		result, err := reconcile.Apply(t.Context(), reconcile.Want("route", table, kernel.CompareRoutes, want, nil))
		if err == nil || !strings.Contains(err.Error(), "put route 10.5.77.0/24") {
			t.Errorf("error %v", err)
		}
		if result.Writes() != 2 {
			t.Errorf("%d writes, want the other 2", result.Writes())
		}
		if got := ns.Sh("ip route show 10.5.77.0/24"); !strings.Contains(got, "via 192.0.2.9 dev eth0 proto static") {
			t.Errorf("foreign route: %q", got)
		}
		settle(t, table, kernel.CompareRoutes, nil)
	})
	t.Run("what another program added under our number or changed goes", func(t *testing.T) {
		ns.Sh(`ip route add 10.5.2.0/24 via 10.5.2.0 dev leno-t onlink proto 108 mtu 1000
ip route append 10.5.2.0/24 via 192.0.2.7 dev eth0 proto 108
ip route add 10.88.0.0/16 dev leno-t proto 108
ip route add 10.5.9.0/24 proto 108 nexthop via 192.0.2.7 nexthop via 192.0.2.8
ip -6 route add fd00:5:0:9::/64 proto 108 nexthop via 2001:db8::7 nexthop via 2001:db8::8
ip route add blackhole 10.5.10.0/24 proto 108`)
		settle(t, table, kernel.CompareRoutes, map[kernel.RouteKey]kernel.Route{
			{Dst: prefix("10.5.2.0/24")}: onlink,
		})
		settle(t, table, kernel.CompareRoutes, nil)
	})
	if got := ns.Sh("ip route; ip route show table 100; ip -6 route"); got != foreign {
		t.Errorf("foreign routes at the end\n%swant\n%s", got, foreign)
	}
}

func TestNeighbours(t *testing.T) {
	t.Parallel()
	ns, h := host(t)
	ns.Sh(`ip neigh add 192.0.2.77 lladdr 0a:58:00:00:00:77 dev eth0
ip neigh add 10.5.2.0 lladdr 0a:58:00:00:00:99 dev leno-t
ip neigh add 10.5.66.0 lladdr 0a:58:00:00:00:66 dev leno-t
ip neigh add 10.5.4.0 lladdr 0a:58:00:00:00:04 dev leno-t nud stale`)
	table := h.Neighbours(ns.Index("leno-t"))
	states := []map[kernel.NeighbourKey]kernel.MAC{
		{{addr("10.5.2.0")}: {10, 88, 0, 0, 0, 2}, {addr("fd00:5:0:2::")}: {10, 88, 0, 0, 0, 2}, {addr("10.5.4.0")}: {10, 88, 0, 0, 0, 4}},
		{{addr("10.5.2.0")}: {10, 88, 0, 0, 0, 5}, {addr("fd00:5:0:3::")}: {10, 88, 0, 0, 0, 2}},
		{},
	}
	for _, i := range []int{0, 1, 0, 2} {
		settle(t, table, kernel.CompareNeighbours, states[i])
	}
	if got := ns.Sh("ip neigh show dev eth0 nud permanent"); !strings.Contains(got, "192.0.2.77") {
		t.Errorf("the neighbour on a foreign link went: %q", got)
	}
}

func TestFDB(t *testing.T) {
	t.Parallel()
	ns, h := host(t)
	ns.Sh(`bridge fdb append 00:00:00:00:00:00 dev leno-t dst 192.0.2.8
bridge fdb append 00:00:00:00:00:00 dev leno-t dst 192.0.2.9
bridge fdb append 0a:58:00:00:00:03 dev leno-t dst 192.0.2.9 vni 88`)
	table := h.FDB(ns.Index("leno-t"))
	states := []map[kernel.FDBKey]kernel.FDB{
		{{MAC: kernel.MAC{10, 88, 0, 0, 0, 2}}: {Dst: addr("192.0.2.2")}, {MAC: kernel.MAC{10, 88, 0, 0, 0, 3}}: {Dst: addr("192.0.2.3")}},
		{{MAC: kernel.MAC{10, 88, 0, 0, 0, 2}}: {Dst: addr("192.0.2.3")}, {MAC: kernel.MAC{10, 88, 0, 0, 0, 4}}: {Dst: addr("192.0.2.3")}},
		{},
	}
	for _, i := range []int{0, 1, 0, 2} {
		settle(t, table, kernel.CompareFDB, states[i])
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	ns, h := host(t)
	table := h.Addresses(ns.Index("leno-t"))
	states := []map[netip.Prefix]kernel.Address{
		{prefix("10.5.2.0/32"): {}, prefix("fd00:5:0:2::/128"): {}},
		{prefix("10.5.3.0/32"): {}},
		{},
	}
	for _, i := range []int{0, 1, 0, 2} {
		settle(t, table, kernel.CompareAddresses, states[i])
	}
	settle(t, table, kernel.CompareAddresses, states[0])
	if got := ns.Sh("ip -6 addr show dev leno-t scope global"); strings.Contains(got, "tentative") || !strings.Contains(got, "nodad") {
		t.Errorf("the address is not usable at once: %q", got)
	}
	if has, err := h.HasAddr(ns.Index("eth0"), addr("2001:db8::1")); err != nil || !has {
		t.Errorf("HasAddr of our own address: %v, %v", has, err)
	}
	if has, err := h.HasAddr(ns.Index("eth0"), addr("192.0.2.9")); err != nil || has {
		t.Errorf("HasAddr of another: %v, %v", has, err)
	}
}

func TestDirect(t *testing.T) {
	t.Parallel()
	ns, h := host(t)
	ns.Sh(`ip route add 198.51.100.0/24 via 192.0.2.9
ip route add 203.0.113.0/24 dev leno-t
ip route add unreachable 198.18.0.0/16
ip route add blackhole 198.19.0.0/16
ip route add prohibit 198.51.101.0/24`)
	wants := map[string]string{
		"192.0.2.2":    "",
		"2001:db8::2":  "",
		"192.0.2.1":    "192.0.2.1 is an address of this host",
		"198.51.100.3": "198.51.100.3 is behind a gateway",
		"203.0.113.3":  "203.0.113.3 is reached over another interface",
		"198.18.0.1":   "no route to 198.18.0.1",
		"8.8.8.8":      "no route to 8.8.8.8",
		"fd99::1":      "no route to fd99::1",
		"198.19.0.1":   "198.19.0.1 is barred by a route",
		"198.51.101.1": "198.51.101.1 is barred by a route",
	}
	var asked []netip.Addr
	for text := range wants {
		asked = append(asked, addr(text))
	}
	// A VPN's rule takes packets to these elsewhere.
	ns.Sh(`ip rule add pref 5270 lookup 520
ip -6 rule add pref 5270 lookup 520
ip route add 192.0.2.128/25 dev leno-t table 520
ip route add 198.51.100.128/25 dev leno-t table 520
ip route add 203.0.114.0/24 dev leno-t table 520
ip -6 route add 2001:db8::f000/116 dev leno-t table 520
ip -6 route add fd98::/64 dev leno-t table 520`)
	for text, want := range map[string]string{
		"192.0.2.130": "", "198.51.100.130": "198.51.100.130 is behind a gateway", "203.0.114.1": "no route to 203.0.114.1",
		"2001:db8::f001": "", "fd98::1": "no route to fd98::1",
	} {
		asked, wants[text] = append(asked, addr(text)), want
	}
	// More than fit into one exchange.
	for i := range 1000 {
		a := netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + i%250)})
		asked, wants[a.String()] = append(asked, a), ""
	}
	got, err := h.Direct(t.Context(), asked, ns.Index("eth0"))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range wants {
		if got[addr(text)] != want {
			t.Errorf("%s: %q, want %q", text, got[addr(text)], want)
		}
	}
	if got, err := h.Direct(t.Context(), nil, ns.Index("eth0")); err != nil || len(got) != 0 {
		t.Errorf("of none: %v, %v", got, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := h.Direct(ended, asked, ns.Index("eth0")); err == nil {
		t.Errorf("with an ended context: %v", got)
	}
}

func TestSysctl(t *testing.T) {
	t.Parallel()
	ns, _ := host(t)
	ns.Do(func() {
		// A new namespace starts with the values of the first one.
		if _, err := kernel.SetSysctl("0", "ipv4", "ip_forward"); err != nil {
			t.Fatal(err)
		}
		for i, changed := range []bool{true, false} {
			got, err := kernel.SetSysctl("1", "ipv4", "ip_forward")
			if err != nil || got != changed {
				t.Errorf("write %d: changed %v, %v", i, got, err)
			}
		}
		if got, err := kernel.Sysctl("ipv4", "ip_forward"); err != nil || got != "1" {
			t.Errorf("read %q, %v", got, err)
		}
		if _, err := kernel.Sysctl("ipv4", "conf", "nowhere", "rp_filter"); err == nil {
			t.Error("no error for a device that is not there")
		}
	})
}

func TestAcceptAsymmetric(t *testing.T) {
	t.Parallel()
	ns, _ := host(t)
	for _, tt := range []struct {
		all, own int
		want     string
	}{
		{0, 0, "0"},
		{0, 1, "2"},
		{0, 2, "2"},
		{1, 0, "2"},
		{1, 1, "2"},
		{1, 2, "2"},
		{2, 0, "0"},
		{2, 1, "1"},
	} {
		ns.Sh(fmt.Sprintf("sysctl -qw net.ipv4.conf.all.rp_filter=%d net.ipv4.conf.leno-t.rp_filter=%d", tt.all, tt.own))
		ns.Do(func() {
			changed, err := kernel.AcceptAsymmetric("leno-t")
			if err != nil || changed != (fmt.Sprint(tt.own) != tt.want) {
				t.Errorf("all %d, own %d: changed %v, %v", tt.all, tt.own, changed, err)
			}
			if got, err := kernel.Sysctl("ipv4", "conf", "leno-t", "rp_filter"); err != nil || got != tt.want {
				t.Errorf("all %d, own %d: is now %q, %v, want %s", tt.all, tt.own, got, err, tt.want)
			}
			if _, err := kernel.AcceptAsymmetric("nowhere"); err == nil {
				t.Error("no error for a device that is not there")
			}
		})
	}
}

// TestBatchesReportEachFailure checks that a batch longer than one sendmsg reports each failure for
// its own request.
func TestBatchesReportEachFailure(t *testing.T) {
	t.Parallel()
	ns, h := host(t)
	link := ns.Index("leno-t")
	ns.Sh("ip route add 10.5.1.1/32 dev eth0 proto static; ip route add 10.5.3.44/32 dev eth0 proto static")
	table := h.Routes(kernel.Owner{Links: []int{link}})
	want := map[kernel.RouteKey]kernel.Route{}
	for i := range 1000 {
		dst := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(i >> 8), byte(i)}), 32)
		want[kernel.RouteKey{Dst: dst}] = kernel.Route{Link: link}
	}
	result, err := reconcile.Apply(t.Context(), reconcile.Want("route", table, kernel.CompareRoutes, want, nil))
	if result.Writes() != 998 {
		t.Errorf("%d writes, want 998", result.Writes())
	}
	for _, dst := range []string{"10.5.1.1/32", "10.5.3.44/32"} {
		if err == nil || strings.Count(err.Error(), "\n") != 1 || !strings.Contains(err.Error(), fmt.Sprintf("put route %s: file exists: a route to it that is not leno's is there", dst)) {
			t.Errorf("error %v does not name %s alone", err, dst)
		}
	}
	settle(t, table, kernel.CompareRoutes, nil)
}

func TestSocketDevices(t *testing.T) {
	t.Parallel()
	ns, _ := host(t)
	ns.Sh(`ip link add six type vxlan id 8 dev eth0 dstport 4789 local 2001:db8::1; ip link set six up`)
	for _, tt := range []struct {
		port int
		addr string
		want string
	}{
		{8472, "192.0.2.1", "[0]"},
		{8472, "2001:db8::1", "[]"},
		{4789, "192.0.2.1", "[]"},
		{4789, "2001:db8::1", "[0]"},
	} {
		ns.Do(func() {
			got, err := kernel.SocketDevices(tt.port, addr(tt.addr))
			if err != nil || fmt.Sprint(got) != tt.want {
				t.Errorf("sockets on port %d of the family of %s are bound to %v, %v; want %s", tt.port, tt.addr, got, err, tt.want)
			}
		})
	}
}
