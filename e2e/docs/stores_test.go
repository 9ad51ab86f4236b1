package docs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/e2e/docpages"
	"github.com/lenonet/leno/internal/testkit/registrytest"
)

// TestDocumentationTableOfStores compares the table of conformance results with the suite. That all of its tests pass
// with every store is what the packages of the stores test.
func TestDocumentationTableOfStores(t *testing.T) {
	path := docpages.Path("concepts/stores")
	var is []string
	for _, row := range docpages.Rows(t, path, "Conformance") {
		name, _, _ := strings.Cut(row[0], ":")
		for _, cell := range row[1 : len(row)-1] {
			is = append(is, fmt.Sprintf("%s: %s", name, cell))
		}
	}
	var want []string
	for _, g := range registrytest.Groups() {
		all := fmt.Sprintf("%s: %d of %d", g.Name, g.Tests, g.Tests)
		want = append(want, all, all, all, all)
	}
	if !slices.Equal(is, want) {
		t.Errorf("%s has %q, want %q", path, is, want)
	}
}

// TestDocumentationTableOfKubernetes compares the last column of the table with the cases of the tests that have a real
// API server: every case is named, and every named one exists.
func TestDocumentationTableOfKubernetes(t *testing.T) {
	path := docpages.Path("concepts/stores")
	named := map[string]bool{}
	for _, row := range docpages.Rows(t, path, "Conformance") {
		for _, name := range docpages.Codes(row[len(row)-1]) {
			named[name] = true
		}
	}
	want := map[string]bool{}
	for _, name := range docpages.Found(t, "registry/kubernetes/kubernetes_test.go", `(?m)^\t\t\{"([^"]+)", test\w+\},$`) {
		want[name] = true
	}
	if diff := cmp.Diff(want, named); diff != "" || len(want) < 10 {
		t.Errorf("%s (-cases +page):\n%s", path, diff)
	}
}
