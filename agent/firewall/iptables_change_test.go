package firewall

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// two returns two networks, the first of both families.
func two() []Network {
	return []Network{
		{Name: "default", Pools: prefixes("10.5.0.0/16", "fd00:5::/48"), Subnets: prefixes("10.5.34.0/24", "fd00:5:0:22::/64"), IPMasq: true, Forward: true, Tunnels: []string{"leno-default", "leno-default~b"}},
		{Name: "b-2.x", Pools: prefixes("10.6.0.0/16"), Subnets: prefixes("10.6.1.0/24"), IPMasq: true, Forward: true},
	}
}

func dump(rules map[string][]netfilter.Rule) string {
	var out strings.Builder
	for _, h := range hooks() {
		for _, r := range rules[h.own] {
			out.WriteString(r.String() + "\n")
		}
	}
	return out.String()
}

func TestRender(t *testing.T) {
	const v4, v6 = false, true
	none := two()
	for i := range none {
		none[i].IPMasq, none[i].Forward = false, false
	}
	unleased := two()[1:]
	unleased[0].Subnets = nil
	for _, tt := range []struct {
		name         string
		networks     []Network
		v6           bool
		asked, known bool // --random-fully
		want         string
	}{
		{"IPv4", two(), v4, true, true, `
-A LENO-OVERLAY -s 10.5.34.0/24 -d 10.5.34.0/24 -m comment --comment "leno default" -j RETURN
-A LENO-OVERLAY -s 10.5.34.0/24 -d 10.5.0.0/16 -m comment --comment "leno default" -j ACCEPT
-A LENO-OVERLAY -s 10.6.1.0/24 -d 10.6.1.0/24 -m comment --comment "leno b-2.x" -j RETURN
-A LENO-OVERLAY -s 10.6.1.0/24 -d 10.6.0.0/16 -m comment --comment "leno b-2.x" -j ACCEPT
-A LENO-POSTROUTING -s 10.5.34.0/24 -d 10.5.0.0/16 -m comment --comment "leno default" -j RETURN
-A LENO-POSTROUTING -s 10.5.34.0/24 -d 224.0.0.0/4 -m comment --comment "leno default" -j RETURN
-A LENO-POSTROUTING -s 10.5.34.0/24 -d 255.255.255.255/32 -m comment --comment "leno default" -j RETURN
-A LENO-POSTROUTING -s 10.5.34.0/24 -m comment --comment "leno default" -j MASQUERADE --random-fully
-A LENO-POSTROUTING -s 10.6.1.0/24 -d 10.6.0.0/16 -m comment --comment "leno b-2.x" -j RETURN
-A LENO-POSTROUTING -s 10.6.1.0/24 -d 224.0.0.0/4 -m comment --comment "leno b-2.x" -j RETURN
-A LENO-POSTROUTING -s 10.6.1.0/24 -d 255.255.255.255/32 -m comment --comment "leno b-2.x" -j RETURN
-A LENO-POSTROUTING -s 10.6.1.0/24 -m comment --comment "leno b-2.x" -j MASQUERADE --random-fully
-A LENO-FORWARD -s 10.5.0.0/16 -m comment --comment "leno default" -j ACCEPT
-A LENO-FORWARD -d 10.5.0.0/16 -i leno-default -m comment --comment "leno default" -j ACCEPT
-A LENO-FORWARD -d 10.5.0.0/16 -i leno-default~b -m comment --comment "leno default" -j ACCEPT
-A LENO-FORWARD -d 10.5.0.0/16 -m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment "leno default" -j ACCEPT
-A LENO-FORWARD -d 10.5.0.0/16 -m conntrack --ctstate DNAT -m comment --comment "leno default" -j ACCEPT
-A LENO-FORWARD -s 10.6.0.0/16 -m comment --comment "leno b-2.x" -j ACCEPT
-A LENO-FORWARD -d 10.6.0.0/16 -m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment "leno b-2.x" -j ACCEPT
-A LENO-FORWARD -d 10.6.0.0/16 -m conntrack --ctstate DNAT -m comment --comment "leno b-2.x" -j ACCEPT
`},
		{"IPv6, an old iptables", two(), v6, true, false, `
-A LENO-OVERLAY -s fd00:5:0:22::/64 -d fd00:5:0:22::/64 -m comment --comment "leno default" -j RETURN
-A LENO-OVERLAY -s fd00:5:0:22::/64 -d fd00:5::/48 -m comment --comment "leno default" -j ACCEPT
-A LENO-POSTROUTING -s fd00:5:0:22::/64 -d fd00:5::/48 -m comment --comment "leno default" -j RETURN
-A LENO-POSTROUTING -s fd00:5:0:22::/64 -d ff00::/8 -m comment --comment "leno default" -j RETURN
-A LENO-POSTROUTING -s fd00:5:0:22::/64 -d fe80::/10 -m comment --comment "leno default" -j RETURN
-A LENO-POSTROUTING -s fd00:5:0:22::/64 -m comment --comment "leno default" -j MASQUERADE
-A LENO-FORWARD -s fd00:5::/48 -m comment --comment "leno default" -j ACCEPT
-A LENO-FORWARD -d fd00:5::/48 -i leno-default -m comment --comment "leno default" -j ACCEPT
-A LENO-FORWARD -d fd00:5::/48 -i leno-default~b -m comment --comment "leno default" -j ACCEPT
-A LENO-FORWARD -d fd00:5::/48 -m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment "leno default" -j ACCEPT
-A LENO-FORWARD -d fd00:5::/48 -m conntrack --ctstate DNAT -m comment --comment "leno default" -j ACCEPT
`},
		{"nothing asked for", none, v4, true, true, "\n"},
		{"no lease yet: no masquerading", unleased, v4, true, true, `
-A LENO-FORWARD -s 10.6.0.0/16 -m comment --comment "leno b-2.x" -j ACCEPT
-A LENO-FORWARD -d 10.6.0.0/16 -m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment "leno b-2.x" -j ACCEPT
-A LENO-FORWARD -d 10.6.0.0/16 -m conntrack --ctstate DNAT -m comment --comment "leno b-2.x" -j ACCEPT
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := "\n" + dump(render(desiredRules(State{RandomFully: tt.asked, Networks: tt.networks}).family(tt.v6), tt.known))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestChange(t *testing.T) {
	want := map[string][]netfilter.Rule{chainForward: {
		{"-A", chainForward, "-s", "10.5.0.0/16", "-j", "ACCEPT"}, {"-A", chainForward, "-d", "10.5.0.0/16", "-j", "ACCEPT"}}}
	const right = `:FORWARD DROP [0:0]
:LENO-FORWARD - [0:0]
-A FORWARD -j LENO-FORWARD
-A FORWARD -i eth0 -j DROP
-A LENO-FORWARD -s 10.5.0.0/16 -j ACCEPT
-A LENO-FORWARD -d 10.5.0.0/16 -j ACCEPT
`
	const fill = `:LENO-FORWARD - [0:0]
-A LENO-FORWARD -s 10.5.0.0/16 -j ACCEPT
-A LENO-FORWARD -d 10.5.0.0/16 -j ACCEPT
`
	const ours = ":LENO-FORWARD - [0:0]\n-A LENO-FORWARD -s 10.5.0.0/16 -j ACCEPT\n-A LENO-FORWARD -d 10.5.0.0/16 -j ACCEPT\n"
	const jump, away = "-A FORWARD -j LENO-FORWARD\n", "-D FORWARD -j LENO-FORWARD\n"
	const docker = ":DOCKER-USER - [0:0]\n:DOCKER-FORWARD - [0:0]\n"
	const outOfPlace = "a misplaced jump in FORWARD to LENO-FORWARD"
	for _, tt := range []struct {
		name, saved string
		want        map[string][]netfilter.Rule
		change      string
		wrong       string
	}{
		{"all agrees", right, want, "", ""},
		{"words quoted by another version", strings.Replace(right, "ACCEPT\n", "\"ACCEPT\"\n", 1), want, "", ""},
		{"nothing there, nothing wanted", ":FORWARD DROP [0:0]\n", nil, "", ""},
		{"nothing there", ":FORWARD DROP [0:0]\n", want, fill + "-I FORWARD 1 -j LENO-FORWARD\n", "no chain LENO-FORWARD; no jump in FORWARD to LENO-FORWARD"},
		{"flushed", ":FORWARD DROP [0:0]\n:LENO-FORWARD - [0:0]\n-A FORWARD -j LENO-FORWARD\n", want, fill, "other rules in LENO-FORWARD"},
		{"order of rules", strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(right, "-s 10", "-x 10"), "-d 10", "-s 10"), "-x 10", "-d 10"), want, fill,
			"other rules in LENO-FORWARD"},
		{"a rule too many", right + "-A LENO-FORWARD -j DROP\n", want, fill, "other rules in LENO-FORWARD"},
		{"the jump is gone", strings.Replace(right, "-A FORWARD -j LENO-FORWARD\n", "", 1), want, "-I FORWARD 1 -j LENO-FORWARD\n",
			"no jump in FORWARD to LENO-FORWARD"},
		{"two jumps", right + "-A FORWARD -j LENO-FORWARD\n", want, away, outOfPlace},
		{"another kind of jump, with a comment", right + `-A INPUT -m comment --comment "it's \"ours\"" -g LENO-FORWARD` + "\n", want,
			`-D INPUT -m comment --comment "it's \"ours\"" -g LENO-FORWARD` + "\n", "a misplaced jump in INPUT to LENO-FORWARD"},
		{"leftovers of another version", right + ":LENO-OLD - [0:0]\n:LENO-OLDER - [0:0]\n-A FORWARD -j LENO-OLD\n-A LENO-OLD -j LENO-OLDER\n", want,
			"-D FORWARD -j LENO-OLD\n-F LENO-OLD\n-F LENO-OLDER\n-X LENO-OLD\n-X LENO-OLDER\n",
			"a misplaced jump in FORWARD to LENO-OLD; a chain LENO-OLD; a chain LENO-OLDER"},
		{"removed", right, nil, "-D FORWARD -j LENO-FORWARD\n-F LENO-FORWARD\n-X LENO-FORWARD\n",
			"a misplaced jump in FORWARD to LENO-FORWARD; a chain LENO-FORWARD"},

		{"Docker started first", docker + ours + "-A FORWARD -j DOCKER-USER\n-A FORWARD -j DOCKER-FORWARD\n", want,
			"-I FORWARD 2 -j LENO-FORWARD\n", "no jump in FORWARD to LENO-FORWARD"},
		{"Docker started later", docker + ours + "-A FORWARD -j DOCKER-USER\n-A FORWARD -j DOCKER-FORWARD\n" + jump, want,
			away + "-I FORWARD 2 -j LENO-FORWARD\n", outOfPlace},
		{"behind DOCKER-USER", docker + ours + "-A FORWARD -j DOCKER-USER\n" + jump + "-A FORWARD -j DOCKER-FORWARD\n", want, "", ""},
		{"before DOCKER-USER", docker + ours + jump + "-A FORWARD -j DOCKER-USER\n-A FORWARD -j DOCKER-FORWARD\n", want, "", ""},
		{"behind a rule that goes to a chain", ":ufw-x - [0:0]\n" + ours + "-A FORWARD -i eth0 -g ufw-x\n" + jump, want,
			away + "-I FORWARD 1 -j LENO-FORWARD\n", outOfPlace},
		{"behind the operator's own rules", ":ufw-x - [0:0]\n" + ours + "-A FORWARD -i eth0 -j DROP\n-A FORWARD -j LOG\n" + jump + "-A FORWARD -j ufw-x\n", want, "", ""},
		{"missing among the operator's own rules", ":ufw-x - [0:0]\n" + ours + "-A FORWARD -i eth0 -j DROP\n-A FORWARD -j ufw-x\n", want,
			"-I FORWARD 2 -j LENO-FORWARD\n", "no jump in FORWARD to LENO-FORWARD"},
		{"twice, on both sides", docker + ours + jump + "-A FORWARD -j DOCKER-FORWARD\n" + jump, want,
			away + away + "-I FORWARD 1 -j LENO-FORWARD\n", outOfPlace + "; " + outOfPlace},
		{"behind a chain of an older version", ":LENO-OLD - [0:0]\n" + ours + "-A FORWARD -j LENO-OLD\n" + jump, want,
			"-D FORWARD -j LENO-OLD\n" + away + "-I FORWARD 1 -j LENO-FORWARD\n-F LENO-OLD\n-X LENO-OLD\n",
			"a misplaced jump in FORWARD to LENO-OLD; " + outOfPlace + "; a chain LENO-OLD"},
	} {
		t.Run(tt.name, func(t *testing.T) { checkChange(t, tableFilter, tt.saved, tt.want, tt.change, tt.wrong) })
	}
}

// Packets within the overlay keep their source whatever Docker masquerades, and
// the operator's own rewriting goes first for all others.
func TestChangePostrouting(t *testing.T) {
	want := map[string][]netfilter.Rule{
		chainOverlay: {{"-A", chainOverlay, "-d", "10.5.0.0/16", "-j", "ACCEPT"}},
		chainMasq:    {{"-A", chainMasq, "-j", "MASQUERADE"}},
	}
	const ours = ":LENO-OVERLAY - [0:0]\n:LENO-POSTROUTING - [0:0]\n-A LENO-OVERLAY -d 10.5.0.0/16 -j ACCEPT\n-A LENO-POSTROUTING -j MASQUERADE\n"
	const overlay, masq = "-A POSTROUTING -j LENO-OVERLAY\n", "-A POSTROUTING -j LENO-POSTROUTING\n"
	const docker, snat = "-A POSTROUTING -s 10.5.34.0/24 ! -o docker0 -j MASQUERADE\n", "-A POSTROUTING -o eth1 -j SNAT --to-source 192.0.2.9\n"
	const missing, outOfPlace = "no jump in POSTROUTING to ", "a misplaced jump in POSTROUTING to LENO-OVERLAY"
	for _, tt := range []struct{ name, saved, change, wrong string }{
		{"right", ours + overlay + docker + snat + masq, "", ""},
		{"behind the operator's SNAT", ours + snat + overlay + masq, "", ""},
		{"before it", ours + overlay + masq + snat, "", ""},
		{"no jumps", ours, "-I POSTROUTING 1 -j LENO-OVERLAY\n" + masq, missing + "LENO-OVERLAY; " + missing + "LENO-POSTROUTING"},
		{"no jumps, the operator's SNAT", ours + snat + docker, "-I POSTROUTING 2 -j LENO-OVERLAY\n" + masq, missing + "LENO-OVERLAY; " + missing + "LENO-POSTROUTING"},
		{"Docker started later", ours + docker + overlay + masq, "-D POSTROUTING -j LENO-OVERLAY\n-I POSTROUTING 1 -j LENO-OVERLAY\n", outOfPlace},
		{"behind another program's chain", ":KUBE - [0:0]\n" + ours + "-A POSTROUTING -j KUBE\n" + overlay + masq,
			"-D POSTROUTING -j LENO-OVERLAY\n-I POSTROUTING 1 -j LENO-OVERLAY\n", outOfPlace},
		{"the wrong way round", ours + masq + overlay, "-D POSTROUTING -j LENO-OVERLAY\n-I POSTROUTING 1 -j LENO-OVERLAY\n", outOfPlace},
	} {
		t.Run(tt.name, func(t *testing.T) { checkChange(t, tableNAT, tt.saved, want, tt.change, tt.wrong) })
	}
}

func checkChange(t *testing.T, name, saved string, want map[string][]netfilter.Rule, input, wrong string) {
	t.Helper()
	tables, err := netfilter.ParseSave("# a comment\n*" + name + "\n" + saved + "COMMIT\n*raw\nCOMMIT\n")
	if err != nil {
		t.Fatal(err)
	}
	if input != "" {
		input = "*" + name + "\n" + input + "COMMIT\n"
	}
	got := change(name, tables[name], want)
	if diff := cmp.Diff([]string{input, wrong}, []string{got.input, strings.Join(got.wrong, "; ")}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// FuzzChange checks that no listing stops a change.
func FuzzChange(f *testing.F) {
	f.Add("*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -m comment --comment \"a \\\" b\" -j LENO-X\nCOMMIT\n")
	f.Fuzz(func(t *testing.T, text string) {
		tables, err := netfilter.ParseSave(text)
		if err != nil {
			return
		}
		for name, table := range tables {
			change(name, table, nil)
		}
	})
}
