package firewall

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/firewall/netfilter"
	"github.com/lenonet/leno/internal/testkit/firewalltest"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// forced returns a kind that knows only the programs of its variant.
func forced(variant string) *iptables {
	i := newIPTables(hclog.NewNullLogger(), variant)
	for _, f := range i.families {
		f.fixed = true
	}
	return i
}

// iptablesHarness returns the harness of one variant of iptables. In scripts "V4" and "V6" stand for the programs.
func iptablesHarness(variant string) harness {
	programs := strings.NewReplacer("V4", "iptables-"+variant, "V6", "ip6tables-"+variant)
	h := harness{
		kind: "iptables-" + variant,
		only: func() *Firewall { return onlyOf(forced(variant)) },
		saved: func(ns *nstest.NS) string {
			return firewalltest.Settled(ns.Sh(programs.Replace("V4-save; V6-save")))
		},
		drop:    programs.Replace("V4 -P FORWARD DROP; V6 -P FORWARD DROP"),
		tables:  4,
		changed: 2,
		damage:  map[string]damage{},
		foreign: firewalltest.ForeignRules(variant),
		shows: []string{
			"-A FORWARD -i eth8 -j DROP\n-A FORWARD -j LENO-FORWARD\n-A FORWARD -i eth7 -j MINE-NOT-LENO-\n",
			"-A POSTROUTING -o eth6 -j SNAT --to-source 192.0.2.9\n-A POSTROUTING -j LENO-OVERLAY\n-A POSTROUTING -j THEIRS\n-A POSTROUTING -j LENO-POSTROUTING\n",
			`-A LENO-OVERLAY -s 10.5.34.0/24 -d 10.5.34.0/24 -m comment --comment "leno default" -j RETURN
-A LENO-OVERLAY -s 10.5.34.0/24 -d 10.5.0.0/16 -m comment --comment "leno default" -j ACCEPT
`,
			`-A LENO-POSTROUTING -s 10.5.34.0/24 -d 10.5.0.0/16 -m comment --comment "leno default" -j RETURN
-A LENO-POSTROUTING -s 10.5.34.0/24 -d 224.0.0.0/4 -m comment --comment "leno default" -j RETURN
-A LENO-POSTROUTING -s 10.5.34.0/24 -d 255.255.255.255/32 -m comment --comment "leno default" -j RETURN
-A LENO-POSTROUTING -s 10.5.34.0/24 -m comment --comment "leno default" -j MASQUERADE --random-fully
`,
			`-A LENO-FORWARD -s fd00:5::/48 -m comment --comment "leno default" -j ACCEPT` + "\n",
		},
	}
	for name, d := range map[string]damage{
		"chains flushed":           {"V4 -t nat -F LENO-POSTROUTING; V4 -F LENO-FORWARD", 2},
		"chain deleted":            {"V6 -D FORWARD -j LENO-FORWARD; V6 -F LENO-FORWARD; V6 -X LENO-FORWARD", 1},
		"jump doubled":             {"V4 -A FORWARD -j LENO-FORWARD; V4 -A OUTPUT -j LENO-FORWARD", 1},
		"rule added":               {"V4 -I LENO-FORWARD -s 10.5.3.0/24 -j DROP", 1},
		"rules reordered":          {"V4 -D LENO-FORWARD 1; V4 -A LENO-FORWARD -s 10.5.0.0/16 -m comment --comment 'leno default' -j ACCEPT", 1},
		"a rule changed":           {"V4 -t nat -R LENO-POSTROUTING 4 -s 10.5.34.0/24 -m comment --comment 'leno default' -j RETURN", 1},
		"old chain left":           {"V4 -N LENO-OLD; V4 -A LENO-OLD -j LENO-FORWARD; V4 -A FORWARD -m comment --comment 'an old one' -j LENO-OLD", 1},
		"jump behind their chain":  {"V4 -D FORWARD -j LENO-FORWARD; V4 -A FORWARD -j LENO-FORWARD", 1},
		"jump behind their source": {"V6 -t nat -D POSTROUTING -j LENO-OVERLAY; V6 -t nat -A POSTROUTING -j LENO-OVERLAY", 1},
	} {
		h.damage[name] = damage{programs.Replace(d.script), d.writes}
	}
	return h
}

