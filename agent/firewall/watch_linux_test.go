package firewall

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/firewall/netfilter"
	"github.com/lenonet/leno/internal/testkit/firewalltest"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestWatch checks that changes of nf_tables by any program are reported, and those in other namespaces are not.
func TestWatch(t *testing.T) {
	t.Parallel()
	ns, elsewhere := nstest.New(t), nstest.New(t)
	var w *watch
	ns.Do(func() {
		var err error
		if w, err = openWatch(); err != nil {
			t.Fatal(err)
		}
	})
	told := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- w.run(ctx, func() {
			select {
			case told <- struct{}{}:
			default:
			}
		})
	}()
	elsewhere.Sh("nft add table inet theirs")
	ns.Sh("ip link add d0 type veth; nft list ruleset; iptables-nft-save")
	select {
	case <-told:
		t.Error("told of another namespace, or of nothing")
	case <-time.After(200 * time.Millisecond):
	}
	for _, script := range []string{
		"nft add table inet theirs",
		"iptables-nft -t nat -N LENO-POSTROUTING",
		"iptables-nft -A FORWARD -j DROP",
		"iptables-nft -F",
		"nft flush ruleset",
		// More than a socket's buffer holds.
		"nft add table ip big; (echo 'add chain ip big c'; seq 5000 | sed 's/.*/add rule ip big c meta mark & accept/') | nft -f -",
		"nft delete table ip big",
	} {
		ns.Sh(script)
		select {
		case <-told:
		case <-time.After(time.Minute):
			t.Fatalf("not told of %s", script)
		}
		// One change may be reported twice.
		for quiet := false; !quiet; {
			select {
			case <-told:
			case <-time.After(50 * time.Millisecond):
				quiet = true
			}
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("ended with %v", err)
	}
}

// TestTouched checks that changes of the legacy tables are noticed, whatever they contain, but not changed packet
// counters. The check does not create tables that no program asked for.
func TestTouched(t *testing.T) {
	t.Parallel()
	ns, h := nstest.New(t), iptablesHarness(netfilter.VariantLegacy)
	fw := h.only()
	touched := func() (is bool) {
		ns.Do(func() { is = fw.IsTouched() })
		return is
	}
	tables := func() string {
		return strings.Join(strings.Fields(ns.Sh("cat /proc/net/ip_tables_names /proc/net/ip6_tables_names")), " ")
	}
	apply(t, ns, fw, nil, 0)
	if touched() || tables() != "" {
		t.Errorf("nothing is wanted: touched %v, tables %q", touched(), tables())
	}
	apply(t, ns, fw, two(), h.tables)
	made := tables()
	// Changes that others may have made since its listing are found by the next look.
	if !touched() {
		t.Error("its own writes were not followed by a look")
	}
	if report := apply(t, ns, fw, two(), 0); !report.Silent {
		t.Errorf("%+v: changes of these are not announced", report)
	}
	if touched() {
		t.Error("nothing happened")
	}
	ns.Sh("ping -c 3 -i 0.01 127.0.0.1; iptables-legacy -Z; ip6tables-legacy-save -c")
	if touched() {
		t.Error("counted packets are no change")
	}
	for _, script := range []string{
		"iptables-legacy -t nat -F LENO-POSTROUTING",
		"iptables-legacy -D LENO-FORWARD 1; iptables-legacy -A LENO-FORWARD -s 10.5.0.0/16 -m comment --comment 'leno default' -j ACCEPT",
		"ip6tables-legacy -D FORWARD -j LENO-FORWARD",
		"ip6tables-legacy -t nat -R LENO-POSTROUTING 1 -s fd00:9::/64 -j RETURN",
		"iptables-legacy -P FORWARD DROP",
		"iptables-legacy -A INPUT -p tcp --dport 22 -m limit --limit 1/s -j ACCEPT",
	} {
		ns.Sh(script)
		if !touched() {
			t.Errorf("not seen: %s", script)
		}
		ns.Do(func() {
			for range 2 {
				if _, err := fw.Apply(t.Context(), State{RandomFully: true, Networks: two()}); err != nil {
					t.Fatal(err)
				}
			}
		})
		if touched() {
			t.Errorf("seen twice: %s", script)
		}
	}
	if tables() != made {
		t.Errorf("tables %q, %q before", tables(), made)
	}
}

// TestTouchedOfOneFamily: tables of a family that has no rules of ours do not count as touched all the time, whether they
// exist or not, and whether they had rules of ours before.
func TestTouchedOfOneFamily(t *testing.T) {
	t.Parallel()
	ns, fw := nstest.New(t), iptablesHarness(netfilter.VariantLegacy).only()
	for _, step := range []struct {
		name, script string
		networks     []Network
		writes       int
	}{
		{"no tables of the other family", "true", two()[1:], 2},
		{"tables of others", "ip6tables-legacy -A INPUT -j ACCEPT", two()[1:], 0},
		{"a rule of others", "ip6tables-legacy -A INPUT -j DROP", two()[1:], 0},
		{"both families", "true", two(), 4},
		{"one again", "true", two()[1:], 4},
	} {
		ns.Sh(step.script)
		apply(t, ns, fw, step.networks, step.writes)
		apply(t, ns, fw, step.networks, 0) // others may have written since the first listing
		ns.Do(func() {
			if fw.IsTouched() {
				t.Errorf("%s: touched without a change", step.name)
			}
		})
	}
}

// TestUnchangedIsNotListed checks that no program lists rules again that the kernel shows to be unchanged, and that any
// change of a table, and other wishes, are followed by a listing.
func TestUnchangedIsNotListed(t *testing.T) {
	for _, variant := range []string{netfilter.VariantNFT, netfilter.VariantLegacy} {
		t.Run(variant, func(t *testing.T) {
			ns, s := nstest.New(t), firewalltest.NewPrograms(t)
			log := filepath.Join(s.Dir, "log")
			for _, suffix := range []string{"", "-save", "-restore"} {
				name := "iptables-" + variant + suffix
				program, err := exec.LookPath(name)
				if err != nil {
					t.Fatal(err)
				}
				text := `exec ` + program + ` "$@"`
				if suffix == "-save" {
					text = "echo x >> " + log + "; " + text
				}
				s.Script(name, text)
			}
			listings := func() int {
				data, err := os.ReadFile(log)
				if err != nil {
					t.Fatal(err)
				}
				return len(data) / 2
			}
			fw, networks := iptablesHarness(variant).only(), two()
			apply(t, ns, fw, networks, 4)
			apply(t, ns, fw, networks, 0) // others may have written since the first listing
			seen := listings()
			for range 3 {
				apply(t, ns, fw, networks, 0)
			}
			if n := listings(); n != seen {
				t.Errorf("unchanged tables were listed %d times", n-seen)
			}
			ns.Sh("iptables-" + variant + " -D FORWARD -j LENO-FORWARD")
			apply(t, ns, fw, networks, 1)
			if n := listings(); n == seen {
				t.Error("changed tables were not listed")
			}
			apply(t, ns, fw, networks, 0)
			networks[0].IPMasq = false
			apply(t, ns, fw, networks, 2)
		})
	}
}
