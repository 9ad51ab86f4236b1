// Package docpages reads the documentation for tests. Its own tests start no program, so that Go runs them only after
// changes of the pages or of the code.
package docpages

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Root is the top of the source tree, relative to a folder below e2e.
const Root = "../../"

// Dir is the directory of the site's pages.
const Dir = "website/content/docs/"

// Path returns the path of a page, relative to the top of the source tree.
func Path(name string) string { return Dir + name + ".mdx" }

// Source returns the content of a file of the source tree.
func Source(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(Root + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Rows returns the rows of all tables below a heading of a page, cell by cell and without the table
// heads. An escaped \| in a cell becomes |.
func Rows(t *testing.T, path, heading string) [][]string {
	t.Helper()
	var out [][]string
	current, head := "", true
	for _, line := range strings.Split(Source(t, path), "\n") {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			current = name
		}
		if current != heading || !strings.HasPrefix(line, "|") {
			head = true
			continue
		}
		if head || strings.HasPrefix(line, "|-") {
			head = false
			continue
		}
		cells := strings.Split(strings.ReplaceAll(strings.Trim(line, "|"), `\|`, "\x00"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(strings.ReplaceAll(cells[i], "\x00", "|"))
		}
		out = append(out, cells)
	}
	if len(out) == 0 {
		t.Fatalf("%s: no table below %q", path, heading)
	}
	return out
}

var code = regexp.MustCompile("`([^`]+)`")

// Codes returns the words in backticks.
func Codes(cell string) []string {
	var out []string
	for _, m := range code.FindAllStringSubmatch(cell, -1) {
		out = append(out, m[1])
	}
	return out
}

// Found returns the first group of every match of a pattern in a source file, sorted.
func Found(t *testing.T, path, pattern string) []string {
	t.Helper()
	set := map[string]bool{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(Source(t, path), -1) {
		set[m[1]] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// Unit returns the settings of files in examples/systemd, the unit and its drop-ins. A list that is
// spread over several lines is joined.
func Unit(t *testing.T, files ...string) map[string]string {
	t.Helper()
	lists := []string{"SystemCallFilter", "AmbientCapabilities", "CapabilityBoundingSet"}
	out := map[string]string{}
	for _, file := range files {
		for i, line := range strings.Split(Source(t, "examples/systemd/"+file), "\n") {
			key, value, ok := strings.Cut(line, "=")
			switch {
			case line == "", strings.HasPrefix(line, "#"), strings.HasPrefix(line, "["):
			case !ok || out[key] != "" && !slices.Contains(lists, key):
				t.Errorf("%s, line %d: %q", file, i+1, line)
			default:
				out[key] = strings.TrimSpace(out[key] + " " + value)
			}
		}
	}
	return out
}
