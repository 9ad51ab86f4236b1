package datapath

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/e2e/docpages"
)

// TestDocumentationDrift checks that every fault of these tests is in the table with the words of
// the log, and that every other word in it is in the source.
func TestDocumentationDrift(t *testing.T) {
	var documented []string
	for _, row := range docpages.Rows(t, docpages.Path("operations/drift"), "") {
		documented = append(documented, docpages.Codes(row[0])...)
	}
	var told []string
	for _, f := range faults {
		told = append(told, f.says)
	}
	for _, f := range hostFaults {
		told = append(told, f.once)
	}
	// wireguard.TestDrift makes these faults with wg(8), for which the hosts of a lab are one.
	told = append(told, "peers were missing", "peers were changed", "foreign peers were there")
	told = append(told, "rules were missing", "foreign rules were there") // by kernel.TestPreferMain
	for i, says := range told {
		told[i], _, _ = strings.Cut(says, ":")
		if told[i] != "" && !slices.Contains(documented, told[i]) {
			t.Errorf("%q is not in the table", told[i])
		}
	}
	var code strings.Builder
	for _, pattern := range []string{"backend/*/*.go", "agent/*.go"} {
		paths, err := filepath.Glob(docpages.Root + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if !strings.HasSuffix(path, "_test.go") {
				code.WriteString(docpages.Source(t, strings.TrimPrefix(path, docpages.Root)))
			}
		}
	}
	for _, fault := range documented {
		if !slices.Contains(told, fault) && !strings.Contains(code.String(), `"`+fault+`"`) {
			t.Errorf("nothing says %q", fault)
		}
	}
}
