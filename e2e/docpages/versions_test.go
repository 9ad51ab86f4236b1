package docpages

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDocumentationVersions compares the versions in "Tested versions" with those that tools pin, and with the pairs of
// tools/matrix. In the results, no test failed.
func TestDocumentationVersions(t *testing.T) {
	file := func(path string) string {
		t.Helper()
		text, err := os.ReadFile("../../" + path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	// pinned returns the version of a directory of tools: "1.22.6" of consul-1.22.
	pinned := func(tool string) string {
		t.Helper()
		module := regexp.MustCompile(`(?m)^tool (\S+)$`).FindStringSubmatch(file("tools/" + tool + "/go.mod"))
		if module == nil {
			t.Fatalf("tools/%s/go.mod names no tool", tool)
		}
		version := regexp.MustCompile(`(?m)^(?:require|\t)\s*` + regexp.QuoteMeta(module[1]) + ` v(\S+)`).
			FindStringSubmatch(file("tools/" + tool + "/go.mod"))
		if version == nil {
			t.Fatalf("tools/%s/go.mod requires no version of %s", tool, module[1])
		}
		return version[1]
	}
	list := regexp.MustCompile(`(?m)^pairs=\((.*)\)$`).FindStringSubmatch(file("tools/matrix"))
	if list == nil {
		t.Fatal("tools/matrix has no list of pairs")
	}
	var want [][2]string
	for _, pair := range strings.Fields(list[1]) {
		consul, nomad, _ := strings.Cut(pair, ":")
		want = append(want, [2]string{pinned(consul), pinned(nomad)})
	}
	page := file("website/content/docs/operations/versions.mdx")
	_, results, _ := strings.Cut(page, "\n## Results\n")
	results, _, _ = strings.Cut(results, "\n## ")
	var got [][2]string
	for _, row := range regexp.MustCompile(`(?m)^\| (\d\S*) \| (\S+) \|(.*)$`).FindAllStringSubmatch(results, -1) {
		got = append(got, [2]string{row[1], row[2]})
		if strings.Count(row[3], " passed |") != 3 {
			t.Errorf("not all tests passed: %s", row[0])
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("versions (-pinned +page):\n%s", diff)
	}
	if usual := "Consul " + pinned("consul") + " and Nomad " + pinned("nomad"); !strings.Contains(page, usual) {
		t.Errorf("the page does not contain %q", usual)
	}
}