// After all rules of all programs were flushed, ours come back, without rules of others.
func TestIPTablesAllFlushed(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{netfilter.VariantNFT, netfilter.VariantLegacy} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			ns, h := nstest.New(t), iptablesHarness(variant)
			fw := h.only()
			apply(t, ns, fw, two(), 4)
			want := h.saved(ns)
			programs := strings.NewReplacer("V4", "iptables-"+variant, "V6", "ip6tables-"+variant)
			ns.Sh(programs.Replace("V4 -t nat -F; V4 -t nat -X; V4 -F; V4 -X; V6 -t nat -F; V6 -F"))
			apply(t, ns, fw, two(), 4)
			if diff := cmp.Diff(want, h.saved(ns)); diff != "" {
				t.Errorf("not repaired (-want +got):\n%s", diff)
			}
		})
	}
}

// A missing program is an error only when it is needed, and does not stop other work.
func TestNotInstalled(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	i := forced(netfilter.VariantNFT)
	i.families[1].command = "ip6tables-is-not-here"
	fw := onlyOf(i)
	apply(t, ns, fw, nil, 0)
	apply(t, ns, fw, two()[1:], 2) // only IPv4

	ns.Do(func() {
		report, err := fw.Apply(t.Context(), State{Networks: two()})
		if !errors.Is(err, ErrNotInstalled) || report.Writes != 2 {
			t.Fatalf("got %+v, %v", report, err)
		}
		for _, want := range []string{"IPv6 firewall: ", "ip6tables-is-not-here", "install the package iptables"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q is missing in %v", want, err)
			}
		}
	})
}

// A program that fails or answers only partly changes nothing, and the error contains its message.
func TestBrokenProgram(t *testing.T) {
	ns, s := nstest.New(t), firewalltest.NewPrograms(t)
	log := filepath.Join(s.Dir, "log")
	i := forced(netfilter.VariantNFT)
	i.families = i.families[:1]
	i.families[0].command = "ipt"
	fw := onlyOf(i)
	state := State{RandomFully: true, Networks: two()}
	const version = "echo 'iptables v1.8.9 (nf_tables)'"
	const empty = "echo '*nat'; echo ':POSTROUTING ACCEPT [0:0]'; echo COMMIT"
	for _, tt := range []struct {
		name, version, save, restore string
		want                         string
		is                           error
	}{
		{"no iptables at all", "echo BusyBox", empty, "", "not an answer of iptables: \"BusyBox", nil},
		{"version fails", "echo broken >&2; exit 127", empty, "", "exit status 127: broken", nil},
		{"output cut short", version, "echo '*nat'; echo ':POSTROUTING ACCEPT [0:0]'", "", "ends inside table nat", nil},
		{"garbage", version, "echo garbage; head -c 300 /dev/urandom", "", "line 1 of iptables-save", nil},
		{"no rights", version, "echo 'Permission denied (you must be root)' >&2; exit 4", "", "exit status 4: Permission", os.ErrPermission},
		{"the lock is held", version, empty, "echo 'Another app is currently holding the xtables lock; still 0s' >&2; exit 4", "fuser", netfilter.ErrLocked},
		{"write fails", version, empty, "echo no memory >&2; exit 1", "no memory", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.Script("ipt-nft", tt.version)
			s.Script("ipt-nft-save", tt.save)
			s.Script("ipt-nft-restore", "echo written >> "+log+"; "+tt.restore)
			var err error
			ns.Do(func() { _, err = fw.Apply(t.Context(), state) })
			if err == nil || !strings.Contains(err.Error(), tt.want) || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if _, err := os.Stat(log); tt.restore == "" && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("rules were written: %v", err)
			}
			ns.Do(func() { _, err = fw.Apply(t.Context(), State{}) })
			if err != nil {
				t.Errorf("nothing wanted: %v", err)
			}
		})
	}
	s.Script("ipt-nft", version)
	s.Script("ipt-nft-save", "exec sleep 600")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := fw.Apply(ctx, state); err == nil {
		t.Error("a cancelled listing is no error")
	}
}

