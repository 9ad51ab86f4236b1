package kernel_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/backend/kernel"
)

// TestPreferMain: the rules for pools are made, put back, moved to another priority and removed, and those of other
// programs and of other networks stay.
func TestPreferMain(t *testing.T) {
	t.Parallel()
	ns, _ := host(t)
	ns.Sh("ip route add 10.5.9.0/24 via 192.0.2.2; ip rule add pref 5270 lookup 52; ip route add 10.5.0.0/16 dev eth0 table 52; ip rule add pref 5000 to 10.5.0.0/16 lookup 77")
	pools, others := []netip.Prefix{prefix("10.5.0.0/16"), prefix("fd00:5::/48")}, []netip.Prefix{prefix("10.6.0.0/16")}
	prefer := func(pools []netip.Prefix, priority int) {
		t.Helper()
		ns.Do(func() {
			for _, stood := range []bool{false, true} {
				if repaired, err := kernel.PreferMain(t.Context(), kernel.Owner{Pools: pools}, priority, stood); err != nil || len(repaired) > 0 {
					t.Fatal(repaired, err)
				}
			}
		})
	}
	ruled := func(want ...string) {
		t.Helper()
		var got []string
		for line := range strings.Lines(ns.Sh("ip rule; ip -6 rule")) {
			if !strings.Contains(line, "lookup local") && !strings.Contains(line, "from all lookup") {
				got = append(got, strings.Join(strings.Fields(line), " "))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("rules (-want +got):\n%s", diff)
		}
	}
	const foreign, other = "5000: from all to 10.5.0.0/16 lookup 77", "5100: from all to 10.6.0.0/16 lookup main proto 108"
	prefer(others, 5100)
	prefer(pools, 5200)
	ruled(foreign, other, "5200: from all to 10.5.0.0/16 lookup main proto 108", "5200: from all to fd00:5::/48 lookup main proto 108")
	if out := ns.Sh("ip route get 10.5.9.9 2>&1 || true"); strings.Contains(out, "table 52") {
		t.Errorf("the other table is used: %s", out)
	}

	// One is removed, and one replaced.
	ns.Sh("ip rule del pref 5200; ip -6 rule del pref 5200; ip -6 rule add to fd00:5::/48 pref 5200 lookup 77 protocol 108")
	ns.Do(func() {
		repaired, err := kernel.PreferMain(t.Context(), kernel.Owner{Pools: pools}, 5200, true)
		if err != nil || len(repaired) != 2 || repaired[0].Fault != "rules were missing" || repaired[1].Fault != "foreign rules were there" {
			t.Errorf("repaired %+v, %v", repaired, err)
		}
	})
	ruled(foreign, other, "5200: from all to 10.5.0.0/16 lookup main proto 108", "5200: from all to fd00:5::/48 lookup main proto 108")

	prefer(pools, 5150)
	ruled(foreign, other, "5150: from all to 10.5.0.0/16 lookup main proto 108", "5150: from all to fd00:5::/48 lookup main proto 108")
	prefer(pools, 0)
	ruled(foreign, other)

	// The same rule of another program is enough, and stays.
	ns.Sh("ip rule add to 10.5.0.0/16 lookup main priority 5200")
	prefer(pools, 5200)
	prefer(pools, 0)
	ruled(foreign, other, "5200: from all to 10.5.0.0/16 lookup main")
}
