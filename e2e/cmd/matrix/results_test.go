package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const page = `---
title: Tested versions
---

## Results

Text before.

| old | table |
|---|---|
| 1 | 2 |

Text after.
`

// ran returns results in which every package of the table has the given events.
func ran(events ...string) string {
	var b strings.Builder
	for _, p := range packages {
		for _, e := range events {
			action, test, _ := strings.Cut(e, " ")
			b.WriteString(`{"Action":"` + action + `","Package":"` + module + p.path + `","Test":"` + test + `"}` + "\n")
		}
		b.WriteString(`{"Action":"pass","Package":"` + module + p.path + "\"}\nnot JSON\n")
	}
	return b.String()
}

// TestTable writes a page from the results of two pairs of versions.
func TestTable(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	target := write("page.mdx", page)
	good, bad := write("good", ran("run TestA", "pass TestA", "pass TestA/x")), write("bad", ran("pass TestA", "fail TestB"))
	now := time.Date(2026, 11, 25, 16, 0, 0, 0, time.UTC)
	if err := run(target, []string{"1.20.6:1.10.5:" + good, "1.22.6:1.11.1:" + bad}, now); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	_, got2, _ := strings.Cut(string(got), "Text before.\n\n")
	const failed = " 1 passed, 1 failed: `TestB` |"
	want := "| Consul | Nomad | store: `registry/consul` | outages: `e2e/store` | Nomad: `e2e/nomad` | on |\n|---|---|---|---|---|---|\n" +
		"| 1.20.6 | 1.10.5 |" + strings.Repeat(" 2 passed |", 3) + " 2026-11-25 |\n" +
		"| 1.22.6 | 1.11.1 |" + strings.Repeat(failed, 3) + " 2026-11-25 |\n\nText after.\n"
	if got2 != want {
		t.Errorf("got\n%s\nwant\n%s", got2, want)
	}
}

// TestRefused: a page is not changed by results that are not whole.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "page.mdx")
	for _, tt := range []struct{ page, results, want string }{
		{page, ran("skip TestA"), "TestA of registry/consul was skipped"},
		{page, "", "no test of registry/consul ran"},
		{strings.ReplaceAll(page, "## Results", "## Other"), ran("pass TestA"), `no section "Results"`},
		{strings.ReplaceAll(page, "|", ""), ran("pass TestA"), "no table"},
	} {
		for path, text := range map[string]string{target: tt.page, filepath.Join(dir, "results"): tt.results} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := run(target, []string{"1:2:" + filepath.Join(dir, "results")}, time.Now())
		after, _ := os.ReadFile(target)
		if err == nil || !strings.Contains(err.Error(), tt.want) || string(after) != tt.page {
			t.Errorf("want %q, got %v, and the page\n%s", tt.want, err, after)
		}
	}
}
