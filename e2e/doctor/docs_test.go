package doctor

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocumentationDoctor compares the table of faults that doctor finds with the faults that the
// tests cause: their names, their checks, and words of their descriptions.
func TestDocumentationDoctor(t *testing.T) {
	tried := alone()
	for _, f := range slices.Concat(here(), there(), between(), sizes(), containers(), addresses(), detours(), explained(), stored(), configuredInConsul("")) {
		w := tried[f.name]
		f.want.words = append(w.words, f.want.words...)
		tried[f.name] = f.want
	}
	for _, f := range operated() {
		w := f.seen[0].want
		w.words = append(w.words, tried[f.name].words...)
		tried[f.name] = w
	}
	page, err := os.ReadFile("../../website/content/docs/operations/doctor.mdx")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(page), "\n---\n")
	section, _, _ := strings.Cut(after, "\n## ")
	rows := regexp.MustCompile(`(?m)^\| (.+?) \| (.+?) \| (.+?) \|$`).FindAllStringSubmatch(section, -1)
	for _, row := range rows[min(1, len(rows)):] {
		name, check, says := row[1], strings.Trim(row[2], "`"), strings.ReplaceAll(row[3], "`", "")
		f, ok := tried[name]
		if !ok {
			t.Errorf("%s: no test tries that", name)
			continue
		}
		delete(tried, name)
		if check != f.check && !slices.Contains(f.also, check) {
			t.Errorf("%s: check %s on the page, %s and %q here", name, check, f.check, f.also)
		}
		if !slices.ContainsFunc(f.words, func(word string) bool { return strings.Contains(word, says) }) {
			t.Errorf("%s: %q on the page is in none of %q", name, says, f.words)
		}
	}
	for name := range tried {
		t.Errorf("no row %q", name)
	}
}
