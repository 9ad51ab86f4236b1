package leftover

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/internal/testkit/firewalltest"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// everything returns all rules of all programs and families, without comments and counters.
func everything(ns *nstest.NS) string {
	out := "nft\n" + ns.Sh("nft list ruleset")
	for _, command := range []string{"iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"} {
		out += command + "\n" + ns.Sh(command+"-save")
	}
	return firewalltest.Settled(out)
}

// strangers fills every firewall with rules that are not ours, though they look
// like it.
func strangers(ns *nstest.NS) {
	for _, variant := range []string{"legacy", "nft"} {
		ns.Sh(firewalltest.ForeignRules(variant))
	}
	ns.Sh(`nft -f - <<'X'
		table inet lenovo { chain c { type filter hook forward priority 5; ip saddr 10.5.0.0/16 accept comment "leno default"; }; }
		table ip theirs { chain leno { ip daddr 10.5.0.0/16 accept; }; }
		table inet leno-policy { chain forward { type filter hook forward priority 5; ip saddr 10.5.0.0/16 accept comment "leno default"; }; }
		table ip leno { chain forward { ip saddr 10.5.0.0/16 accept comment "leno default"; }; }
		table bridge leno { chain forward { type filter hook forward priority 5; }; }
		table netdev leno { chain in { accept; }; }
X`)
}

