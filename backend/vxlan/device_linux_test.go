package vxlan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

func TestMain(m *testing.M) {
	nstest.RunMoreAtOnce()
	m.Run()
}

// host is a namespace with two underlays, and what is needed to apply in it.
type host struct {
	t  *testing.T
	ns *nstest.NS
}

func newHost(t *testing.T) host { return host{t, newNS(t)} }

func newNS(t testing.TB) *nstest.NS {
	a, b := nstest.New(t), nstest.New(t)
	for i, link := range []string{"eth0", "eth1"} {
		nstest.Join(
			nstest.Joint{NS: a, Link: link, Addrs: []string{fmt.Sprintf("192.0.%d.1/24", i+2), fmt.Sprintf("2001:db8:%d::1/64", i+2)}},
			nstest.Joint{NS: b, Link: link})
	}
	return a
}

func (h host) open(network, link, options string) *vxlan {
	h.t.Helper()
	pool := netip.MustParsePrefix("10.5.0.0/16")
	if network != "test" {
		pool = netip.MustParsePrefix("10.6.0.0/16")
	}
	b, err := Type().New(backend.Config{Network: network, Link: link, NodeID: "node", Pools: []netip.Prefix{pool}, Options: json.RawMessage(options)})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = b.Close() })
	return b.(*vxlan)
}

func (h host) state(link, addr string) backend.State {
	return backend.State{
		Subnets:  []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")},
		Underlay: backend.Underlay{Interface: link, Index: h.ns.Index(link), MTU: 1500, Addrs: []netip.Addr{netip.MustParseAddr(addr)}},
		Peers: []backend.Peer{{
			Node: "two", Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.2.0/24")}, Backend: Name,
			PublicIPs:  []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8:2::2")},
			Attributes: json.RawMessage(`{"vni":1,"port":8472,"vtep_mac":"0a:58:00:00:00:02"}`),
		}},
	}
}

func (h host) apply(b *vxlan, s backend.State) backend.Report {
	h.t.Helper()
	var r backend.Report
	h.ns.Do(func() {
		var err error
		if r, err = b.Apply(h.t.Context(), s); err != nil {
			h.t.Fatalf("apply: %v", err)
		}
	})
	return r
}

func (h host) device() string { return h.ns.Sh("ip -o -d link show leno-test") }

// TestDeviceChanges checks that what can be changed without a new device is changed in place, so
// connections stay open. Any other change makes a new device.
func TestDeviceChanges(t *testing.T) {
	t.Parallel()
	const plain = `{}`
	tests := []struct {
		name         string
		options      string
		link, addr   string
		script       string
		inPlace      bool
		shows, lacks string
	}{
		{"other address", plain, "eth0", "192.0.2.7", "ip addr add 192.0.2.7/24 dev eth0", true, "local 192.0.2.7", ""},
		{"other underlay", plain, "eth1", "192.0.3.1", "", true, "local 192.0.3.1 dev eth1", ""},
		{"TTL changed", plain, "eth0", "192.0.2.1", "ip link set leno-test type vxlan ttl 1", true, "ttl auto", ""},
		{"learning switched on", plain, "eth0", "192.0.2.1", "ip link set leno-test type vxlan learning", true, "nolearning", ""},
		{"MAC changed", plain, "eth0", "192.0.2.1", "ip link set leno-test address 02:00:00:00:00:01", true, "link/ether 02:00:00:00:00:01", ""},
		{"IPv6 underlay", plain, "eth0", "2001:db8:2::1", "", false, "local 2001:db8:2::1", ""},
		{"vni", `{"vni":5}`, "eth0", "192.0.2.1", "", false, "vxlan id 5 ", ""},
		{"port", `{"port":4789}`, "eth0", "192.0.2.1", "", false, "dstport 4789", ""},
		{"gbp", `{"gbp":true}`, "eth0", "192.0.2.1", "", false, " gbp", ""},
		{"another program's kind of vxlan", plain, "eth0", "192.0.2.1",
			"ip link del leno-test; ip link add leno-test type vxlan id 1 dstport 8472 local 192.0.2.1 dev eth0 l2miss", false, "nolearning", "l2miss"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.apply(h.open("test", "leno-test", plain), h.state("eth0", "192.0.2.1"))
			if tt.script != "" {
				h.ns.Sh(tt.script)
			}
			index := h.ns.Index("leno-test")
			b := h.open("test", "leno-test", tt.options)
			s := h.state(tt.link, tt.addr)
			if s.Underlay.Addrs[0].Is6() {
				slices.Reverse(s.Peers[0].PublicIPs)
			}
			s.Peers[0].Attributes, _ = json.Marshal(attributes{VNI: b.options.VNI, Port: b.options.Port, MAC: "0a:58:00:00:00:02"})
			if r := h.apply(b, s); r.Writes == 0 || r.Peers != 1 {
				t.Errorf("report %+v", r)
			}
			if got := h.device(); !strings.Contains(got, tt.shows) || tt.lacks != "" && strings.Contains(got, tt.lacks) {
				t.Errorf("device %s\nlacks %q", got, tt.shows)
			}
			if inPlace := h.ns.Index("leno-test") == index; inPlace != tt.inPlace {
				t.Errorf("changed in place: %v", inPlace)
			}
			if r := h.apply(b, s); r.Writes != 0 {
				t.Errorf("second apply: %+v", r)
			}
			if got := h.ns.Sh("ip route show proto 108; ip neigh show dev leno-test nud permanent"); !strings.Contains(got, "10.5.2.0/24 via 10.5.2.0 dev leno-test onlink") ||
				!strings.Contains(got, "10.5.2.0 lladdr 0a:58:00:00:00:02") {
				t.Errorf("the path to the peer is gone:\n%s", got)
			}
		})
	}
}

