package docpages

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// compared lists the rows that every comparison has, in order.
var compared = [...]string{"Datapath", "Control plane and store", "Identity of a host", "Encryption", "Policy",
	"Nomad, Docker, Kubernetes", "When the store is down", "What it needs"}

// TestDocumentationTablesCompared checks that the pages that compare leno with other networks have
// tables with the same rows, say the same about leno, say when the other network is the better
// choice, and name their sources.
func TestDocumentationTablesCompared(t *testing.T) {
	const dir = Dir + "intro/vs/"
	entries, err := os.ReadDir(Root + dir)
	if err != nil || len(entries) != 7 {
		t.Fatalf("%d pages, %v", len(entries), err)
	}
	index := Source(t, dir+"index.mdx")
	var ours []string // the leno column of the first page
	for _, e := range entries {
		if e.Name() == "index.mdx" {
			continue
		}
		text := Source(t, dir+e.Name())
		var rows, leno []string
		for line := range strings.Lines(text) {
			cells := strings.Split(strings.TrimSpace(line), " | ")
			name, isRow := strings.CutPrefix(cells[0], "| ")
			if !isRow || len(cells) != 3 || name == "" || name == "|" {
				continue
			}
			if other := strings.TrimSuffix(cells[2], " |"); cells[1] == "" || other == "" || other == cells[2] {
				t.Errorf("%s: row %q is not whole", e.Name(), name)
			}
			rows, leno = append(rows, name), append(leno, cells[1])
		}
		rows = slices.DeleteFunc(rows, func(r string) bool { return strings.HasPrefix(r, "|") })
		if diff := cmp.Diff(compared[:], rows); diff != "" {
			t.Errorf("%s (-wanted +has):\n%s", e.Name(), diff)
		}
		if ours == nil {
			ours = leno
		}
		if diff := cmp.Diff(ours, leno); diff != "" {
			t.Errorf("%s says something else of leno than the first page:\n%s", e.Name(), diff)
		}
		for _, want := range []string{"is the better choice\n", "## When leno is\n", "## Sources\n", "](https://"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %q", e.Name(), strings.TrimSpace(want))
			}
		}
		if !strings.Contains(index, "("+e.Name()+")") {
			t.Errorf("index.mdx does not lead to %s", e.Name())
		}
	}
}
