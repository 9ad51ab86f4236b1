package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFloors(t *testing.T) {
	g := graph{
		"main":  {"agent", "api"},
		"agent": {"agent/watch", "api"},
		"api":   {}, "agent/watch": {},
	}
	got, err := g.floors()
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{{"agent/watch", "api"}, {"agent"}, {"main"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("floors, -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"agent"}, g.direct()["main"]); diff != "" {
		t.Errorf("what main imports and agent does not reach, -want +got:\n%s", diff)
	}
}

func TestFloorsOfACycle(t *testing.T) {
	_, err := graph{"a": {"b"}, "b": {"a"}}.floors()
	if err == nil || !strings.Contains(err.Error(), "a -> b -> a") {
		t.Errorf("%v, want the cycle named", err)
	}
	_, err = graph{"a": {"backend/missing"}}.floors()
	if err == nil || !strings.Contains(err.Error(), "backend/missing is imported by a") {
		t.Errorf("%v, want the package named that is missing", err)
	}
}

// The picture of the guide shows the imports as they are.
func TestPicture(t *testing.T) {
	imports, err := readImports("../../..")
	if err != nil {
		t.Fatal(err)
	}
	want, err := draw(imports)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		again, err := draw(imports)
		if err != nil || !bytes.Equal(again, want) {
			t.Fatalf("the same imports give two pictures (%v)", err)
		}
	}
	got, err := os.ReadFile("../../../website/content/docs/contributing/architecture.svg")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("website/content/docs/contributing/architecture.svg does not show today's imports: run make architecture")
	}
}

// TestGuideNamesFiles checks that the files and folders that the contributors' guide names exist.
func TestGuideNamesFiles(t *testing.T) {
	const root = "../../../"
	named := regexp.MustCompile("`([a-z][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.-]+)+|[a-zA-Z.]+\\.(?:md|go|example))`")
	found := 0
	for _, page := range []string{"website/content/docs/contributing/index.mdx", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(root + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "NAME") {
				continue // a file to create
			}
			found++
			if _, err := os.Stat(root + m[1]); err != nil {
				t.Errorf("%s names %s: %v", page, m[1], err)
			}
		}
	}
	if found < 50 {
		t.Errorf("found only %d files", found)
	}
}
