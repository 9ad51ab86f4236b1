package transition

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestLinks(t *testing.T) {
	for options, want := range map[string][]string{
		``:                                     {"leno-n"},
		`{}`:                                   {"leno-n"},
		`{"device":"b"}`:                       {"leno-n~b"},
		`{"device":"c"}`:                       {"leno-n"},
		`{"next":{"type":"new","device":"b"}}`: {"leno-n", "leno-n~b"},
		`{"device":"b","next":{"type":"new"}}`: {"leno-n~b", "leno-n"},
	} {
		got := Links("n", "old", json.RawMessage(options))
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", options, got, want)
		}
	}
}
