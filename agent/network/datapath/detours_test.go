package datapath

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// tailscale is what a rule before main does to packets for a peer.
func tailscale(node string, slot int) kernel.Detour {
	return kernel.Detour{Node: node, Dst: netip.AddrFrom4([4]byte{10, 5, byte(slot), 0}), Link: "ts0", Table: 52,
		Rule: &kernel.Rule{Priority: 5270, Text: "from all lookup 52"}}
}

// TestDetours: the check of the routes is critical if packets to all peers take another route, a warning if some do, and
// passes again when none does. It names the peer, the device, the table, the rule and a command. It is no drift.
func TestDetours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t).built()
		stop := l.run()
		defer stop()
		l.detours = map[string]kernel.Detour{"b": tailscale("b", 2), "c": tailscale("c", 3)}
		l.views.Set(l.view("b", "c"))
		l.applied()
		words := []string{"2 peers in place", "10.5.2.0 of b leave by ts0", "5270: from all lookup 52",
			"`ip rule add to 10.5.0.0/16 lookup main priority 5269`"}
		l.check(health.Routes, api.Critical, append(words, "2 of 2 peers")...)
		if s := l.r.Status(); len(s.Report.Repaired) > 0 || s.Flapping > 0 {
			t.Errorf("repaired %v, flapping %d", s.Report.Repaired, s.Flapping)
		}

		l.edit(func() { delete(l.detours, "c") })
		l.kick()
		time.Sleep(time.Second)
		l.applied()
		l.check(health.Routes, api.Warning, append(words, "1 of 2 peers")...)
		l.edit(func() { delete(l.detours, "b") })
		l.kick()
		time.Sleep(time.Second)
		l.applied()
		l.check(health.Routes, api.Passing, "2 peers in place")
		if n := l.logged("packets to peers take another route than leno's"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}

// TestDetoursAreAskedInTurn: each look asks about a few peers, all have their turn, and those with a detour are asked
// about at each look.
func TestDetoursAreAskedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t).built()
		l.result.Skipped = []backend.Skip{{Node: "p03", Reason: "no key"}}
		l.detours = map[string]kernel.Detour{"p01": tailscale("p01", 3)}
		stop := l.run()
		defer stop()
		var names []string
		for i := range 13 {
			names = append(names, fmt.Sprintf("p%02d", i))
		}
		l.views.Set(l.view(names...))
		time.Sleep(3*slowTick + time.Second)
		l.applied()
		l.mu.Lock()
		defer l.mu.Unlock()
		want := []string{"p00 p01 p02 p04 p05", "p01 p06 p07 p08 p09 p10", "p01 p11 p12 p00 p02", "p01 p04 p05 p06 p07 p08"}
		if !slices.Equal(l.asked, want) {
			t.Errorf("asked about %q, want %q", l.asked, want)
		}
	})
}

// TestNoDetours: routes that are not expected to be there are not asked about.
func TestNoDetours(t *testing.T) {
	for name, change := range map[string]func(l *lab){
		"a pass that failed":   func(l *lab) { l.fail = fmt.Errorf("failed") },
		"a switch has started": func(l *lab) { l.result.Switch = &backend.Switch{Unassigned: 1} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t).built()
				change(l)
				stop := l.run()
				defer stop()
				l.views.Set(l.view("b"))
				if n, _ := l.applied(); n == 0 || len(l.asked) > 0 {
					t.Errorf("%d passes, asked about %q", n, l.asked)
				}
			})
		})
	}
}

// TestDetoursInWords shows an error for each kind of detour.
func TestDetoursInWords(t *testing.T) {
	pools := []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00:5::/48")}
	rule := &kernel.Rule{Priority: 100, Text: "from all lookup 7"}
	for _, tt := range []struct {
		d    kernel.Detour
		want string
	}{
		{kernel.Detour{Node: "b", Dst: netip.MustParseAddr("fd00:5:0:2::"), Link: "ts0", Table: 7, Rule: rule},
			"packets to fd00:5:0:2:: of b leave by ts0: a routing rule that is not leno's takes precedence, 100: from all lookup 7; " +
				"`ip -6 rule add to fd00:5::/48 lookup main priority 99` or routing_rule_priority = 99 in the network's block prevents that"},
		{kernel.Detour{Node: "b", Dst: netip.MustParseAddr("198.51.100.2"), Outer: true, Table: 7, Rule: rule},
			"packets to 198.51.100.2 of b are refused: a routing rule that is not leno's takes precedence, 100: from all lookup 7; " +
				"`ip rule add to 198.51.100.2 lookup main priority 99` prevents that"},
		{kernel.Detour{Node: "b", Dst: netip.MustParseAddr("10.5.2.0"), Link: "docker0", Table: 254},
			"packets to 10.5.2.0 of b leave by docker0: a route to it that is not leno's is there, in table 254"},
	} {
		if got := fmt.Sprint(errDetours([]kernel.Detour{tt.d}, 1, pools)); got != tt.want {
			t.Errorf("%s\nwant %s", got, tt.want)
		}
	}
}

