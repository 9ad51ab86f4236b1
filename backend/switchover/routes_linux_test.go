package switchover

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestRoutesOver: of all routes into a device, those that leno made are found, of both families.
func TestRoutesOver(t *testing.T) {
	ns := nstest.New(t)
	ns.Sh(`ip link add one type veth peer name other
		ip link set one up
		ip link set other up
		ip route add 10.5.1.0/24 dev one proto 108
		ip -6 route add fd00:5:0:1::/64 dev one proto 108
		ip route add 10.5.2.0/24 dev other proto 108
		ip route add 10.5.3.0/24 dev one`)
	want := map[netip.Prefix]bool{netip.MustParsePrefix("10.5.1.0/24"): true, netip.MustParsePrefix("fd00:5:0:1::/64"): true}
	ns.Do(func() {
		if got := routesOver(t.Context(), "one"); !maps.Equal(got, want) {
			t.Errorf("routes %v", got)
		}
		if got := routesOver(t.Context(), "none"); got != nil {
			t.Errorf("over a device that does not exist: %v", got)
		}
	})
}
