package registry

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"testing"
)

// FuzzParts compares the scanner with encoding/json on all valid input.
func FuzzParts(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[]`, `null`, `7`, `"a,b"`, ` { "a" : 1 , "b\"}" : [ 1 , {"c":"]"} ] } `, `[1,"]",{"a":[]},-2e9,true]`,
		"{\"\\u0041\":\"\\\\\",\"\\\\\":\"\\\"\"}", "\t[\n[\r[]]]", `{"":""}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if !json.Valid(data) || bytes.ContainsRune(data, '\uFFFD') {
			return
		}
		got := map[string]string{}
		var names, values []string
		if err := parts(data, func(name string, value []byte) error {
			got[name] = string(value)
			names, values = append(names, name), append(values, string(value))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		switch bytes.TrimLeft(data, jsonSpace)[0] {
		case '{':
			var want map[string]json.RawMessage
			if err := json.Unmarshal(data, &want); err != nil {
				t.Fatal(err)
			}
			if len(want) != len(got) {
				t.Fatalf("members %q, want %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
			}
			for name, value := range want {
				if got[name] != string(value) {
					t.Errorf("member %q is %q, want %q", name, got[name], value)
				}
			}
		case '[':
			var want []json.RawMessage
			if err := json.Unmarshal(data, &want); err != nil {
				t.Fatal(err)
			}
			if len(want) != len(values) {
				t.Fatalf("%d elements, want %d", len(values), len(want))
			}
			for i, value := range want {
				if values[i] != string(value) || names[i] != "" {
					t.Errorf("element %d is %q (%q), want %q", i, values[i], names[i], value)
				}
			}
		default:
			if len(values) != 0 {
				t.Errorf("a value without parts has %q", values)
			}
		}
	})
}
