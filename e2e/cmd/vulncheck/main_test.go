package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// config is the first message of govulncheck.
const config = `{"config": {"protocol_version": "v1.0.0"}}`

func TestRead(t *testing.T) {
	modules, standard, err := read(strings.NewReader(config + `
{"finding": {"osv": "GO-1", "fixed_version": "v1.2.0", "trace": [{"module": "example.com/a", "version": "v1.0.0", "function": "F"}]}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.2.0", "trace": [{"module": "example.com/a", "version": "v1.0.0", "function": "G"}]}}
{"finding": {"osv": "GO-2", "trace": [{"module": "example.com/b", "version": "v2.0.0", "function": "F"}]}}
{"finding": {"osv": "GO-3", "fixed_version": "v1.1.0", "trace": [{"module": "example.com/c", "version": "v1.0.0"}]}}
{"finding": {"osv": "GO-4", "fixed_version": "v1.26.9", "trace": [{"module": "stdlib", "version": "v1.26.8", "function": "F"}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"GO-1 in example.com/a v1.0.0, fixed in v1.2.0", "GO-2 in example.com/b v2.0.0, not fixed"}, modules); diff != "" {
		t.Errorf("modules (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"GO-4 in stdlib v1.26.8, fixed in v1.26.9"}, standard); diff != "" {
		t.Errorf("standard library (-want +got):\n%s", diff)
	}
}

// TestReadFailed reads the output of a govulncheck that did not finish.
func TestReadFailed(t *testing.T) {
	for _, text := range []string{"", config + `{"finding": `} {
		if _, _, err := read(strings.NewReader(text)); err == nil {
			t.Errorf("%q is not an error", text)
		}
	}
}