// A program that rejects --random-fully is run without it, and the option is not tried again until the program is
// replaced.
func TestRandomFullyRefused(t *testing.T) {
	s := firewalltest.NewPrograms(t)
	log := filepath.Join(s.Dir, "log")
	s.Script("ipt-nft", "echo 'iptables v1.8.9 (nf_tables)'")
	s.Script("ipt-nft-save", "true")
	s.Script("ipt-nft-restore", `input=$(cat); echo x >> `+log+`; case $input in *random-fully*) echo "what is random-fully?" >&2; exit 1;; esac`)
	i := forced(netfilter.VariantNFT).families[0]
	i.command = "ipt"
	want := desiredRules(State{RandomFully: true, Networks: two()}).family(false)
	tries := func() int {
		data, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return len(data) / 2
	}
	for _, n := range []int{4, 6} { // nat twice, and without, and filter; then nat and filter
		if _, err := i.apply(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		if got := tries(); got != n {
			t.Errorf("%d writes were tried, want %d", got, n)
		}
	}
}

// A program that had to be killed has not rejected --random-fully: the rules are not written without it.
func TestRandomFullyNotRefused(t *testing.T) {
	s := firewalltest.NewPrograms(t)
	once := filepath.Join(s.Dir, "once")
	s.Script("ipt-nft", "echo 'iptables v1.8.9 (nf_tables)'")
	s.Script("ipt-nft-save", "true")
	s.Script("ipt-nft-restore", "cat >/dev/null; test -e "+once+" || { touch "+once+"; exec yes; }")
	i := forced(netfilter.VariantNFT).families[0]
	i.command = "ipt"
	want := desiredRules(State{RandomFully: true, Networks: two()}).family(false)
	if _, err := i.apply(t.Context(), want); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("a program that was killed: %v", err)
	}
	if i.unable != "" {
		t.Error("it counts as one that rejects --random-fully")
	}
	if written, err := i.apply(t.Context(), want); err != nil || len(written) != 2 {
		t.Errorf("the next attempt: %q, %v", written, err)
	}
}

// A write that conflicts with another program's is repeated once from a new listing, and keeps the random source
// ports.
func TestWriteMeetsAnother(t *testing.T) {
	s := firewalltest.NewPrograms(t)
	saved, log := filepath.Join(s.Dir, "saved"), filepath.Join(s.Dir, "log")
	s.Script("ipt-nft", "echo 'iptables v1.8.9 (nf_tables)'")
	s.Script("ipt-nft-save", "cat "+saved)
	const chain = "*filter\n:FORWARD ACCEPT [0:0]\n:THEIRS - [0:0]\n"
	const plain = "-A FORWARD -i eth0 -j ACCEPT\n"
	if err := os.WriteFile(saved, []byte(chain+plain+"-A FORWARD -j THEIRS\nCOMMIT\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Another program writes nat at the same instant, and removes a rule from filter.
	s.Script("ipt-nft-restore", `input=$(cat); echo "$input" >> `+log+`; cd `+s.Dir+`
		case $input in
		*LENO-POSTROUTING*) test -e nat || { touch nat; echo "Device or resource busy" >&2; exit 1; };;
		*) test -e filter || { touch filter; sed -i '/eth0/d' `+saved+`; echo "Index of insertion too big" >&2; exit 1; };;
		esac`)
	i := forced(netfilter.VariantNFT).families[0]
	i.command = "ipt"
	want := desiredRules(State{RandomFully: true, Networks: two()}).family(false)
	if _, err := i.apply(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(data); i.unable != "" || !strings.HasSuffix(text, "-I FORWARD 1 -j LENO-FORWARD\nCOMMIT\n") || strings.Contains(text, "MASQUERADE\n") {
		t.Errorf("written was\n%s", text)
	}
}
