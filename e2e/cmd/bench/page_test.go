package main

import (
	"flag"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/e2e/lab"
)

// TestPage compares the page about the bench with the program: its options, the environment of
// commands, and the figures.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../../website/content/docs/performance/bench.mdx")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		name, body, _ := strings.Cut(section, "\n")
		sections[name] = body
	}

	var documented []string
	intro, _, _ := strings.Cut(string(text), "\n## ")
	for _, row := range regexp.MustCompile("(?m)^\\| (`-.*?) \\|").FindAllStringSubmatch(intro, -1) {
		for _, option := range regexp.MustCompile("`(-[a-z]+)`").FindAllStringSubmatch(row[1], -1) {
			documented = append(documented, option[1])
		}
	}
	var flags []string
	new(options).flags().VisitAll(func(f *flag.Flag) {
		if !slices.Contains([]string{"leno", "consul", "peers"}, f.Name) { // set by make
			flags = append(flags, "-"+f.Name)
		}
	})
	slices.Sort(documented)
	if diff := cmp.Diff(flags, documented); diff != "" {
		t.Errorf("options (-program +page):\n%s", diff)
	}

	addrs := [2][]netip.Addr{{netip.MustParseAddr("198.18.1.1")}, {netip.MustParseAddr("198.18.1.2")}}
	var told []string
	for _, variable := range new(peer).environment(0, &lab.Wire{Device: "wire0", MTU: 1500, Addrs: addrs}, "/tmp/leno-bench41c2d7/host-a/plain") {
		name, value, _ := strings.Cut(variable, "=")
		told = append(told, "| `"+name+"` | `"+value+"` |")
	}
	for _, row := range told {
		if !strings.Contains(sections["Other overlays"], row) {
			t.Errorf("the page lacks %q", row)
		}
	}
	if got := strings.Count(sections["Other overlays"], "| `LENO_BENCH_"); got != len(told) {
		t.Errorf("%d variables on the page, commands get %d", got, len(told))
	}

	shown := strings.TrimSpace(sections["Figures"])
	if !strings.HasPrefix(shown, "These figures are of 20") {
		t.Errorf("the section of figures is not what -markdown prints: %.100q", shown)
	}
	var want []string
	for _, f := range figures() {
		want = append(want, f.Name+", "+f.Unit)
	}
	table, _, _ := strings.Cut(shown[strings.Index(shown, "\n|")+1:], "\n\n")
	rows := strings.Split(table, "\n")
	for _, name := range known() {
		if !strings.Contains(rows[0], "| "+name+", MTU ") {
			t.Errorf("the figures are without %s", name)
		}
	}
	var got []string
	for _, row := range rows[2:] {
		cells := strings.Split(row, " | ")
		got = append(got, strings.TrimPrefix(cells[0], "| "))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("figures (-program +page):\n%s", diff)
	}
}
