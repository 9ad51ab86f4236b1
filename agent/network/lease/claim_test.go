package lease

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func TestClaimTellsWhatWasHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		k, n := a.keeper, registry.Network{Name: "n", CreateIndex: 7}
		subnet, inFile := netip.MustParsePrefix("10.5.2.0/24"), netip.MustParsePrefix("10.5.3.0/24")
		former := netip.MustParsePrefix("10.5.1.0/24")
		saved := func(s state.Network) {
			s.Network, s.Session, s.Subnets, s.Lease = "n", "s", []netip.Prefix{subnet}, 5
			must(t, state.Save(a.dir, s))
		}
		for _, tt := range []struct {
			name     string
			prepare  func()
			session  string
			prefer   netip.Prefix
			since    uint64
			recently bool // or running
			revoked  netip.Prefix
		}{
			{"nothing", func() {}, "", netip.Prefix{}, 0, false, netip.Prefix{}},
			{"left before", func() { must(t, a.options.Former.Put("n", former)) }, "", former, 0, false, netip.Prefix{}},
			{"subnet file", func() {
				must(t, os.WriteFile(a.options.SubnetFile, []byte("LENO_SUBNET=10.5.3.1/24\n"), 0o644))
			}, "", inFile, 0, false, netip.Prefix{}},
			{"broken state file", func() { must(t, os.WriteFile(state.Path(a.dir, "n"), []byte("{"), 0o600)) },
				"", inFile, 0, false, netip.Prefix{}},
			{"state file of another store", func() { saved(state.Network{Definition: 6, Renewed: time.Now()}) },
				"s", subnet, 0, true, netip.Prefix{}},
			{"state file", func() {
				saved(state.Network{Definition: 7, Renewed: time.Now().Add(-a.options.Settings.Hold)})
			}, "s", subnet, 5, false, netip.Prefix{}},
			{"state file from before the clock was set back", func() {
				saved(state.Network{Definition: 7, Renewed: time.Now().Add(10 * time.Minute)})
			}, "s", subnet, 5, false, netip.Prefix{}},
			{"state file with a revocation", func() {
				saved(state.Network{Definition: 7, Renewed: time.Now(), Revoked: subnet})
			}, "s", subnet, 5, true, subnet},
			{"lease", func() {
				k.condition.setRenewed(time.Now(), nil)
				k.lease.Set(registry.Lease{Subnets: []netip.Prefix{former}, Session: "now", ModifyIndex: 9})
			}, "now", former, 9, true, subnet},
			{"lease that was not renewed", func() { time.Sleep(a.options.Settings.Hold) }, "now", former, 9, true, subnet},
		} {
			tt.prepare()
			c := k.Claim(n, a.attributes())
			if c.Session != tt.session || c.Prefer != tt.prefer || c.Since != tt.since ||
				(c.RecentUse || c.Running) != tt.recently || c.Running != (c.Session == "now") {
				t.Errorf("%s: session %q, prefers %s since %d, held recently %t, running %t",
					tt.name, c.Session, c.Prefer, c.Since, c.RecentUse, c.Running)
			}
			if c.Node != "a" || c.NodeID != "id-a" || c.MTU != 1450 || c.TTL != a.options.Settings.TTL ||
				c.Hold != a.options.Settings.Hold || !c.Backend.Equal(vxlan()) ||
				!slices.Equal(c.PublicIPs, []netip.Addr{a.address}) {
				t.Errorf("%s: %+v", tt.name, c)
			}
			if got := k.Status().Revoked; got != tt.revoked {
				t.Errorf("%s: revoked %s", tt.name, got)
			}
		}
		if _, err := os.Stat(state.Path(a.dir, "n") + state.BadSuffix); err != nil {
			t.Errorf("the broken file is not kept: %v", err)
		}
		if !strings.Contains(a.log.String(), "starting without the state file, moved to .bad") {
			t.Errorf("log:\n%s", a.log)
		}
	})
}

// TestUnreadableStateFile: a file that cannot be read is not moved away.
func TestUnreadableStateFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		must(t, os.Mkdir(state.Path(a.dir, "n"), 0o700)) // reading a directory fails, for root too
		if c := a.own(); c.Session != "" || c.Prefer.IsValid() {
			t.Errorf("%+v", c)
		}
		if !strings.Contains(a.log.String(), "starting without the state file, it cannot be read") {
			t.Errorf("log:\n%s", a.log)
		}
		if _, err := os.Stat(state.Path(a.dir, "n")); err != nil {
			t.Error(err)
		}
	})
}

func TestIsSlotOf(t *testing.T) {
	v4, v6 := agenttest.Plan(t, "10.5.0.0/16"), agenttest.Plan(t, "10.5.0.0/16", "fd00:5::/48")
	lease := func(subnets ...string) (l registry.Lease) {
		for _, s := range subnets {
			l.Subnets = append(l.Subnets, netip.MustParsePrefix(s))
		}
		return l
	}
	second := v6.Subnets(2)
	for _, tt := range []struct {
		name  string
		plan  registry.Plan
		lease registry.Lease
		want  bool
	}{
		{"a slot", v4, lease(v4.Subnets(2)[0].String()), true},
		{"both families", v6, lease(second[0].String(), second[1].String()), true},
		{"IPv6 is new", v6, lease(second[0].String()), true},
		{"IPv6 is gone", v4, lease(second[0].String(), second[1].String()), true},
		{"another slot's IPv6", v6, lease(second[0].String(), v6.Subnets(3)[1].String()), false},
		{"another length", v4, lease("10.5.2.0/25"), false},
		{"another pool", v4, lease("10.6.2.0/24"), false},
		{"none", v4, lease(), false},
	} {
		if got := isSlotOf(tt.plan, tt.lease); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
