package docpages

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDocumentationTableOfExamples checks that every file in examples has a row in the table of its
// README.md, with tests from packages that use the file.
func TestDocumentationTableOfExamples(t *testing.T) {
	const table = "examples/README.md"
	var is, want []string
	err := filepath.WalkDir(Root+"examples", func(path string, entry os.DirEntry, err error) error {
		if path = strings.TrimPrefix(path, Root); err == nil && !entry.IsDir() && path != table {
			is = append(is, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	packages := testedIn(t)
	link := regexp.MustCompile(`^\[(.+)\]\((.+)\)$`)
	for _, row := range Rows(t, table, "Files") {
		m := link.FindStringSubmatch(row[0])
		if m == nil || m[1] != m[2] {
			t.Errorf("%s: a row without a link to a file: %s", table, row[0])
			continue
		}
		file := "examples/" + m[1]
		want = append(want, file)
		named := Codes(row[len(row)-1])
		if len(row) != 3 || row[1] == "" || len(named) == 0 {
			t.Errorf("%s: %s wants what it is, and the tests that show it", table, file)
		}
		for _, name := range named {
			if packages[name] == "" {
				t.Errorf("%s: there is no %s", table, name)
			} else if !strings.Contains(packages[name], filepath.Base(file)) {
				t.Errorf("%s: nothing in the package of %s names %s", table, name, file)
			}
		}
	}
	slices.Sort(is)
	slices.Sort(want)
	if diff := cmp.Diff(is, want); diff != "" {
		t.Errorf("%s (-files +rows):\n%s", table, diff)
	}
}

// testedIn returns the source of the package that contains each test, by the test's name. If two
// packages have a test with the same name, it is the source of both. It does not read the top of the source tree: Go
// would run this test again after each build, which changes the directory bin there.
func testedIn(t *testing.T) map[string]string {
	t.Helper()
	packages := map[string]string{}
	for _, top := range []string{"agent", "api", "backend", "command", "e2e", "internal", "registry"} {
		err := filepath.WalkDir(Root+top, func(path string, entry os.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, "_test.go") {
				path = strings.TrimPrefix(path, Root)
				packages[filepath.Dir(path)] += Source(t, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]string{}
	for _, text := range packages {
		for _, name := range testNames(text) {
			tests[name] += text
		}
	}
	return tests
}

// testNames returns the names of the tests in Go source, such as TestRender.
func testNames(source string) (names []string) {
	for line := range strings.Lines(source) {
		if name, ok := strings.CutPrefix(line, "func Test"); ok {
			name, _, _ = strings.Cut(name, "(")
			names = append(names, "Test"+name)
		}
	}
	return names
}
