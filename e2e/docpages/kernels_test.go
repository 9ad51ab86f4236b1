package docpages

import (
	"regexp"
	"testing"
)

// TestDocumentedKernel compares the oldest kernel that the page "What it needs" names with the
// oldest one that TestKernels of e2e/vm boots.
func TestDocumentedKernel(t *testing.T) {
	t.Parallel()
	booted := regexp.MustCompile(`(?m)^names=\(([^ ]+) .+\)$`).FindStringSubmatch(Source(t, "tools/vm-kernel"))
	named := regexp.MustCompile(`The oldest kernel that all backends were tested with is Linux ([0-9.]+) `).
		FindStringSubmatch(Source(t, Path("intro/index")))
	if booted == nil || named == nil || booted[1] != named[1] {
		t.Errorf("oldest kernel in tools/vm-kernel: %q, on the page: %q", booted, named)
	}
}
