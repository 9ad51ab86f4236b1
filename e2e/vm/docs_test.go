package vm

import (
	"os"
	"regexp"
	"testing"

	"github.com/lenonet/leno/e2e/docpages"
)

// TestDocumentedKernel compares the oldest kernel that the page "What it needs" names with the
// oldest one that TestKernels boots.
func TestDocumentedKernel(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../tools/vm-kernel")
	if err != nil {
		t.Fatal(err)
	}
	booted := regexp.MustCompile(`(?m)^names=\(([^ ]+) .+\)$`).FindStringSubmatch(string(text))
	named := regexp.MustCompile(`The oldest kernel that all backends were tested with is Linux ([0-9.]+) `).
		FindStringSubmatch(docpages.Source(t, "website/content/docs/intro/index.mdx"))
	if booted == nil || named == nil || booted[1] != named[1] {
		t.Errorf("oldest kernel in tools/vm-kernel: %q, on the page: %q", booted, named)
	}
}
