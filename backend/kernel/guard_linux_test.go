package kernel_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/reconcile"
)

// TestGuard: a guard refuses packets to pools when the routes of the network are gone, and neither the network nor the
// guard of another one touches it.
func TestGuard(t *testing.T) {
	t.Parallel()
	ns, h := host(t)
	ns.Sh("ip route add default via 192.0.2.2; ip -6 route add default via 2001:db8::2")
	pools, others := []netip.Prefix{prefix("10.5.0.0/16"), prefix("fd00:5::/48")}, []netip.Prefix{prefix("10.6.0.0/16")}
	guard := func(pools []netip.Prefix, wanted bool) {
		t.Helper()
		ns.Do(func() {
			for range 2 {
				if err := kernel.Guard(t.Context(), pools, wanted); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	refused := func(want bool) {
		t.Helper()
		for _, to := range []string{"10.5.9.9", "fd00:5:0:9::9"} {
			out := ns.Sh("ip route get " + to + " 2>&1 || true")
			if got := strings.Contains(out, "No route to host"); got != want {
				t.Errorf("%s: refused %t, want %t: %s", to, got, want, out)
			}
		}
	}
	refused(false)
	guard(pools, true)
	guard(others, true)
	refused(true)

	// The routes of the network come and go.
	table := h.Routes(kernel.Owner{Links: []int{ns.Index("leno-t")}, Pools: pools})
	settle(t, table, kernel.CompareRoutes, kernel.Unreachable(pools))
	settle(t, table, kernel.CompareRoutes, nil)
	refused(true)
	guard(others, false)
	refused(true)
	if got, err := h.Routes(kernel.Owner{Pools: []netip.Prefix{prefix("0.0.0.0/0"), prefix("::/0")}, Guards: true}).List(t.Context()); err != nil || len(got) != len(pools) {
		t.Errorf("guards\n%s%v", reconcile.Dump(got, kernel.CompareRoutes), err)
	}
	guard(pools, false)
	refused(false)
}
