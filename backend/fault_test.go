package backend

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFaults checks that the list has every fault written in the source, and those of every table
// that is reconciled.
func TestFaults(t *testing.T) {
	spelled := regexp.MustCompile(`"((?:device|socket|forwarding) (?:was|had) [^"]+)"`)
	table := regexp.MustCompile(`reconcile\.Want\("([^"]+)"`)
	plural := strings.NewReplacer("address", "addresses", "entry", "entries", "neighbour", "neighbours", "peer", "peers",
		"route", "routes", "rule", "rules")
	found := map[string]bool{}
	for _, dir := range []string{".", "../agent"} {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			name := filepath.Base(path)
			if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || name == "fault.go" {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range spelled.FindAllSubmatch(text, -1) {
				found[string(m[1])] = true
			}
			for _, m := range table.FindAllSubmatch(text, -1) {
				name := plural.Replace(string(m[1]))
				found[name+" were missing"], found[name+" were changed"], found["foreign "+name+" were there"] = true, true, true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var have []string
	for fault := range found {
		have = append(have, fault)
	}
	slices.Sort(have)
	want := Faults()
	slices.Sort(want)
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("-listed +in the source:\n%s", diff)
	}
}
