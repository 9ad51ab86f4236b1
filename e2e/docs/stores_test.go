package docs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/e2e/docpages"
	"github.com/lenonet/leno/registry/registrytest"
)

// TestDocumentationTableOfStores compares the table of conformance results with the suite. That all of its tests pass
// with every store is what the packages of the stores test.
func TestDocumentationTableOfStores(t *testing.T) {
	path := docpages.Path("concepts/stores")
	var is []string
	for _, row := range docpages.Rows(t, path, "Conformance") {
		name, _, _ := strings.Cut(row[0], ":")
		for _, cell := range row[1:] {
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
