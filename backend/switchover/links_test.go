package switchover

import (
	"slices"
	"testing"
)

func TestLinks(t *testing.T) {
	for text, want := range map[string][]string{
		`{}`:                              {"leno-n"},
		`{"epoch":1}`:                     {"leno-n~b"},
		`{"next":{"type":"new"}}`:         {"leno-n", "leno-n~b"},
		`{"epoch":1,"next":{"type":"n"}}`: {"leno-n~b", "leno-n"},
		`{"epoch":2}`:                     {"leno-n"},
	} {
		if got := definition(t, "old", text).Links("n"); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
