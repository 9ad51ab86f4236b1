package hostgw

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/internal/testkit/waiting"
)

// TestMACAnnounced checks that the other hosts on the link learn the MAC address of this host's IPv6 address when it
// starts, when its interface is created again and when only the MAC address changes, and that nothing is announced
// without a change. Packets of containers would teach them nothing: the host asks for its neighbours from its
// link-local address then.
func TestMACAnnounced(t *testing.T) {
	t.Parallel()
	ns, other := nstest.New(t), nstest.New(t)
	b, err := Type().New(backend.Config{Pools: []netip.Prefix{netip.MustParsePrefix("fd00:5::/48")}, Options: json.RawMessage(`{"mtu":0}`)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	other.Sh("ip link add br0 type bridge mcast_snooping 0; ip link set br0 up; ip addr add 2001:db8::2/64 dev br0 nodad")
	plug := func() {
		nstest.Join(nstest.Joint{NS: ns, Link: "eth0", Addrs: []string{"2001:db8::1/64"}}, nstest.Joint{NS: other, Link: "port"})
		other.Sh("ip link set port master br0")
	}
	plug()
	for _, step := range []struct {
		what      string
		change    func()
		announced bool
	}{
		{"start", func() {}, true},
		{"no change", func() {}, false},
		{"new interface", func() { ns.Sh("ip link del eth0"); plug() }, true},
		{"new MAC address", func() { ns.Sh("ip link set eth0 address 02:00:00:00:00:07") }, true},
		{"no change since", func() {}, false},
	} {
		step.change()
		const old = "02:00:00:00:00:99"
		other.Sh("ip -6 neigh replace 2001:db8::1 lladdr " + old + " nud stale dev br0")
		ns.Do(func() {
			_, err = b.Apply(t.Context(), backend.State{
				Subnets: []netip.Prefix{netip.MustParsePrefix("fd00:5:0:1::/64")}, MTU: 1500,
				Underlay: backend.Underlay{Interface: "eth0", Index: ns.Index("eth0"), MTU: 1500, Addrs: []netip.Addr{netip.MustParseAddr("2001:db8::1")}},
			})
		})
		if err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		want := old
		if step.announced {
			want = strings.TrimSpace(ns.Sh("ip -br link show eth0 | awk '{print $3}'"))
		}
		waiting.Until(t, step.what+": neighbour "+want, func() bool {
			return strings.Contains(other.Sh("ip -6 neigh show 2001:db8::1 dev br0"), want)
		})
	}
}