// TestRoutingRules: each pass makes the routing rules that this host is configured to have. They are removed with the
// network, with pools that it has no more, and with the setting.
func TestRoutingRules(t *testing.T) {
	d, c := carriage.Of(newLab(t).network().Carriage()), backend.Config{Pools: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}}
	other := state.Network{Pools: []netip.Prefix{netip.MustParsePrefix("10.6.0.0/16")}}
	for _, tt := range []struct {
		name     string
		priority int
		do       func(l *lab) error
		want     []string
	}{
		{"a pass", 99, func(l *lab) error {
			_, err := l.built().r.keepRules(t.Context(), l.network())
			return err
		}, []string{"[10.5.0.0/16] 99"}},
		{"a pass without the setting", 0, func(l *lab) error {
			_, err := l.built().r.keepRules(t.Context(), l.network())
			return err
		}, nil},
		{"the same pools", 99, func(l *lab) error {
			return l.r.Retire(t.Context(), d, c, state.Network{Pools: c.Pools})
		}, nil},
		{"other pools", 99, func(l *lab) error { return l.r.Retire(t.Context(), d, c, other) }, []string{"[10.6.0.0/16] 0"}},
		{"no setting any more", 0, func(l *lab) error { return l.r.Retire(t.Context(), d, c, other) },
			[]string{"[10.6.0.0/16 10.5.0.0/16] 0"}},
		{"removed", 99, func(l *lab) error { return l.r.Remove(t.Context(), other, nil) }, []string{"[10.6.0.0/16] 0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			l.r.o.RulePriority = tt.priority
			if err := tt.do(l); err != nil || !slices.Equal(l.rules, tt.want) {
				t.Errorf("rules %q, want %q, %v", l.rules, tt.want, err)
			}
		})
	}
}

// TestDetourInKernel: a rule like Tailscale's makes the check critical, and the command that the check names makes it
// pass.
func TestDetourInKernel(t *testing.T) {
	ns := nstest.New(t)
	ns.Sh(`ip link add leno-n type veth peer name p1; ip link set p1 up; ip link set leno-n up; ip addr add 10.5.1.0/32 dev leno-n
ip link add eth0 type veth peer name p2; ip link set p2 up; ip link set eth0 up; ip addr add 192.0.2.1/24 dev eth0
ip link add ts0 type veth peer name p3; ip link set p3 up; ip link set ts0 up
ip route add 10.5.2.0/24 dev leno-n proto 108
ip rule add pref 5270 lookup 52; ip route add 10.5.0.0/16 dev ts0 table 52`)
	l := newLab(t)
	l.options.Host.FindDetours = kernel.FindDetours
	l.built()
	v := l.view("b")
	pass := func() {
		t.Helper()
		ns.Do(func() {
			l.choice.Index = ns.Index("eth0")
			u, err := l.r.SelectUnderlay(v.Network)
			if err != nil {
				t.Fatal(err)
			}
			target := &target{network: v.Network, underlay: &u, confirmed: true}
			if err := l.r.setView(context.Background(), target, v); err != nil {
				t.Fatal(err)
			}
			if _, err := l.r.pass(context.Background(), target); err != nil {
				t.Fatal(err)
			}
		})
	}
	pass()
	l.check(health.Routes, api.Critical, "leave by ts0", "5270: from all lookup 52")
	all, _ := l.board.Report()
	reason, err := json.Marshal(all.Networks[0].Checks)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(reason), "; `")
	command, _, _ := strings.Cut(rest, "`")
	ns.Sh(command)
	pass()
	l.check(health.Routes, api.Passing, "1 peers in place")

	// The option has the same effect.
	ns.Sh(strings.Replace(command, " add ", " del ", 1))
	l.options.Host.PreferMain, l.r.o.RulePriority = kernel.PreferMain, 5269
	repaired := func() (faults []string) {
		for _, repair := range l.r.Status().Report.Repaired {
			faults = append(faults, repair.Fault+": "+repair.Detail)
		}
		return faults
	}
	for range 2 {
		pass()
		l.check(health.Routes, api.Passing, "1 peers in place")
		if got := repaired(); len(got) > 0 {
			t.Errorf("repaired %q", got)
		}
	}
	ns.Sh("ip rule del pref 5269")
	pass()
	if got := repaired(); len(got) != 1 || !strings.HasPrefix(got[0], "rules were missing: ") {
		t.Errorf("repaired %q after another program removed the rule", got)
	}
	ns.Sh("ip rule show pref 5269 | grep -q 10.5.0.0/16")
}
