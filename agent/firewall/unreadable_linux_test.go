package firewall

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/firewall/netfilter"
	"github.com/lenonet/leno/internal/testkit/firewalltest"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// nativeRules are what iptables has no words for, in every table that leno writes: sets and verdict maps, as another
// program adds them with nft.
const nativeRules = `nft -f - <<'X'
	add rule ip nat POSTROUTING ip saddr { 10.1.0.0/16, 10.2.0.0/16 } counter masquerade
	add rule ip filter FORWARD ct state vmap { established : accept, related : accept }
	add rule ip6 nat POSTROUTING ip6 saddr { fd01::/48, fd02::/48 } counter masquerade
	add rule ip6 filter FORWARD ct state vmap { established : accept, related : accept }
X
`

// emptyChains makes the chains that nativeRules needs.
const emptyChains = `for p in iptables-nft ip6tables-nft; do
	$p -P FORWARD ACCEPT
	$p -t nat -P POSTROUTING ACCEPT
done
`

// jumpsOf returns the number of jumps to each of our chains, of both families, for example "ip filter LENO-FORWARD".
func jumpsOf(ns *nstest.NS) map[string]int {
	out, table := map[string]int{}, ""
	for _, line := range strings.Split(ns.Sh("nft list ruleset"), "\n") {
		if rest, ok := strings.CutPrefix(line, "table "); ok {
			table = strings.TrimSuffix(rest, " {")
		}
		if _, chain, ok := strings.Cut(line, "jump "+ChainPrefix); ok {
			out[table+" "+ChainPrefix+chain]++
		}
	}
	return out
}

// oneOfEach are the jumps of two().
func oneOfEach() map[string]int {
	return map[string]int{
		"ip filter LENO-FORWARD": 1, "ip nat LENO-OVERLAY": 1, "ip nat LENO-POSTROUTING": 1,
		"ip6 filter LENO-FORWARD": 1, "ip6 nat LENO-OVERLAY": 1, "ip6 nat LENO-POSTROUTING": 1,
	}
}

// ruleset returns all rules without the counters.
func ruleset(ns *nstest.NS) string {
	return ns.Sh("nft -s list ruleset 2>/dev/null")
}

// Tables that iptables cannot show are not empty: their rules are kept as they are, repaired, changed and removed, and no
// rule is written twice.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	l, fw := newLane(t), onlyOf(forced(netfilter.VariantNFT))
	l.host.Sh("iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP")
	apply(t, l.host, fw, two(), 4)
	l.host.Sh(nativeRules)
	if got := l.host.Sh("iptables-nft-save; ip6tables-nft-save"); strings.Contains(got, ChainPrefix) {
		t.Fatalf("iptables shows\n%s", got)
	}
	want := ruleset(l.host)
	for n := range 20 {
		if n%2 == 1 {
			fw = onlyOf(forced(netfilter.VariantNFT)) // another process
		}
		report := apply(t, l.host, fw, two(), 0)
		if report.Unreadable != "ip nat, ip filter, ip6 nat, ip6 filter" {
			t.Errorf("it reports %q", report.Unreadable)
		}
	}
	if diff := cmp.Diff(want, ruleset(l.host)); diff != "" {
		t.Errorf("something was written (-want +got):\n%s", diff)
	}
	for to, from := range map[string]string{
		"192.0.2.1": "192.0.2.34", "2001:db8::1": "2001:db8::34", "10.5.99.2": "10.5.34.2", "fd00:5:0:99::2": "fd00:5:0:22::2",
	} {
		if got := connect(t, l.container, l.world, to, 0); got != from {
			t.Errorf("%s saw %s, want %s", to, got, from)
		}
	}
	for name, damage := range map[string]damage{
		"jump deleted":    {"iptables-nft -D FORWARD -j LENO-FORWARD", 1},
		"jumps doubled":   {"for i in 1 2 3; do iptables-nft -t nat -A POSTROUTING -j LENO-POSTROUTING; ip6tables-nft -I FORWARD -j LENO-FORWARD; done", 2},
		"chain flushed":   {"ip6tables-nft -t nat -F LENO-POSTROUTING", 1},
		"rule added":      {"iptables-nft -I LENO-FORWARD -s 10.5.3.0/24 -j DROP", 1},
		"rule replaced":   {"iptables-nft -t nat -R LENO-POSTROUTING 4 -s 10.5.34.0/24 -m comment --comment 'leno default' -j RETURN", 1},
		"native rule":     {"nft add rule ip filter LENO-FORWARD ip saddr { 10.5.3.1, 10.5.3.9 } drop", 1},
		"behind a source": {"nft insert rule ip nat POSTROUTING ip saddr { 10.5.34.0/24, 10.5.36.0/24 } masquerade", 1},
	} {
		l.host.Sh(damage.script)
		report := apply(t, l.host, fw, two(), damage.writes)
		if len(report.Repaired) != damage.writes {
			t.Errorf("%s: repaired %q", name, report.Repaired)
		}
		if diff := cmp.Diff(oneOfEach(), jumpsOf(l.host)); diff != "" {
			t.Errorf("%s: jumps (-want +got):\n%s", name, diff)
		}
		apply(t, l.host, fw, two(), 0)
	}
	chain := l.host.Sh("nft list chain ip nat POSTROUTING")
	if strings.Index(chain, "LENO-OVERLAY") > strings.Index(chain, "10.5.36.0/24") {
		t.Errorf("the overlay's jump is behind what masquerades:\n%s", chain)
	}
	one := two()
	one[0].IPMasq = false
	apply(t, l.host, fw, one, 2)
	if got := ruleset(l.host); strings.Contains(got, "10.5.34.0/24 masq") || strings.Contains(got, "table ip6 nat {\n\tchain LENO") {
		t.Errorf("a change left\n%s", got)
	}
	apply(t, l.host, fw, one, 0)
	apply(t, l.host, fw, nil, 3)
	apply(t, l.host, fw, nil, 0)
	if got := ruleset(l.host); strings.Contains(got, ChainPrefix) || strings.Count(got, "vmap") != 2 {
		t.Errorf("the removal left\n%s", got)
	}
}

