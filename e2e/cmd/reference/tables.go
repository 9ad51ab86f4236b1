package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v2"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/telemetry"
)

// A table is generated into a page that people write, between two comments:
//
//	{/* make docs: metrics */}
//
//	| … |
//
//	{/* end */}
//
// The code determines all of a table that write returns. Of a table that keep returns, the code determines which rows
// there are and the cells with values, and people write the sentences in the page.
type table struct {
	name, page string
	write      func() (string, error)
	keep       func(rows) (rows, error)
}

// tables returns all tables in pages.
func (s *source) tables() []table {
	out := []table{
		{"options that need a restart", "configuration", restarts, nil},
		{"metrics", "operations/telemetry", metrics, nil},
		{"alerts", "operations/telemetry", nil, s.alerts},
		{"health checks", "operations/health", nil, healthChecks},
		{"kinds of events", "api/index", nil, s.eventKinds},
		{"packets that udp drops", "backends", nil, droppedPackets},
	}
	for _, block := range []string{"", "consul", "etcd", "kubernetes", "lease", "underlay", "firewall", "http", "telemetry", "network"} {
		name := strings.TrimSpace("options " + block)
		out = append(out, table{name, "configuration", s.blockOptions(block), nil})
	}
	for name, kind := range agent.Backends() {
		if options := backendOptions(kind.Normalize); len(options) > 0 {
			out = append(out, table{"options of " + name, "backends", nil, func(old rows) (rows, error) { return keepOptions(options, old) }})
		}
	}
	return out
}

// metrics returns the table of all metrics.
func metrics() (string, error) {
	var b strings.Builder
	b.WriteString("| metric | kind | labels | meaning |\n|---|---|---|---|\n")
	for _, m := range telemetry.Table() {
		labels := ""
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Exposed(), m.Kind, labels, m.Help)
	}
	return b.String(), nil
}

// alerts returns the table of the alerts for Prometheus, with their severities.
func (s *source) alerts(old rows) (rows, error) {
	text, err := s.file("examples/prometheus/leno.rules.yml")
	if err != nil {
		return nil, err
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert  string
				Labels struct{ Severity string }
			}
		}
	}
	if err := yaml.Unmarshal([]byte(text), &rules); err != nil {
		return nil, err
	}
	var names []string
	severities := map[string]string{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			names, severities[r.Alert] = append(names, r.Alert), r.Labels.Severity
		}
	}
	return old.update(names, 3, nil, func(name string, row []string) { row[1] = severities[name] })
}

// healthChecks returns the table of all checks: when each warns and is critical, and when it runs.
func healthChecks(old rows) (rows, error) {
	out, err := old.update(health.Names(), 4, nil, nil)
	for _, row := range out {
		if row[1] == "never" && row[2] == "never" {
			return nil, fmt.Errorf("%s never fails", row[0])
		}
	}
	return out, err
}

func (s *source) eventKinds(old rows) (rows, error) {
	var kinds []string
	for _, kind := range s.api.Components.Schemas["Event"].Value.Properties["kind"].Value.Enum {
		kinds = append(kinds, fmt.Sprint(kind))
	}
	return old.update(kinds, 2, nil, nil)
}

func droppedPackets(old rows) (rows, error) {
	return old.update(agent.Backends()["udp"].Drops, 2, nil, nil)
}

// An option of a backend has a default as it is written in a file.
type backendOption struct{ name, standard string }

// backendOptions returns the options of a backend, sorted.
func backendOptions(normalize func(json.RawMessage) (json.RawMessage, error)) (out []backendOption) {
	effective, err := normalize(nil)
	var options map[string]json.RawMessage
	if err != nil || json.Unmarshal(effective, &options) != nil {
		return nil
	}
	for name, value := range options {
		out = append(out, backendOption{name, string(value)})
	}
	slices.SortFunc(out, func(a, b backendOption) int { return strings.Compare(a.name, b.name) })
	return out
}

func keepOptions(options []backendOption, old rows) (rows, error) {
	standard := map[string]string{}
	var names []string
	for _, o := range options {
		names, standard[o.name] = append(names, o.name), o.standard
	}
	return old.update(names, 3, nil, func(name string, row []string) { row[1] = withCode(row[1], standard[name]) })
}

// readBackendTexts reads what the page of the backends says about each option.
func (s *source) readBackendTexts() (map[string]map[string]string, error) {
	page, err := s.file(pages + "backends.mdx")
	out := map[string]map[string]string{}
	for name := range agent.Backends() {
		out[name] = map[string]string{}
		_, rest, _ := strings.Cut(page, "{/* make docs: options of "+name+" */}\n\n")
		text, _, _ := strings.Cut(rest, "\n{/* end */}")
		_, found := readTable(text)
		for _, row := range found {
			for _, m := range codeSpan.FindAllStringSubmatch(row[0], -1) {
				out[name][m[1]] = withoutMarkdown(strings.TrimSuffix(row[len(row)-1], ".")) + "."
			}
		}
	}
	return out, err
}

// rows are those of a table without its head, cell by cell. Cells are as in the page: a | in them is \|.
type rows [][]string

var codeSpan = regexp.MustCompile("`([^`]+)`")

// withCode returns a cell with its first code replaced, or only the code if it has none.
func withCode(cell, code string) string {
	old := codeSpan.FindString(cell)
	if old == "" {
		return "`" + code + "`"
	}
	return strings.Replace(cell, old, "`"+code+"`", 1)
}

// update returns the rows with one row for each name, or several names in one row. It keeps what people wrote in the
// rows of these names and the rows that keep selects, drops other rows, and appends rows of new names. fill, if not
// nil, sets the cells that the code determines; it gets the first name of the row. A row without a last sentence is an
// error.
func (old rows) update(names []string, columns int, keep func([]string) bool, fill func(name string, row []string)) (out rows, err error) {
	missing := slices.Clone(names)
	add := func(row, of []string) {
		row[0] = "`" + strings.Join(of, "`, `") + "`"
		if fill != nil {
			fill(of[0], row)
		}
		out = append(out, row)
	}
	for _, row := range old {
		if len(row) != columns {
			return nil, fmt.Errorf("the row of %s has %d cells, not %d", row[0], len(row), columns)
		}
		if keep != nil && keep(row) {
			out = append(out, row)
			continue
		}
		var of []string
		for _, m := range codeSpan.FindAllStringSubmatch(row[0], -1) {
			if i := slices.Index(missing, m[1]); i >= 0 {
				of, missing = append(of, m[1]), slices.Delete(missing, i, i+1)
			}
		}
		if len(of) > 0 {
			add(slices.Clone(row), of)
		}
	}
	for _, name := range missing {
		add(make([]string, columns), []string{name})
	}
	for _, row := range out {
		if slices.Contains(row[2:], "") || row[columns-1] == "" {
			err = fmt.Errorf("write the sentences of %s into its row", row[0])
		}
	}
	return out, err
}

var unescapedBar = regexp.MustCompile(`(?:[^|\\]|\\.)*`)

// readTable splits a table into its head, with the line below it, and its rows.
func readTable(text string) (head string, out rows) {
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if i < 2 {
			head += line + "\n"
			continue
		}
		row := unescapedBar.FindAllString(strings.TrimSuffix(strings.TrimPrefix(line, "|"), "|"), -1)
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		out = append(out, row)
	}
	return head, out
}

func (r rows) String() string {
	var b strings.Builder
	for _, row := range r {
		b.WriteByte('|')
		for _, cell := range row {
			if cell != "" {
				b.WriteString(" " + cell)
			}
			b.WriteString(" |")
		}
		b.WriteByte('\n')
	}
	return b.String()
}
