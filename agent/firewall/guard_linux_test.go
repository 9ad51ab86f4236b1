package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/internal/testkit/firewalltest"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// guarded returns a sealed network and one with direct routes.
func guarded() []Network {
	all := two()
	for i := range all {
		all[i].IPMasq, all[i].Forward = false, false
	}
	all[0].Ports, all[0].Underlay, all[0].Sealed = []uint16{8472, 51820}, []string{"eth0", "br0"}, true
	all[0].Peers = []netip.AddrPort{netip.MustParseAddrPort("203.0.113.7:53"), netip.MustParseAddrPort("[2001:db8::7]:443")}
	all[1].Tunnels, all[1].Ports, all[1].Underlay = []string{"leno-b-2.x"}, []uint16{8472}, []string{"eth0"}
	return all
}

const guardTable = `table inet leno {
	chain tunnels {
		type filter hook forward priority mangle; policy accept;
		ip daddr 10.5.0.0/16 return comment "leno default"
		ip6 daddr fd00:5::/48 return comment "leno default"
		ip daddr 10.6.0.0/16 return comment "leno b-2.x"
		ip daddr 203.0.113.7 udp dport 53 drop comment "leno default"
		ip6 daddr 2001:db8::7 udp dport 443 drop comment "leno default"
		udp dport 8472 oifname "eth0" drop comment "leno default"
		udp dport 8472 oifname "br0" drop comment "leno default"
		udp dport 51820 oifname "eth0" drop comment "leno default"
		udp dport 51820 oifname "br0" drop comment "leno default"
		meta oifkind "bridge" return comment "leno default"
		udp dport 8472 drop comment "leno default"
		udp dport 51820 drop comment "leno default"
	}

	chain inputs {
		type filter hook input priority mangle; policy accept;
		udp dport 8472 ip daddr 10.5.0.0/16 drop comment "leno default"
		udp dport 51820 ip daddr 10.5.0.0/16 drop comment "leno default"
		udp dport 8472 ip6 daddr fd00:5::/48 drop comment "leno default"
		udp dport 51820 ip6 daddr fd00:5::/48 drop comment "leno default"
		udp dport 8472 ip daddr 10.6.0.0/16 drop comment "leno b-2.x"
		udp dport 51820 ip daddr 10.6.0.0/16 drop comment "leno b-2.x"
		iifname "eth0" return comment "leno default"
		iifname "br0" return comment "leno default"
		udp dport 8472 ip saddr 10.5.0.0/16 drop comment "leno default"
		udp dport 51820 ip saddr 10.5.0.0/16 drop comment "leno default"
		udp dport 8472 ip6 saddr fd00:5::/48 drop comment "leno default"
		udp dport 51820 ip6 saddr fd00:5::/48 drop comment "leno default"
		udp dport 8472 ip saddr 10.6.0.0/16 drop comment "leno b-2.x"
		udp dport 51820 ip saddr 10.6.0.0/16 drop comment "leno b-2.x"
		udp dport 8472 meta iifkind "bridge" drop comment "leno default"
		udp dport 51820 meta iifkind "bridge" drop comment "leno default"
	}

	chain sources {
		type filter hook prerouting priority mangle; policy accept;
		iifname "leno-default" return comment "leno default"
		iifname "leno-default~b" return comment "leno default"
		iifname "leno-b-2.x" return comment "leno b-2.x"
		iifname "flannel*" return comment "leno default"
		meta l4proto icmp fib daddr type local return comment "leno default"
		meta l4proto ipv6-icmp fib daddr type local return comment "leno default"
		ip saddr 10.5.0.0/16 fib saddr . iif oif missing drop comment "leno default"
		ip6 saddr fd00:5::/48 fib saddr . iif oif missing drop comment "leno default"
	}
}
`