// The first agent on a host whose tables iptables cannot show writes its rules once. A change of the type removes them.
func TestUnreadableFromTheStart(t *testing.T) {
	ns := nstest.New(t)
	firewalltest.NewPrograms(t).Prefer(netfilter.VariantNFT)
	ns.Sh(firewalltest.ForeignRules("nft") + nativeRules)
	before := ruleset(ns)
	fw := New(hclog.NewNullLogger())
	state := func(kind Type) State { return State{Type: kind, RandomFully: true, Networks: two()} }
	for n := range 10 {
		ns.Do(func() {
			report, err := fw.Apply(t.Context(), state(TypeIPTables))
			if writes := map[bool]int{true: 4}[n == 0]; err != nil || report.Writes != writes {
				t.Errorf("attempt %d: %+v, %v", n, report, err)
			}
		})
	}
	if diff := cmp.Diff(oneOfEach(), jumpsOf(ns)); diff != "" {
		t.Errorf("jumps (-want +got):\n%s", diff)
	}
	if rules := ns.Sh("nft list chain ip nat POSTROUTING"); strings.Index(rules, "THEIRS") < strings.Index(rules, "LENO-OVERLAY") {
		t.Errorf("the overlay's jump is behind another program's:\n%s", rules)
	}
	ns.Do(func() {
		report, err := fw.Apply(t.Context(), state(TypeNFTables))
		if err != nil || report.Leftover != nil || report.Unreadable != "" {
			t.Errorf("another type: %+v, %v", report, err)
		}
	})
	ns.Sh("nft delete table inet leno")
	if diff := cmp.Diff(before, ruleset(ns)); diff != "" {
		t.Errorf("the change of the type left (-want +got):\n%s", diff)
	}
}

// A program that cannot show a single chain of such a table either, as an old one may not, has its rules written
// once by each process, and again when their number changed.
func TestUnreadableChain(t *testing.T) {
	ns, s := nstest.New(t), firewalltest.NewPrograms(t)
	for _, suffix := range []string{"-save", "-restore"} {
		s.Script("ipt-nft"+suffix, "exec iptables-nft"+suffix+` "$@"`)
	}
	s.Script("ipt-nft", `case "$*" in *-S*) exit 1;; esac; exec iptables-nft "$@"`)
	only := func() *Firewall {
		i := forced(netfilter.VariantNFT)
		i.families = i.families[:1]
		i.families[0].command = "ipt"
		return onlyOf(i)
	}
	ns.Sh(emptyChains + nativeRules)
	for n, writes := range []int{2, 2} {
		fw := only()
		apply(t, ns, fw, two(), writes)
		for range 3 {
			apply(t, ns, fw, two(), 0)
		}
		ns.Sh("nft add rule ip filter LENO-FORWARD drop")
		apply(t, ns, fw, two(), 1)
		apply(t, ns, fw, two(), 0)
		if got := fmt.Sprint(jumpsOf(ns)); got != "map[ip filter LENO-FORWARD:1 ip nat LENO-OVERLAY:1 ip nat LENO-POSTROUTING:1]" {
			t.Errorf("process %d: %s", n, got)
		}
	}
}

// A program that leaves chains or jumps of ours out of its listing, and says nothing about that, does not have them
// written again.
func TestListingLeavesOut(t *testing.T) {
	for _, left := range []string{"LENO-", "j LENO-", ":LENO-"} {
		t.Run(left, func(t *testing.T) {
			ns, s := nstest.New(t), firewalltest.NewPrograms(t)
			s.Script("ipt-nft", `exec iptables-nft "$@"`)
			s.Script("ipt-nft-restore", `exec iptables-nft-restore "$@"`)
			s.Script("ipt-nft-save", "iptables-nft-save | sed '/"+left+"/d'")
			i := forced(netfilter.VariantNFT)
			i.families = i.families[:1]
			i.families[0].command = "ipt"
			fw := onlyOf(i)
			apply(t, ns, fw, two(), 2)
			for range 3 {
				if report := apply(t, ns, fw, two(), 0); report.Unreadable != "ip nat, ip filter" {
					t.Errorf("it reports %q", report.Unreadable)
				}
			}
			if got := fmt.Sprint(jumpsOf(ns)); got != "map[ip filter LENO-FORWARD:1 ip nat LENO-OVERLAY:1 ip nat LENO-POSTROUTING:1]" {
				t.Errorf("there is %s", got)
			}
			if left != "LENO-" {
				return
			}
			apply(t, ns, fw, nil, 2)
			if got := jumpsOf(ns); len(got) > 0 {
				t.Errorf("the removal left %v", got)
			}
		})
	}
}
