package docpages

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDocumentationTableOfKubernetes compares the last column of the table with the cases of the tests that have a real
// API server: every case is named, and every named one exists.
func TestDocumentationTableOfKubernetes(t *testing.T) {
	path := Path("concepts/stores")
	named := map[string]bool{}
	for _, row := range Rows(t, path, "Conformance") {
		for _, name := range Codes(row[len(row)-1]) {
			named[name] = true
		}
	}
	want := map[string]bool{}
	for _, name := range Found(t, "registry/kubernetes/kubernetes_test.go", `(?m)^\t\t\{"([^"]+)", test\w+\},$`) {
		want[name] = true
	}
	if diff := cmp.Diff(want, named); diff != "" || len(want) < 10 {
		t.Errorf("%s (-cases +page):\n%s", path, diff)
	}
}
