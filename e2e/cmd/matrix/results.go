package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// module is the prefix of the packages in results.
const module = "github.com/lenonet/leno/"

// packages are the columns of the table.
var packages = []struct{ path, title string }{
	{"registry/consul", "store"},
	{"e2e/store", "outages"},
	{"e2e/nomad", "Nomad"},
}

// pair is what ran with one version of Consul and one of Nomad.
type pair struct {
	consul, nomad string
	results       map[string]result // by path of the package
}

// result counts the tests of one package, each case of a test included.
type result struct {
	passed int
	failed []string // names
}

// readPair reads "CONSUL:NOMAD:FILE".
func readPair(arg string) (pair, error) {
	parts := strings.SplitN(arg, ":", 3)
	if len(parts) != 3 || slices.Contains(parts, "") {
		return pair{}, fmt.Errorf("%q is not CONSUL:NOMAD:FILE", arg)
	}
	f, err := os.Open(parts[2])
	if err != nil {
		return pair{}, err
	}
	defer f.Close()
	results, err := readResults(f)
	if err != nil {
		return pair{}, fmt.Errorf("%s: %w", parts[2], err)
	}
	return pair{consul: parts[0], nomad: parts[1], results: results}, nil
}

// readResults reads what `go test -json` printed. It is an error if a package of the table did not run, or if a test was
// skipped.
func readResults(r io.Reader) (map[string]result, error) {
	out := map[string]result{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e struct{ Action, Package, Test string }
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Test == "" {
			continue // output of a build, or about a package
		}
		path := strings.TrimPrefix(e.Package, module)
		result := out[path]
		switch e.Action {
		case "pass":
			result.passed++
		case "fail":
			result.failed = append(result.failed, e.Test)
		case "skip":
			return nil, fmt.Errorf("%s of %s was skipped", e.Test, path)
		default:
			continue
		}
		out[path] = result
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	for _, p := range packages {
		if r := out[p.path]; r.passed+len(r.failed) == 0 {
			return nil, fmt.Errorf("no test of %s ran", p.path)
		}
	}
	return out, nil
}

// String returns "12 passed", or what failed.
func (r result) String() string {
	text := fmt.Sprintf("%d passed", r.passed)
	if len(r.failed) > 0 {
		text += fmt.Sprintf(", %d failed: `%s`", len(r.failed), strings.Join(r.failed, "`, `"))
	}
	return text
}

// table returns the lines of the table.
func table(all []pair, now time.Time) string {
	var b strings.Builder
	b.WriteString("| Consul | Nomad |")
	for _, p := range packages {
		fmt.Fprintf(&b, " %s: `%s` |", p.title, p.path)
	}
	b.WriteString(" on |\n|---|---|" + strings.Repeat("---|", len(packages)+1) + "\n")
	for _, p := range all {
		fmt.Fprintf(&b, "| %s | %s |", p.consul, p.nomad)
		for _, column := range packages {
			fmt.Fprintf(&b, " %s |", p.results[column.path])
		}
		fmt.Fprintf(&b, " %s |\n", now.UTC().Format(time.DateOnly))
	}
	return b.String()
}

// replaceResults replaces the table in the section "Results" of a page.
func replaceResults(page, table string) (string, error) {
	const heading = "\n## Results\n"
	head, rest, ok := strings.Cut(page, heading)
	if !ok {
		return "", errors.New(`there is no section "Results"`)
	}
	lines := strings.SplitAfter(rest, "\n")
	isRow := func(line string) bool { return strings.HasPrefix(line, "|") }
	begin := slices.IndexFunc(lines, isRow)
	if begin < 0 {
		return "", errors.New(`there is no table in the section "Results"`)
	}
	end := begin
	for end < len(lines) && isRow(lines[end]) {
		end++
	}
	return head + heading + strings.Join(lines[:begin], "") + table + strings.Join(lines[end:], ""), nil
}