func TestRepairsSayWhatWasDoneToTheDevice(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	b, s := h.open("test", "leno-test", `{"checksum_offload":"off"}`), h.state("eth0", "192.0.2.1")
	if r := h.apply(b, s); r.Repaired != nil {
		t.Errorf("first apply repaired %q", r.Repaired)
	}
	if got := h.ns.Sh("ethtool -k leno-test"); !strings.Contains(got, "tx-checksumming: off") {
		t.Errorf("checksum offload is on:\n%s", got)
	}
	for _, tt := range []struct{ script, repaired string }{
		{"ip link del leno-test", "[device was deleted]"},
		{"ip link set leno-test address 02:00:00:00:00:01", "[device had another MAC address: 02:00:00:00:00:01 instead of " + b.devices[0].mac.String() + "]"},
		{"ip link set leno-test name other", "[device was renamed: to other]"},
		{"ip link set leno-test down; ip link set leno-test name other", "[device was renamed: to other device was down]"},
		{"ip link set leno-test alias mine", `[device had another alias: "mine"]`},
		{"ip link set leno-test type vxlan learning", "[device had another underlay: learning was on]"},
		{"ip link set leno-test type vxlan ttl 1 tos 4", "[device had another underlay: TTL was 1, TOS was 0x4]"},
		{"ip link set leno-test type vxlan tos inherit", "[device had another underlay: TOS was 0x1]"},
		{"ip link add br9 type bridge; ip link set leno-test master br9", "[device had a master: br9]"},
		{"ip link set leno-test mtu 1300", "[device had another MTU: 1300 instead of 1450]"},
		{"ip link set leno-test down", "[device was down]"},
		{"ethtool -K leno-test tx on", "[device had another checksum offload]"},
		{"ip addr flush dev leno-test", "[addresses were missing: 10.5.1.0/32]"},
		{"bridge fdb del 0a:58:00:00:00:02 dev leno-test dst 192.0.2.2", "[FDB entries were missing: 0a:58:00:00:00:02]"},
		{"bridge fdb add 0a:58:00:00:00:03 dev leno-test dst 192.0.2.2", "[foreign FDB entries were there: 0a:58:00:00:00:03 dst 192.0.2.2]"},
		{"bridge fdb replace 0a:58:00:00:00:02 dev leno-test dst 192.0.2.9", "[FDB entries were changed: 0a:58:00:00:00:02 dst 192.0.2.9]"},
		{"ip route add 10.5.3.0/24 dev leno-test proto 108; ip route add 10.5.4.0/24 dev leno-test proto 108", "[foreign routes were there: 10.5.3.0/24 link INDEX and 1 more]"},
	} {
		h.ns.Sh(tt.script)
		if r := h.apply(b, s); fmt.Sprint(r.Repaired) != strings.ReplaceAll(tt.repaired, "INDEX", fmt.Sprint(h.ns.Index("leno-test"))) {
			t.Errorf("%s: repaired %q, want %s", tt.script, r.Repaired, tt.repaired)
		}
		if r := h.apply(b, s); r.Writes != 0 {
			t.Errorf("%s: second apply %+v", tt.script, r)
		}
	}
}