// networks returns two networks that want every kind of rule.
func networks() []firewall.Network {
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, p := range list {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	return []firewall.Network{
		{
			Name:    "default",
			Pools:   prefixes("10.5.0.0/16", "fd00:5::/48"),
			Subnets: prefixes("10.5.34.0/24", "fd00:5:0:22::/64"),
			IPMasq:  true,
			Forward: true,
		},
		{
			Name:    "b-2.x",
			Pools:   prefixes("10.6.0.0/16"),
			Subnets: prefixes("10.6.1.0/24"),
			IPMasq:  true,
			Forward: true,
		},
	}
}

// apply lets a firewall hold the rules of networks in a namespace.
func apply(t *testing.T, ns *nstest.NS, kind firewall.Type, networks []firewall.Network) {
	t.Helper()
	ns.Do(func() {
		state := firewall.State{Type: kind, RandomFully: true, Networks: networks}
		if _, err := firewall.New(hclog.NewNullLogger()).Apply(t.Context(), state); err != nil {
			t.Fatal(err)
		}
	})
}

// iptablesOf returns commands that add what one variant of iptables contains when it holds the rules of these networks.
func iptablesOf(t *testing.T, variant string, networks []firewall.Network) (commands []string) {
	t.Helper()
	ns := nstest.New(t)
	firewalltest.NewPrograms(t).Prefer(variant)
	apply(t, ns, firewall.TypeIPTables, networks)
	for _, command := range []string{"iptables-", "ip6tables-"} {
		command += variant
		ours := slices.DeleteFunc(strings.SplitAfter(ns.Sh(command+"-save"), "\n"), func(line string) bool {
			return line != "COMMIT\n" && !strings.HasPrefix(line, "*") && !strings.Contains(line, "LENO-")
		})
		commands = append(commands, command+"-restore --noflush <<'X'\n"+strings.Join(ours, "")+"X\n")
	}
	return commands
}

// nftablesOf returns leno's own table when nftables holds the rules of these networks.
func nftablesOf(t *testing.T, networks []firewall.Network) string {
	t.Helper()
	ns := nstest.New(t)
	apply(t, ns, firewall.TypeNFTables, networks)
	return ns.Sh("nft list table inet leno")
}

// restore runs commands in a namespace.
func restore(t *testing.T, ns *nstest.NS, commands ...[]string) {
	t.Helper()
	for _, command := range slices.Concat(commands...) {
		ns.Sh(command)
	}
}

const ownTables = `nft -f - <<'X'
	table inet leno {
		chain postrouting { type nat hook postrouting priority srcnat
			ip saddr 10.5.34.0/24 masquerade comment "leno default"
			ip saddr 10.6.1.0/24 masquerade comment "leno b-2.x"
		}
	}
X`

// removeAll removes everything that Find returns and returns a description of it.
func removeAll(t *testing.T, ns *nstest.NS, network string) (out []string) {
	t.Helper()
	ns.Do(func() {
		found, err := Find(t.Context(), network)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range found {
			out = append(out, l.Program+" "+l.Table+": "+strings.Join(l.Parts, ", "))
			if err := l.Remove(t.Context()); err != nil {
				t.Errorf("%s %s: %v", l.Program, l.Table, err)
			}
		}
	})
	slices.Sort(out)
	return out
}

// TestLeftovers checks that all our rules are removed, from every kind of firewall at once and from any version, and
// nothing else.
func TestLeftovers(t *testing.T) {
	ns := nstest.New(t)
	strangers(ns)
	before := everything(ns)
	if got := removeAll(t, ns, ""); got != nil {
		t.Errorf("found where nothing is: %q", got)
	}
	restore(t, ns, iptablesOf(t, "legacy", networks()), iptablesOf(t, "nft", networks()))
	ns.Sh(`iptables-legacy -t raw -N LENO-RAW
		iptables-legacy -t raw -A PREROUTING -m comment --comment "an older one" -j LENO-RAW
		iptables-legacy -t raw -A LENO-RAW -j RETURN
		ip6tables-nft -N LENO-OLD
		ip6tables-nft -A LENO-FORWARD -j LENO-OLD
		ip6tables-nft -A LENO-OLD -j RETURN` + "\n" + ownTables)
	got := removeAll(t, ns, "")
	want := []string{
		"ip6tables-legacy filter: jump from FORWARD to LENO-FORWARD, chain LENO-FORWARD",
		"ip6tables-legacy nat: jump from POSTROUTING to LENO-OVERLAY, jump from POSTROUTING to LENO-POSTROUTING, chain LENO-OVERLAY, chain LENO-POSTROUTING",
		"ip6tables-nft filter: jump from FORWARD to LENO-FORWARD, chain LENO-FORWARD, chain LENO-OLD",
		"ip6tables-nft nat: jump from POSTROUTING to LENO-OVERLAY, jump from POSTROUTING to LENO-POSTROUTING, chain LENO-OVERLAY, chain LENO-POSTROUTING",
		"iptables-legacy filter: jump from FORWARD to LENO-FORWARD, chain LENO-FORWARD",
		"iptables-legacy nat: jump from POSTROUTING to LENO-OVERLAY, jump from POSTROUTING to LENO-POSTROUTING, chain LENO-OVERLAY, chain LENO-POSTROUTING",
		"iptables-legacy raw: jump from PREROUTING to LENO-RAW, chain LENO-RAW",
		"iptables-nft filter: jump from FORWARD to LENO-FORWARD, chain LENO-FORWARD",
		"iptables-nft nat: jump from POSTROUTING to LENO-OVERLAY, jump from POSTROUTING to LENO-POSTROUTING, chain LENO-OVERLAY, chain LENO-POSTROUTING",
		"nft inet leno: table inet leno",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	// A table of legacy iptables that was used once stays, empty.
	after := strings.Replace(everything(ns), "*raw\n:PREROUTING ACCEPT \n:OUTPUT ACCEPT \nCOMMIT\n", "", 1)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("before and after (-want +got):\n%s", diff)
	}
	if got := removeAll(t, ns, ""); got != nil {
		t.Errorf("found after it was removed: %q", got)
	}
}

// TestLeftoversOfANetwork checks that the rules of other networks stay as they are.
func TestLeftoversOfANetwork(t *testing.T) {
	empty := func() *nstest.NS {
		ns := nstest.New(t)
		strangers(ns)
		return ns
	}
	load := func(ns *nstest.NS, wanted []firewall.Network) {
		t.Helper()
		restore(t, ns, iptablesOf(t, "legacy", wanted), iptablesOf(t, "nft", wanted))
		firewalltest.Load(t, ns, nftablesOf(t, wanted))
	}
	before, one, ns := empty(), empty(), empty()
	load(one, networks()[1:])
	load(ns, networks())
	if got := len(removeAll(t, ns, "default")); got == 0 {
		t.Error("found nothing")
	}
	if diff := cmp.Diff(everything(one), everything(ns)); diff != "" {
		t.Errorf("without one network (-want +got):\n%s", diff)
	}
	if got := removeAll(t, ns, "def"); got != nil {
		t.Errorf("found of no network: %q", got)
	}
	ns.Sh("nft delete table inet leno\n" + ownTables)
	removeAll(t, ns, "default")
	if got := everything(ns); strings.Contains(got, `masquerade comment "leno default"`) || !strings.Contains(got, `masquerade comment "leno b-2.x"`) {
		t.Errorf("tables of nftables without one network:\n%s", got)
	}
	removeAll(t, ns, "b-2.x")
	if diff := cmp.Diff(everything(before), everything(ns)); diff != "" {
		t.Errorf("without both (-want +got):\n%s", diff)
	}
}

// TestLeftoversUnreadable checks that our rules are found and removed in tables that iptables-nft cannot show.
func TestLeftoversUnreadable(t *testing.T) {
	ns := nstest.New(t)
	strangers(ns)
	restore(t, ns, iptablesOf(t, "nft", networks()[1:]))
	ns.Sh(`nft -f - <<'X'
		add rule ip nat POSTROUTING ip saddr { 10.1.0.0/16, 10.2.0.0/16 } counter masquerade
		add rule ip filter FORWARD ct state vmap { established : accept, related : accept }
X`)
	one := ns.Sh("nft -s list ruleset 2>/dev/null")
	if saved := ns.Sh("iptables-nft-save"); strings.Contains(saved, "LENO-") {
		t.Fatalf("iptables-nft shows\n%s", saved)
	}
	ns.Sh(`iptables-nft-restore --noflush <<'X'
*filter
-A LENO-FORWARD -s 10.5.0.0/16 -m comment --comment "leno default" -j ACCEPT
COMMIT
X`)
	got := removeAll(t, ns, "default")
	want := []string{`iptables-nft filter: rule LENO-FORWARD -s 10.5.0.0/16 -m comment --comment "leno default" -j ACCEPT`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("of one network (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(one, ns.Sh("nft -s list ruleset 2>/dev/null")); diff != "" {
		t.Errorf("without one network (-want +got):\n%s", diff)
	}
	ns.Sh(`iptables-nft -A OUTPUT -m comment --comment "an older one" -j LENO-FORWARD`)
	want = []string{
		"iptables-nft filter: jump from FORWARD to LENO-FORWARD, chain LENO-FORWARD",
		"iptables-nft nat: jump from POSTROUTING to LENO-OVERLAY, jump from POSTROUTING to LENO-POSTROUTING, chain LENO-OVERLAY, chain LENO-POSTROUTING",
	}
	if diff := cmp.Diff(want, removeAll(t, ns, "")); diff != "" {
		t.Errorf("of all networks (-want +got):\n%s", diff)
	}
	if left := ns.Sh("nft -s list ruleset 2>/dev/null"); strings.Count(left, "LENO-") != strings.Count(left, "MINE-NOT-LENO-") || !strings.Contains(left, "vmap") {
		t.Errorf("the removal left\n%s", left)
	}
	if got := removeAll(t, ns, ""); got != nil {
		t.Errorf("found after it was removed: %q", got)
	}
}

// TestLeftoversWithoutTheirPrograms checks that leftovers are removed where that is possible, and reported where it
// is not.
func TestLeftoversWithoutTheirPrograms(t *testing.T) {
	for _, variant := range []string{"legacy", "nft"} {
		t.Run(variant, func(t *testing.T) {
			ns := nstest.New(t)
			strangers(ns)
			shell, err := exec.LookPath("sh")
			if err != nil {
				t.Fatal(err)
			}
			program, err := exec.LookPath("ip6tables-" + variant)
			if err != nil {
				t.Fatal(err)
			}
			empty := t.TempDir()
			if err := os.Symlink(shell, empty+"/sh"); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", empty)
			look := func() error {
				var err error
				ns.Do(func() { _, err = Find(t.Context(), "") })
				return err
			}
			if err := look(); err != nil {
				t.Errorf("of others: %v", err)
			}
			ns.Sh(program + " -t nat -N LENO-X")
			if variant == "nft" {
				if got := removeAll(t, ns, ""); !slices.Equal(got, []string{"nft ip6tables nat: chains LENO-…"}) {
					t.Errorf("removed %q", got)
				}
				if got := ns.Sh(program + "-save"); strings.Contains(got, "LENO-X") || !strings.Contains(got, "THEIRS") {
					t.Errorf("after removing there is\n%s", got)
				}
				return
			}
			if err := look(); !errors.Is(err, firewall.ErrNotInstalled) || !strings.Contains(err.Error(), "ip6tables-"+variant) {
				t.Errorf("of ours: %v", err)
			}
		})
	}
}
