package netfilter

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseSaveRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"cut short":          "*nat\n:POSTROUTING ACCEPT [0:0]\n",
		"outside of a table": "-A POSTROUTING -j X\n",
		"not a rule":         "*nat\nhello\nCOMMIT\n",
		"open quote":         "*nat\n-A X --comment \"a\nCOMMIT\n",
		"table in a table":   "*nat\n*filter\nCOMMIT\n",
	} {
		if tables, err := ParseSave(text); err == nil {
			t.Errorf("%s: got %v", name, tables)
		}
	}
}

func TestRuleRoundTrip(t *testing.T) {
	for _, r := range []Rule{{"-A", "X"}, {"-A", "X", "", "a b", `q"u\o'te`, "10.0.0.0/8"}} {
		got, err := splitWords(r.String())
		if diff := cmp.Diff(r, got); err != nil || diff != "" {
			t.Errorf("%v: %v %s", r, err, diff)
		}
	}
}

func FuzzParseSave(f *testing.F) {
	f.Add("*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -m comment --comment \"a \\\" b\" -j LENO-X\nCOMMIT\n")
	f.Fuzz(func(t *testing.T, text string) {
		tables, err := ParseSave(text)
		if err != nil {
			return
		}
		for _, table := range tables {
			for _, r := range table.Rules {
				if words, err := splitWords(r.String()); err != nil || !slices.Equal(words, r) {
					t.Errorf("%q is read back as %q, %v", r, words, err)
				}
			}
		}
	})
}
