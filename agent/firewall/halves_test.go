package firewall

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Two families share one table: what one of them is told keeps the other's
// rules, also those that an earlier process left.
func TestHalves(t *testing.T) {
	want := wanted(State{Networks: two()[:1]})
	names := func(f *fakeKind) string {
		var out []string
		for _, r := range f.has.forward {
			out = append(out, r.src.String()+r.dst.String())
		}
		return strings.NewReplacer("invalid Prefix", "").Replace(strings.Join(out, " "))
	}
	const four, six = "10.5.0.0/16 10.5.0.0/16", "fd00:5::/48 fd00:5::/48"
	for _, tt := range []struct {
		name  string
		steps []string // 4 or 6, + or -
		want  []string
	}{
		{"both", []string{"4+", "6+"}, []string{four + " " + six, four + " " + six}},
		{"one of them elsewhere", []string{"4+", "6-"}, []string{four + " " + six, four}},
		{"neither: nothing goes before both were told", []string{"4-", "6-"}, []string{"left", ""}},
		{"the other one", []string{"4-", "6+"}, []string{"left", six}},
		{"there and back", []string{"4+", "6+", "4-", "6-", "6+"}, []string{four + " " + six, four + " " + six, six, "", six}},
		{"one that cannot be told", []string{"4+", "4+"}, []string{four + " " + six, four + " " + six}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var log, got []string
			whole := &fakeKind{name: kindNFTables, log: &log}
			whole.has.forward = []rule{{network: "left"}}
			v4, v6 := halves(whole)
			v4.expect(want.of(false))
			v6.expect(want.of(true))
			for _, step := range tt.steps {
				h, rules := v4, want.of(false)
				if step[0] == '6' {
					h, rules = v6, want.of(true)
				}
				if step[1] == '-' {
					rules.exempt, rules.masquerade, rules.forward = nil, nil, nil
				}
				if _, err := h.apply(t.Context(), rules); err != nil {
					t.Fatal(err)
				}
				now := names(whole)
				if len(whole.has.forward) > 0 && whole.has.forward[0].network == "left" {
					now = "left"
				}
				got = append(got, now)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
