package docpages

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/health"
)

// TestDocumentationGlossary checks that every term is listed once and in order and used on another
// page, and that the words that the pages explain first are among them.
func TestDocumentationGlossary(t *testing.T) {
	var text strings.Builder
	for _, p := range Pages(t) {
		if p != Path("glossary") {
			text.WriteString(strings.ToLower(Source(t, p)))
		}
	}
	terms := map[string]bool{}
	var order []string
	for _, row := range Rows(t, Path("glossary"), "Terms") {
		term := strings.ToLower(strings.Trim(row[0], "*"))
		if terms[term] {
			t.Errorf("%s is there twice", term)
		}
		terms[term], order = true, append(order, term)
		if !strings.Contains(text.String(), term) {
			t.Errorf("no page says %s", term)
		}
	}
	if !slices.IsSorted(order) {
		t.Errorf("out of order: %q", order)
	}
	_, words, _ := strings.Cut(Source(t, Path("concepts/how-it-works")), "\n## Words\n")
	words, _, _ = strings.Cut(words, "\n## ")
	for _, m := range regexp.MustCompile(`\*\*([^*]+)\*\*`).FindAllStringSubmatch(words, -1) {
		if !terms[m[1]] {
			t.Errorf("the glossary does not have %s", m[1])
		}
	}
}

// TestDocumentationLinksToIntegrations checks that the first pages link to everything that leno is
// used with, and to the comparisons.
func TestDocumentationLinksToIntegrations(t *testing.T) {
	files, err := filepath.Glob(Root + Dir + "integrations/*.mdx")
	if err != nil || len(files) < 5 {
		t.Fatalf("%q, %v", files, err)
	}
	files = append(files, Root+Path("intro/vs/index"), Root+Path("intro/vs/flannel"))
	for _, from := range []string{"README.md", Path("intro/index")} {
		text := Prose(Source(t, from))
		for _, file := range files {
			to, err := filepath.Rel(filepath.Dir(Root+from), file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(text, "]("+to+")") && !strings.Contains(text, "]("+to+"#") {
				t.Errorf("%s does not lead to %s", from, to)
			}
		}
	}
}

// TestDocumentationChangelog checks that the first version lists every command.
func TestDocumentationChangelog(t *testing.T) {
	text := Source(t, "CHANGELOG.md")
	entries, err := os.ReadDir(Root + Dir + "commands")
	if err != nil || len(entries) < 15 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".mdx")
		if name != "index" && name != "json" && !strings.Contains(text, "`"+name+"`") {
			t.Errorf("CHANGELOG.md does not name %s", name)
		}
	}
	if regexp.MustCompile(`(?m)^( |-).*\n\n- `).MatchString(text) {
		t.Error("CHANGELOG.md: an empty line parts a list in two")
	}
}

// TestDocumentationStages checks that the page to which `leno trace` links lists each stage that can lose packets.
func TestDocumentationStages(t *testing.T) {
	const section = "Packets"
	to := Found(t, "command/packettrace/trace.go", `const stages = "troubleshooting#([\w-]+)"`)
	if len(to) != 1 || !slices.Contains(anchors(Source(t, Path("troubleshooting/index"))), to[0]) {
		t.Errorf("there is no heading for %q", to)
	}
	var listed []string
	for _, row := range Rows(t, Path("troubleshooting/index"), section) {
		for stage := range strings.SplitSeq(row[0], ", ") {
			listed = append(listed, strings.Trim(stage, "`"))
		}
	}
	for _, file := range []string{"agent/trace/judge.go", "agent/trace/judge_container.go", "agent/trace/judge_tunnel.go", "command/packettrace/trace.go"} {
		for _, stage := range Found(t, file, `(?:const stage = |j\.lost\(|judgeRoute\(|Stage: )"([\w ]+)"`) {
			if !slices.Contains(listed, stage) {
				t.Errorf("%s: the stage %q is not listed", file, stage)
			}
		}
	}
}

// TestDocumentationChecks checks that the page about checks and findings has a heading for each name that health and
// `leno doctor` print, so that their messages can link to it.
func TestDocumentationChecks(t *testing.T) {
	headings := anchors(Source(t, Path("troubleshooting/checks")))
	const checks = `(?m)^\t[Cc]heck\w+ +=? *"(\w+)"`
	for _, name := range slices.Concat(health.Names(), Found(t, "agent/doctor/doctor.go", checks), Found(t, "agent/fleet/causes.go", checks)) {
		if !slices.Contains(headings, name) {
			t.Errorf("there is no heading for %s", name)
		}
	}
}
