package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/registry"
)

// examined returns what Judge finds on a host with the kernel of a namespace, such as "warning overlap: words".
func examined(t *testing.T, ns *nstest.NS) (n Network, found []string) {
	t.Helper()
	f := healthyHost()
	plan, err := registry.Plan{{Prefix: netip.MustParsePrefix("10.5.0.0/16")}}.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	ns.Do(func() { f.Networks[0].AddKernelFacts(true, false, plan) })
	for _, x := range Judge(f) {
		if x.Status != api.FindingOK {
			found = append(found, fmt.Sprintf("%s %s: %s", x.Status, x.Check, x.Saw))
		}
	}
	return f.Networks[0], found
}

// TestFlannelsRoutes: on a host with devices and routes of flannel, the finding names their device and is a warning. Another
// route in the pool is a fault.
func TestFlannelsRoutes(t *testing.T) {
	ns := nstest.New(t)
	ns.Sh(`ip link add eth0 type bridge; ip addr add 192.0.2.11/24 dev eth0; ip link set eth0 up
ip link add leno-n address 0a:00:00:00:00:01 mtu 1450 type vxlan id 2 local 192.0.2.11 dev eth0 dstport 8473; ip link set leno-n up
ip link add flannel.1 type vxlan id 1 local 192.0.2.11 dev eth0 dstport 8472 nolearning; ip addr add 10.5.1.0/32 dev flannel.1; ip link set flannel.1 up
ip route add 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink
ip link add cni0 type bridge; ip addr add 10.5.1.1/24 dev cni0; ip link set cni0 up
ip route add 10.5.3.0/24 dev leno-n proto 108`)
	n, found := examined(t, ns)
	want := []Route{
		{Dst: netip.MustParsePrefix("10.5.1.0/24"), Link: "cni0", Connected: true, Serves: true},
		{Dst: netip.MustParsePrefix("10.5.2.0/24"), Link: "flannel.1", Gateway: netip.MustParseAddr("10.5.2.0"), Flannel: true},
	}
	slices.SortFunc(n.Routes, func(a, b Route) int { return a.Dst.Addr().Compare(b.Dst.Addr()) })
	if diff := cmp.Diff(want, n.Routes, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); n.RoutesErr != nil || diff != "" {
		t.Errorf("%v, routes (-want +got):\n%s", n.RoutesErr, diff)
	}
	if len(found) != 1 || !strings.HasPrefix(found[0], "warning overlap: routes in the pool lead over flannel.1 as those of flannel do") {
		t.Errorf("found %q", found)
	}
	ns.Sh("ip route add 10.5.2.128/25 dev eth0")
	if _, found = examined(t, ns); len(found) != 2 || !strings.HasPrefix(found[0], "fault overlap: the route to 10.5.2.128/25 over eth0") {
		t.Errorf("with a route of the host: found %q", found)
	}
}

// TestRoutesThatRefuse: a route of another program that refuses packets to a peer is a fault.
func TestRoutesThatRefuse(t *testing.T) {
	ns := nstest.New(t)
	ns.Sh(`ip link add eth0 type bridge; ip addr add 192.0.2.11/24 dev eth0; ip link set eth0 up
ip link add leno-n address 0a:00:00:00:00:01 mtu 1450 type vxlan id 1 local 192.0.2.11 dev eth0 dstport 8472; ip link set leno-n up
ip route add 10.5.2.0/24 via 10.5.2.0 dev leno-n onlink proto 108`)
	for _, kind := range []string{"blackhole", "unreachable", "prohibit"} {
		ns.Sh("ip route add " + kind + " 10.5.2.0/25")
		_, found := examined(t, ns)
		if want := "fault overlap: the route " + kind + " 10.5.2.0/25, which refuses packets, lies in the pool"; len(found) != 1 || !strings.HasPrefix(found[0], want) {
			t.Errorf("found %q, want %q", found, want)
		}
		ns.Sh("ip route del " + kind + " 10.5.2.0/25")
	}
}

// TestMACOfTheDevice: the MAC address of a VXLAN device is compared with the one in this host's record.
func TestMACOfTheDevice(t *testing.T) {
	ns := nstest.New(t)
	ns.Sh(`ip link add eth0 type bridge; ip addr add 192.0.2.11/24 dev eth0; ip link set eth0 up
ip link add leno-n address 0a:00:00:00:00:01 mtu 1450 type vxlan id 1 local 192.0.2.11 dev eth0 dstport 8472; ip link set leno-n up`)
	if n, found := examined(t, ns); len(found) != 0 || n.Device.MAC != "0a:00:00:00:00:01" {
		t.Errorf("found %q, the device is %+v", found, n.Device)
	}
	ns.Sh("ip link set leno-n address 0a:00:00:00:00:02")
	_, found := examined(t, ns)
	const want = "fault record: address of leno-n (VTEP MAC): the record says 0a:00:00:00:00:01, here it is 0a:00:00:00:00:02"
	if len(found) != 1 || found[0] != want {
		t.Errorf("found %q", found)
	}
}
