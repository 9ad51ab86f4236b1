package firewall

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/backend/kernel/nstest"
)

// everything returns all rules of all programs and families, without comments and counters.
func everything(ns *nstest.NS) string {
	out := "nft\n" + ns.Sh("nft list ruleset")
	for _, command := range []string{"iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"} {
		out += command + "\n" + ns.Sh(command+"-save")
	}
	return changing.ReplaceAllString(out, "")
}

// strangers fills every firewall with rules that are not ours, though they look
// like it.
func strangers(ns *nstest.NS) {
	for _, variant := range []string{"legacy", "nft"} {
		ns.Sh(iptablesHarness(variant).foreign)
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

const ownTables = `nft -f - <<'X'
	table inet leno {
		chain postrouting { type nat hook postrouting priority srcnat
			ip saddr 10.5.34.0/24 masquerade comment "leno default"
			ip saddr 10.6.1.0/24 masquerade comment "leno b-2.x"
		}
	}
X`

// removeAll removes everything that Leftovers finds and returns a description of it.
func removeAll(t *testing.T, ns *nstest.NS, network string) (out []string) {
	t.Helper()
	ns.Do(func() {
		found, err := Leftovers(t.Context(), network)
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
	for _, variant := range []string{"legacy", "nft"} {
		apply(t, ns, iptablesHarness(variant).only(), two(), 4)
	}
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
	ns := nstest.New(t)
	strangers(ns)
	empty := everything(ns)
	b := two()[1:]
	native := func(networks []Network) {
		t.Helper()
		ns.Do(func() {
			if _, err := newNFTables(hclog.NewNullLogger()).apply(t.Context(), wanted(State{Networks: networks})); err != nil {
				t.Fatal(err)
			}
		})
	}
	for _, variant := range []string{"legacy", "nft"} {
		apply(t, ns, iptablesHarness(variant).only(), b, 2)
	}
	native(b)
	alone := everything(ns)
	for _, variant := range []string{"legacy", "nft"} {
		apply(t, ns, iptablesHarness(variant).only(), two(), 4)
	}
	native(two())
	removeAll(t, ns, "default")
	if diff := cmp.Diff(alone, everything(ns)); diff != "" {
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
	if diff := cmp.Diff(empty, everything(ns)); diff != "" {
		t.Errorf("without both (-want +got):\n%s", diff)
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
				ns.Do(func() { _, err = Leftovers(t.Context(), "") })
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
			if err := look(); !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "ip6tables-"+variant) {
				t.Errorf("of ours: %v", err)
			}
		})
	}
}
