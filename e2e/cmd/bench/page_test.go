package main

import (
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/e2e/lab"
)

// section returns a section of a page about performance.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	text, err := os.ReadFile("../../../website/content/docs/performance/" + page + ".mdx")
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(text), "\n## "+heading+"\n")
	body, _, _ = strings.Cut(body, "\n## ")
	return body
}

// TestPage compares the pages about the bench with the program: the options that they name, the environment of
// commands, and the names of the figures.
func TestPage(t *testing.T) {
	page := section(t, "bench", "Packets")
	flags := new(options).flags()
	documented := regexp.MustCompile("`-([a-z]+)").FindAllStringSubmatch(page, -1)
	if len(documented) == 0 {
		t.Error("the page names no options")
	}
	for _, option := range documented {
		if flags.Lookup(option[1]) == nil {
			t.Errorf("the page names -%s, which the program does not have", option[1])
		}
	}

	addrs := [2][]netip.Addr{{netip.MustParseAddr("198.18.1.1")}, {netip.MustParseAddr("198.18.1.2")}}
	var told []string
	for _, variable := range new(peer).environment(0, &lab.Wire{Device: "wire0", MTU: 1500, Addrs: addrs}, "/tmp/leno-bench41c2d7/host-a/plain") {
		name, value, _ := strings.Cut(variable, "=")
		told = append(told, "| `"+name+"` | `"+value+"` |")
	}
	for _, row := range told {
		if !strings.Contains(page, row) {
			t.Errorf("the page lacks %q", row)
		}
	}
	if got := strings.Count(page, "| `LENO_BENCH_"); got != len(told) {
		t.Errorf("%d variables on the page, commands get %d", got, len(told))
	}

	var want []string
	for _, f := range figures() {
		want = append(want, f.Name+", "+f.Unit)
	}
	rows := regexp.MustCompile(`(?m)^\| (.*?) \| .*$`).FindAllStringSubmatch(section(t, "measurements", "Packets"), -1)
	if len(rows) < 8 {
		t.Fatalf("only %d rows of figures", len(rows))
	}
	for _, name := range known() {
		if !strings.Contains(rows[0][0], "| "+name+", MTU ") {
			t.Errorf("the figures are without %s", name)
		}
	}
	for _, row := range rows[1:] {
		if !slices.Contains(want, row[1]) {
			t.Errorf("the bench has no figure %q", row[1])
		}
	}
}
