package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestGenerated compares everything that is generated with the files. The document of the API, from which its pages are
// generated, is compared with the agent by other tests.
func TestGenerated(t *testing.T) {
	s := newSource(t)
	files, err := s.generated()
	if err != nil {
		t.Error(err)
	}
	for path, want := range files {
		got, err := s.file(path)
		if err != nil {
			t.Errorf("run make docs: %v", err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s is out of date, run make docs (-generated +file):\n%s", path, diff)
		}
	}
}

// TestWithoutMarkdown tests that code is quoted only if it is punctuation.
func TestWithoutMarkdown(t *testing.T) {
	for text, want := range map[string]string{
		"`WARN`, `ERROR` or a [level](/docs/log)": "WARN, ERROR or a level",
		"digits, `.` and `-`, `\"\"` or `*.x`":    `digits, "." and "-", "" or *.x`,
		"`a:1`. `\"\"`: none":                     `a:1. "": none`,
	} {
		if got := withoutMarkdown(text); got != want {
			t.Errorf("%s became %s instead of %s", text, got, want)
		}
	}
}