// TestGuard checks the rules as the program nft shows them, and that they are right after nft has saved and loaded
// them.
func TestGuard(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	want := desiredRules(State{Networks: guarded()})
	if got := nftApply(t, ns, want); got != 1 {
		t.Errorf("%d transactions", got)
	}
	list := ns.Sh("nft list ruleset")
	if diff := cmp.Diff(guardTable, list); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	firewalltest.Load(t, ns, "flush ruleset\n"+list)
	if got := nftApply(t, ns, want); got != 0 {
		t.Errorf("%d transactions after it was saved and loaded", got)
	}

	// While the underlay of a network is not known, no bridge is exempt.
	unknown := guarded()
	unknown[1].Underlay = nil
	nftApply(t, ns, desiredRules(State{Networks: unknown}))
	if list := ns.Sh("nft list chain inet leno tunnels"); strings.Contains(list, "oif") || !strings.Contains(list, "udp dport 8472 drop") {
		t.Errorf("with an unknown underlay:\n%s", list)
	}

	// Where a network is the underlay of another one, the tunnels of that have addresses in it.
	nested := guarded()
	nested[1].Underlay = []string{"leno-default"}
	nftApply(t, ns, desiredRules(State{Networks: nested}))
	if list := ns.Sh("nft list chain inet leno inputs"); strings.Contains(list, "10.5.0.0/16") || !strings.Contains(list, `iifname "leno-default" return`) ||
		!strings.Contains(list, "udp dport 8472 ip daddr 10.6.0.0/16 drop") {
		t.Errorf("with a network above another one:\n%s", list)
	}
	nftApply(t, ns, rules{})
	if list := ns.Sh("nft list ruleset"); list != "" {
		t.Errorf("left behind:\n%s", list)
	}
}

// TestGuardBesideOthers: nftables has the guard whichever kind has the other rules, another program's changes to it are
// repaired, and it stays when the others go.
func TestGuardBesideOthers(t *testing.T) {
	t.Parallel()
	for _, kind := range []Type{TypeIPTables, TypeNFTables} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			fw := New(hclog.NewNullLogger())
			networks := guarded()
			apply := func() (report Report) {
				t.Helper()
				ns.Do(func() {
					var err error
					if report, err = fw.Apply(t.Context(), State{Type: kind, Networks: networks}); err != nil || report.Unguarded != nil {
						t.Fatal(err, report.Unguarded)
					}
				})
				list := ns.Sh("nft list table inet leno")
				for _, chain := range strings.Split(strings.TrimSuffix(strings.TrimPrefix(guardTable, "table inet leno {\n"), "}\n"), "\n\n") {
					if !strings.Contains(list, strings.TrimSuffix(chain, "\n")) {
						t.Fatalf("%s is missing in\n%s", chain, list)
					}
				}
				return report
			}
			if r := apply(); r.Writes != 1 || len(r.Repaired) != 0 {
				t.Errorf("%+v", r)
			}
			networks[0].Forward, networks[0].IPMasq = true, true
			apply()
			if r := apply(); r.Writes != 0 {
				t.Errorf("once more: %+v", r)
			}
			ns.Sh("nft flush ruleset")
			if r := apply(); len(r.Repaired) == 0 {
				t.Errorf("after a flush: %+v", r)
			}
			networks[0].Forward, networks[0].IPMasq = false, false
			apply()
			if saved := ns.Sh("iptables-nft-save; nft list table inet leno"); strings.Contains(saved, "LENO-") || strings.Contains(saved, "srcnat") {
				t.Errorf("left behind:\n%s", saved)
			}
		})
	}
}

// TestGuardAfterAnotherType: rules that leno itself has written to nftables in the meantime were not changed by another
// program.
func TestGuardAfterAnotherType(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	fw, networks := New(hclog.NewNullLogger()), guarded()
	networks[0].Forward = true
	for _, kind := range []Type{TypeIPTables, TypeNFTables, TypeIPTables} {
		ns.Do(func() {
			r, err := fw.Apply(t.Context(), State{Type: kind, Networks: networks})
			if err != nil || r.Writes == 0 || len(r.Repaired) > 0 {
				t.Errorf("%s: %+v, %v", kind, r, err)
			}
		})
	}
}

// A failer is an applier that does not work at first.
type failer struct {
	tableWriter
	installed, works bool
}

func (f *failer) inspect(ctx context.Context, want rules) finding {
	if !f.installed {
		return finding{err: ErrNotInstalled}
	}
	return f.tableWriter.inspect(ctx, want)
}

func (f *failer) apply(ctx context.Context, want rules) ([]string, error) {
	if !f.works {
		return nil, errors.New("it is locked")
	}
	return f.tableWriter.apply(ctx, want)
}

