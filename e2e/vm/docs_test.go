package vm

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/lenonet/leno/e2e/docpages"
)

// TestDocumentedKernels compares the kernels that the page "What it needs" names with those that
// TestKernels boots. The number of the newest one changes with Debian's backports.
func TestDocumentedKernels(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../tools/vm-kernel")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?m)^names=\((.+)\)$`).FindStringSubmatch(string(text))
	page := regexp.MustCompile(`Tested with Linux (.+?)\. `).FindStringSubmatch(docpages.Source(t, "website/content/docs/intro/index.mdx"))
	if list == nil || page == nil {
		t.Fatalf("kernels in tools/vm-kernel: %q, on the page: %q", list, page)
	}
	booted := strings.Fields(list[1])
	named := strings.Split(strings.ReplaceAll(page[1], " and ", ", "), ", ")
	if len(booted) != len(named) {
		t.Fatalf("the page names %q, TestKernels boots %q", named, booted)
	}
	for i, name := range booted {
		if name != "newest" && named[i] != name {
			t.Errorf("the page names %s, TestKernels boots %s", named[i], name)
		}
	}
}