// TestTwoNetworks checks that two networks on one host do not interfere, and a conflict of VNI and
// port is reported in words.
func TestTwoNetworks(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	one, two := h.open("test", "leno-test", `{}`), h.open("two", "leno-two", `{"vni":2}`)
	s1, s2 := h.state("eth0", "192.0.2.1"), h.state("eth0", "192.0.2.1")
	s2.Subnets = []netip.Prefix{netip.MustParsePrefix("10.6.1.0/24")}
	s2.Peers = nil
	h.apply(one, s1)
	h.apply(two, s2)
	if r := h.apply(one, s1); r.Writes != 0 {
		t.Errorf("the second network disturbs the first: %+v", r)
	}
	clash := h.open("two", "leno-clash", `{}`)
	h.ns.Do(func() {
		_, err := clash.Apply(t.Context(), s2)
		if err == nil || !strings.Contains(err.Error(), "leno-clash") || !strings.Contains(err.Error(), "vni 1 on port 8472") {
			t.Errorf("error %v", err)
		}
	})
	h.apply(two, backend.State{})
	if r := h.apply(one, s1); r.Writes != 0 {
		t.Errorf("the second network's end disturbs the first: %+v", r)
	}
}

func TestDirectRoutingOverTheTunnelWhereAGatewayIs(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ns.Sh("ip route add 198.51.100.0/24 via 192.0.2.254")
	s := h.state("eth0", "192.0.2.1")
	far := s.Peers[0]
	far.Node, far.Subnets = "far", []netip.Prefix{netip.MustParsePrefix("10.5.3.0/24")}
	far.PublicIPs = []netip.Addr{netip.MustParseAddr("198.51.100.3")}
	far.Attributes = json.RawMessage(`{"vni":1,"port":8472,"vtep_mac":"0a:58:00:00:00:03"}`)
	s.Peers = append(s.Peers, far)
	h.apply(h.open("test", "leno-test", `{"direct_routing":true}`), s)
	got := h.ns.Sh("ip route show proto 108")
	for _, want := range []string{"10.5.2.0/24 via 192.0.2.2 dev eth0", "10.5.3.0/24 via 10.5.3.0 dev leno-test onlink"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestAdvertiseRefusesANarrowUnderlay(t *testing.T) {
	b, err := Type().New(backend.Config{Network: "test", Pools: pools})
	if err != nil {
		t.Fatal(err)
	}
	u := backend.Underlay{Interface: "ppp0", MTU: 1320, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	if _, err := b.Advertise(u); err == nil || err.Error() != "underlay ppp0 has an MTU of 1320, which leaves 1270: pool fd00:5::/48 needs at least 1280" {
		t.Errorf("error %v", err)
	}
	u.MTU = 1330
	adv, err := b.Advertise(u)
	if err != nil || adv.MTU != 1280 {
		t.Errorf("%+v, %v", adv, err)
	}
	if want := fmt.Sprintf(`{"vni":1,"port":8472,"vtep_mac":%q}`, vtepMAC("", "test")); string(adv.Attributes) != want {
		t.Errorf("attributes %s, want %s", adv.Attributes, want)
	}
}

// TestVRF checks that a device whose socket is in another VRF than the underlay is replaced. The
// kernel of the test may lack VRFs, so the state names one that does not exist.
func TestVRF(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	b := h.open("test", "leno-test", `{}`)
	s := h.state("eth0", "192.0.2.1")
	h.apply(b, s)
	before := h.ns.Index("leno-test")
	step := func(what string, b *vxlan, vrf int, replaced bool) {
		t.Helper()
		s.Underlay.VRF = vrf
		r := h.apply(b, s)
		now := h.ns.Index("leno-test")
		if replaced != (now != before) || replaced != (r.Writes > 0) || r.Peers != 1 {
			t.Errorf("%s: the device with index %d is now %d; report %+v", what, before, now, r)
		}
		before = now
		if r := h.apply(b, s); r.Writes != 0 {
			t.Errorf("%s: second apply: %+v", what, r)
		}
	}
	step("the underlay moves into a VRF", b, 77, true)
	step("and into another", b, 78, true)
	// Its socket is in none: the VRF of the state does not exist.
	step("another process finds the socket where it is to be", h.open("test", "leno-test", `{}`), 0, false)
	step("another process finds the socket elsewhere", h.open("test", "leno-test", `{}`), 77, true)
}
