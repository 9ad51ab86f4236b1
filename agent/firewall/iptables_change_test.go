package firewall

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// two networks, the first of both families.
func two() []Network {
	return []Network{
		{Name: "default", Pools: prefixes("10.5.0.0/16", "fd00:5::/48"), Subnets: prefixes("10.5.34.0/24", "fd00:5:0:22::/64"), IPMasq: true, Forward: true},
		{Name: "b-2.x", Pools: prefixes("10.6.0.0/16"), Subnets: prefixes("10.6.1.0/24"), IPMasq: true, Forward: true},
	}
}

func dump(rules map[string][]arguments) string {
	var out strings.Builder
	for _, chain := range []string{chainMasq, chainForward} {
		for _, r := range rules[chain] {
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
		name        string
		networks    []Network
		v6          bool
		randomFully bool
		want        string
	}{
		{"IPv4", two(), v4, true, `
-A LENO-POSTROUTING -s 10.5.34.0/24 -d 10.5.0.0/16 -m comment --comment "leno default" -j RETURN
-A LENO-POSTROUTING -s 10.5.34.0/24 -d 224.0.0.0/4 -m comment --comment "leno default" -j RETURN
-A LENO-POSTROUTING -s 10.5.34.0/24 -m comment --comment "leno default" -j MASQUERADE --random-fully
-A LENO-POSTROUTING -s 10.6.1.0/24 -d 10.6.0.0/16 -m comment --comment "leno b-2.x" -j RETURN
-A LENO-POSTROUTING -s 10.6.1.0/24 -d 224.0.0.0/4 -m comment --comment "leno b-2.x" -j RETURN
-A LENO-POSTROUTING -s 10.6.1.0/24 -m comment --comment "leno b-2.x" -j MASQUERADE --random-fully
-A LENO-FORWARD -s 10.5.0.0/16 -m comment --comment "leno default" -j ACCEPT
-A LENO-FORWARD -d 10.5.0.0/16 -m comment --comment "leno default" -j ACCEPT
-A LENO-FORWARD -s 10.6.0.0/16 -m comment --comment "leno b-2.x" -j ACCEPT
-A LENO-FORWARD -d 10.6.0.0/16 -m comment --comment "leno b-2.x" -j ACCEPT
`},
		{"IPv6, an old iptables", two(), v6, false, `
-A LENO-POSTROUTING -s fd00:5:0:22::/64 -d fd00:5::/48 -m comment --comment "leno default" -j RETURN
-A LENO-POSTROUTING -s fd00:5:0:22::/64 -d ff00::/8 -m comment --comment "leno default" -j RETURN
-A LENO-POSTROUTING -s fd00:5:0:22::/64 -m comment --comment "leno default" -j MASQUERADE
-A LENO-FORWARD -s fd00:5::/48 -m comment --comment "leno default" -j ACCEPT
-A LENO-FORWARD -d fd00:5::/48 -m comment --comment "leno default" -j ACCEPT
`},
		{"nothing asked for", none, v4, true, "\n"},
		{"no lease yet: no masquerading", unleased, v4, true, `
-A LENO-FORWARD -s 10.6.0.0/16 -m comment --comment "leno b-2.x" -j ACCEPT
-A LENO-FORWARD -d 10.6.0.0/16 -m comment --comment "leno b-2.x" -j ACCEPT
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := "\n" + dump(render(wanted(tt.networks).of(tt.v6), tt.randomFully))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestChange(t *testing.T) {
	forward := hooks()[1]
	want := []arguments{{"-A", chainForward, "-s", "10.5.0.0/16", "-j", "ACCEPT"}, {"-A", chainForward, "-d", "10.5.0.0/16", "-j", "ACCEPT"}}
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
	for _, tt := range []struct {
		name, saved string
		want        []arguments
		change      string
	}{
		{"all agrees", right, want, ""},
		{"words quoted by another version", strings.Replace(right, "ACCEPT\n", "\"ACCEPT\"\n", 1), want, ""},
		{"nothing there, nothing wanted", ":FORWARD DROP [0:0]\n", nil, ""},
		{"nothing there", ":FORWARD DROP [0:0]\n", want, fill + "-I FORWARD 1 -j LENO-FORWARD\n"},
		{"flushed", ":FORWARD DROP [0:0]\n:LENO-FORWARD - [0:0]\n-A FORWARD -j LENO-FORWARD\n", want, fill},
		{"order of rules", strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(right, "-s 10", "-x 10"), "-d 10", "-s 10"), "-x 10", "-d 10"), want, fill},
		{"a rule too many", right + "-A LENO-FORWARD -j DROP\n", want, fill},
		{"the jump is gone", strings.Replace(right, "-A FORWARD -j LENO-FORWARD\n", "", 1), want, "-I FORWARD 1 -j LENO-FORWARD\n"},
		{"two jumps", right + "-A FORWARD -j LENO-FORWARD\n", want, "-D FORWARD -j LENO-FORWARD\n"},
		{"another kind of jump, with a comment", right + `-A INPUT -m comment --comment "it's \"ours\"" -g LENO-FORWARD` + "\n", want,
			`-D INPUT -m comment --comment "it's \"ours\"" -g LENO-FORWARD` + "\n"},
		{"leftovers of another version", right + ":LENO-OLD - [0:0]\n:LENO-OLDER - [0:0]\n-A FORWARD -j LENO-OLD\n-A LENO-OLD -j LENO-OLDER\n", want,
			"-D FORWARD -j LENO-OLD\n-F LENO-OLD\n-F LENO-OLDER\n-X LENO-OLD\n-X LENO-OLDER\n"},
		{"removed", right, nil, "-D FORWARD -j LENO-FORWARD\n-F LENO-FORWARD\n-X LENO-FORWARD\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tables, err := parseSave("# a comment\n*filter\n" + tt.saved + "COMMIT\n*raw\nCOMMIT\n")
			if err != nil {
				t.Fatal(err)
			}
			got := change(tables["filter"], forward, tt.want)
			if tt.change != "" {
				tt.change = "*filter\n" + tt.change + "COMMIT\n"
			}
			if diff := cmp.Diff(tt.change, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseSaveRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"cut short":          "*nat\n:POSTROUTING ACCEPT [0:0]\n",
		"outside of a table": "-A POSTROUTING -j X\n",
		"not a rule":         "*nat\nhello\nCOMMIT\n",
		"open quote":         "*nat\n-A X --comment \"a\nCOMMIT\n",
		"table in a table":   "*nat\n*filter\nCOMMIT\n",
	} {
		if tables, err := parseSave(text); err == nil {
			t.Errorf("%s: got %v", name, tables)
		}
	}
}

func TestRuleRoundTrip(t *testing.T) {
	for _, r := range []arguments{{"-A", "X"}, {"-A", "X", "", "a b", `q"u\o'te`, "10.0.0.0/8"}} {
		got, err := split(r.String())
		if diff := cmp.Diff(r, got); err != nil || diff != "" {
			t.Errorf("%v: %v %s", r, err, diff)
		}
	}
}

func FuzzParseSave(f *testing.F) {
	f.Add("*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -m comment --comment \"a \\\" b\" -j LENO-X\nCOMMIT\n")
	f.Fuzz(func(t *testing.T, text string) {
		tables, err := parseSave(text)
		if err != nil {
			return
		}
		for _, h := range hooks() {
			change(tables[h.table], h, nil)
		}
	})
}
