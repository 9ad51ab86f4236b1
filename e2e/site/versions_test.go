package site

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// leads regenerates the pages that lead to the versions of the site in a folder.
func leads(t *testing.T, dir string) {
	t.Helper()
	if out, err := exec.Command("../../tools/site", "versions", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// publish adds a version with these pages to a folder; "" is the first page.
func publish(t *testing.T, dir, version string, pages ...string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(dir, version, "pagefind"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, version, "404.html"), []byte("not in "+version), 0o644))
	for _, page := range pages {
		must(t, os.MkdirAll(filepath.Join(dir, version, page), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, version, page, "index.html"), []byte("<!doctype html><title>"+version+"</title><p>"+version+" "+page), 0o644))
	}
}

// withOlder returns the site together with another version, in which only the API has a page.
func (s *site) withOlder(t *testing.T) *site {
	t.Helper()
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(s.dir)))
	publish(t, dir, "older", "", "api")
	leads(t, dir)
	return &site{dir: dir, base: s.base, pages: s.pages}
}

// TestVersions publishes several versions next to each other: readers are led to the newest, and
// nothing is left of a version that was removed.
func TestVersions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, path))
		must(t, err)
		return string(text)
	}
	order := func(want ...string) {
		t.Helper()
		leads(t, dir)
		var got []string
		must(t, json.Unmarshal([]byte(read("versions.json")), &got))
		if !slices.Equal(got, want) {
			t.Errorf("the versions are %q, want %q", got, want)
		}
		if front := read("index.html"); !strings.Contains(front, `href="`+want[0]+`/"`) {
			t.Errorf("the front page does not lead to %s:\n%s", want[0], front)
		}
		if missing := read("404.html"); missing != "not in "+want[0] {
			t.Errorf("astray one gets %q", missing)
		}
	}
	publish(t, dir, "dev", "", "api")
	order("dev")
	publish(t, dir, "0.9.0", "", "api", "old")
	order("0.9.0", "dev")
	read("latest/old/index.html")
	for _, version := range []string{"0.10.0", "1.0.0-rc9", "1.0.0-rc10", "0.10.1"} {
		publish(t, dir, version, "", "api", "concepts/leases")
	}
	order("0.10.1", "0.10.0", "0.9.0", "1.0.0-rc10", "1.0.0-rc9", "dev")
	publish(t, dir, "1.0.0", "", "api", "concepts/leases")
	order("1.0.0", "0.10.1", "0.10.0", "0.9.0", "1.0.0-rc10", "1.0.0-rc9", "dev")
	if page := read("latest/concepts/leases/index.html"); !strings.Contains(page, `url=../../../1.0.0/concepts/leases/"`) {
		t.Errorf("a steady address leads elsewhere:\n%s", page)
	}
	if _, err := os.Stat(filepath.Join(dir, "latest/old")); err == nil {
		t.Error("a steady address leads to a page that is no more")
	}
	must(t, os.RemoveAll(filepath.Join(dir, "1.0.0")))
	order("0.10.1", "0.10.0", "0.9.0", "1.0.0-rc10", "1.0.0-rc9", "dev")
}