// TestGuardAlone: nftables has the guard also while the other rules cannot be written. Those that nftables has stay, because
// no other kind has them yet.
func TestGuardAlone(t *testing.T) {
	t.Parallel()
	for _, installed := range []bool{true, false} {
		t.Run(fmt.Sprint("installed: ", installed), func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			fw, networks := New(hclog.NewNullLogger()), guarded()
			networks[0].Forward = true
			apply := func(kind Type) (report Report, err error) {
				ns.Do(func() { report, err = fw.Apply(t.Context(), State{Type: kind, Networks: networks}) })
				return report, err
			}
			if _, err := apply(TypeNFTables); err != nil {
				t.Fatal(err)
			}
			accepts := ns.Sh("nft list chain inet leno forward")
			var failers []*failer
			for i := range 2 {
				failers = append(failers, &failer{tableWriter: fw.appliers[i], installed: installed})
				fw.appliers[i] = failers[i]
			}
			networks[0].Ports = append(networks[0].Ports, 60000)
			for _, flush := range []bool{false, true} {
				if flush {
					ns.Sh("nft flush ruleset")
				}
				r, err := apply(TypeIPTables)
				if err == nil || r.Unguarded != nil || r.Writes != 1 || len(r.Repaired) > 0 != flush {
					t.Errorf("flush %t: %+v, %v", flush, r, err)
				}
				list := ns.Sh("nft list table inet leno")
				for _, rule := range []string{"udp dport 51820 drop", "udp dport 60000 drop", "ip saddr 10.5.0.0/16 fib"} {
					if !strings.Contains(list, rule) {
						t.Errorf("flush %t: no %s in\n%s", flush, rule, list)
					}
				}
				if !flush && ns.Sh("nft list chain inet leno forward") != accepts {
					t.Errorf("other rules of nftables were changed:\n%s", list)
				}
				if r, err := apply(TypeIPTables); err == nil || r.Writes != 0 {
					t.Errorf("flush %t, once more: %+v, %v", flush, r, err)
				}
			}
			if _, err := apply(TypeNFTables); err != nil {
				t.Fatal(err)
			}
			if _, err := apply(TypeIPTables); err == nil {
				t.Error("iptables works")
			}
			for _, f := range failers {
				f.installed, f.works = true, true
			}
			if r, err := apply(TypeIPTables); err != nil || r.Writes == 0 || len(r.Repaired) > 0 {
				t.Errorf("when iptables works: %+v, %v", r, err)
			}
			if list := ns.Sh("nft list table inet leno"); strings.Contains(list, "chain forward") || !strings.Contains(list, "udp dport 60000 drop") {
				t.Errorf("when iptables works:\n%s", list)
			}
			for _, f := range failers {
				f.works = false
			}
			ns.Sh("nft flush ruleset")
			if r, err := apply(TypeIPTables); err == nil || r.Unguarded != nil || len(r.Repaired) != 1 {
				t.Errorf("after a flush: %+v, %v", r, err)
			}
		})
	}
}

// A quitter is an applier whose caller gives up when it has written its rules.
type quitter struct {
	tableWriter
	quit func()
}

func (q *quitter) apply(ctx context.Context, want rules) ([]string, error) {
	defer q.quit()
	return q.tableWriter.apply(ctx, want)
}

// TestGuardInterrupted: a caller that gives up before the guard is written does not get the result that the host is
// without a guard, but an error, and the next call writes it.
func TestGuardInterrupted(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	fw, networks := New(hclog.NewNullLogger()), guarded()
	networks[0].Forward = true
	state := State{Type: TypeIPTables, Networks: networks}
	ctx, cancel := context.WithCancel(t.Context())
	fw.appliers[0] = &quitter{fw.appliers[0], cancel}
	ns.Do(func() {
		if report, err := fw.Apply(ctx, state); !errors.Is(err, context.Canceled) {
			t.Errorf("%+v %v", report, err)
		}
		if report, err := fw.Apply(t.Context(), state); err != nil || report.Unguarded != nil {
			t.Errorf("%+v %v", report, err)
		}
	})
	if list := ns.Sh("nft list table inet leno"); !strings.Contains(list, "udp dport 51820 drop") {
		t.Error(list)
	}
}
