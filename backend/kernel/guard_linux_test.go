package kernel_test

import (
	"maps"
	"net/netip"
	"slices"
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
				if err := kernel.Guard(t.Context(), kernel.Owner{Pools: pools}, wanted); err != nil {
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

	// Another network gets a part of the pool.
	wide := kernel.Owner{Pools: []netip.Prefix{prefix("10.4.0.0/14")}}
	part := kernel.Owner{Pools: []netip.Prefix{prefix("10.5.0.0/16")}}
	ns.Do(func() {
		for _, step := range []struct {
			owner  kernel.Owner
			wanted bool
			want   string
		}{
			{wide, true, "10.4.0.0/14"},
			{part, true, "10.4.0.0/14 10.5.0.0/16"},
			{kernel.Owner{Pools: wide.Pools, Except: part.Pools}, true, "10.4.0.0/16 10.5.0.0/16 10.6.0.0/15"},
			{kernel.Owner{Pools: wide.Pools, Except: part.Pools}, false, "10.5.0.0/16"},
		} {
			if err := kernel.Guard(t.Context(), step.owner, step.wanted); err != nil {
				t.Fatal(err)
			}
			var got []string
			for line := range strings.Lines(ns.Sh("ip route show type unreachable")) {
				got = append(got, strings.Fields(line)[1])
			}
			if text := strings.Join(got, " "); text != step.want {
				t.Errorf("%+v %t: %s, want %s", step.owner, step.wanted, text, step.want)
			}
		}
	})
}

// TestReplacePools: of the routes and rules for earlier pools, those for the present ones stay, and so does a guard
// unless it is to end. Packets to the present pools are refused where no host has a subnet.
func TestReplacePools(t *testing.T) {
	t.Parallel()
	for _, guards := range []bool{false, true} {
		ns, h := host(t)
		ns.Sh(`ip route add default via 192.0.2.2
ip route add 10.5.2.0/24 dev leno-t proto 108; ip route add 10.4.2.0/24 via 192.0.2.2 proto 108
ip route add unreachable 10.4.0.0/15 metric 16777216 proto 108; ip -6 route add unreachable fd00:5::/48 metric 16777216 proto 108
ip route add unreachable 10.4.0.0/15 metric 16777217 proto 108; ip route add unreachable 10.5.0.0/16 metric 16777217 proto 108
ip route add 10.4.9.0/24 via 192.0.2.2; ip route add unreachable 10.6.0.0/16 metric 16777216 proto 108
ip rule add pref 99 to 10.4.0.0/15 lookup main proto 108; ip rule add pref 99 to 10.5.0.0/16 lookup main proto 108`)
		before, present := []netip.Prefix{prefix("10.4.0.0/15"), prefix("fd00:5::/48")}, []netip.Prefix{prefix("10.5.0.0/16")}
		ns.Do(func() {
			for range 2 {
				if err := kernel.ReplacePools(t.Context(), kernel.Owner{Pools: before}, present, guards); err != nil {
					t.Fatal(err)
				}
			}
		})
		want := kernel.Unreachable([]netip.Prefix{prefix("10.5.0.0/16"), prefix("10.6.0.0/16")})
		want[kernel.RouteKey{Dst: prefix("10.5.2.0/24")}] = kernel.Route{Link: ns.Index("leno-t")}
		wantGuards := map[kernel.RouteKey]kernel.Route{
			{Dst: prefix("10.5.0.0/16"), Metric: kernel.GuardMetric}: {Unreachable: true},
		}
		if !guards {
			wantGuards[kernel.RouteKey{Dst: prefix("10.4.0.0/15"), Metric: kernel.GuardMetric}] = kernel.Route{Unreachable: true}
		}
		for guard, want := range map[bool]map[kernel.RouteKey]kernel.Route{false: want, true: wantGuards} {
			everywhere := kernel.Owner{Pools: []netip.Prefix{prefix("0.0.0.0/0"), prefix("fd00:5::/48")}, Guards: guard}
			got, err := h.Routes(everywhere).List(t.Context())
			if err != nil || !maps.Equal(got, want) {
				t.Errorf("guards to end %t: guards %t\n%swant\n%s%v", guards, guard, reconcile.Dump(got, kernel.CompareRoutes),
					reconcile.Dump(want, kernel.CompareRoutes), err)
			}
		}
		if rules := strings.Fields(ns.Sh("ip rule show pref 99")); !slices.Contains(rules, "10.5.0.0/16") || slices.Contains(rules, "10.4.0.0/15") {
			t.Errorf("rules %q", rules)
		}
		ns.Sh("ip route show 10.4.9.0/24 | grep -q 192.0.2.2")
	}
}
