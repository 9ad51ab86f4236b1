package packages

import (
	"archive/tar"
	"compress/gzip"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/lenonet/leno/internal/testkit/programs"
)

// TestReleaseReproducible compares releases that were made in two directories, one after the other:
// the bytes must be the same, and the list of checksums must be complete.
func TestReleaseReproducible(t *testing.T) {
	sums := map[string]string{}
	for _, dir := range []string{"first", "again"} {
		list, err := os.ReadFile(file(t, dir+"/SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
		cmd.Dir = filepath.Join(made, dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", dir, err, out)
		}
		sums[dir] = string(list)
	}
	if sums["first"] != sums["again"] {
		t.Errorf("two builds differ:\n%s\n%s", sums["first"], sums["again"])
	}
	entries, err := os.ReadDir(filepath.Join(made, "first"))
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(sums["first"], "\n"); lines != len(entries)-1 || lines%4 != 1 { // 4 for each architecture, and the image
		t.Errorf("%d checksums for %d files", lines, len(entries)-1)
	}
}

// TestReleaseArchive checks the archive of a release: its files, their common date and owner, and
// that the program needs nothing from the host.
func TestReleaseArchive(t *testing.T) {
	path := file(t, "first/leno_1.0.0_linux_"+runtime.GOARCH+".tar.gz")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	top, dir := "leno_1.0.0_linux_"+runtime.GOARCH+"/", t.TempDir()
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.ModTime.Unix() != 1700000000 || h.Uid != 0 || h.Gid != 0 || h.Mode&0o022 != 0 || h.Mode&0o444 != 0o444 {
			t.Errorf("%s of %s, %d:%d, mode %o", h.Name, h.ModTime, h.Uid, h.Gid, h.Mode)
		}
		names = append(names, strings.TrimPrefix(h.Name, top))
		if h.Name == top+"leno" {
			program, err := io.ReadAll(r)
			if err := errors.Join(err, programs.Write(filepath.Join(dir, "leno"), program)); err != nil {
				t.Fatal(err)
			}
		}
	}
	list := "\n" + strings.Join(names, "\n") + "\n"
	for _, name := range []string{"leno", "LICENSE", "third-party-licenses", "CHANGELOG.md", "config.hcl.example", "leno.schema.json", "man/man1/leno.1", "man/man5/leno.hcl.5", "man/man8/leno-agent.8", "examples/systemd/leno.service"} {
		if !strings.Contains(list, "\n"+name+"\n") {
			t.Errorf("no %s in %s", name, list)
		}
	}
	program, err := elf.Open(filepath.Join(dir, "leno"))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the program is not static")
		}
	}
	if out := output(t, filepath.Join(dir, "leno"), "version"); !strings.HasPrefix(out, "leno 1.0.0\n") {
		t.Errorf("version: %s", out)
	}
}

// TestReleaseRefused asks for releases that cannot be made. Each must fail with advice before
// anything is built.
func TestReleaseRefused(t *testing.T) {
	for _, tt := range []struct {
		name, script, want string
	}{
		{"a tree with changes", "git init -q . && VERSION=1.0.0 tools/release", "the tree is not clean"},
		{"no repository", "tools/release", "set VERSION"},
		{"no date", "VERSION=1.0.0 tools/release", "set SOURCE_DATE_EPOCH"},
		{"a wrong version", "VERSION=one SOURCE_DATE_EPOCH=1 tools/release", "VERSION=one does not begin with a digit"},
		{"a path in the version", "VERSION=1/0 SOURCE_DATE_EPOCH=1 tools/release", "VERSION=1/0"},
		{"another user's repository", "git init -q . && chown -R 1234 . && VERSION=1.0.0 SOURCE_DATE_EPOCH=1 tools/release", "dubious ownership"},
		{"another word", "tools/release everything", "usage: tools/release"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			script, err := os.ReadFile(source + "tools/release")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(dir, "tools"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := programs.Write(filepath.Join(dir, "tools/release"), script); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("bash", "-c", tt.script)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), tt.want) {
				t.Errorf("%v\n%s\nwant %q", err, out, tt.want)
			}
			if _, err := os.Stat(filepath.Join(dir, "dist")); err == nil {
				t.Error("it has begun")
			}
		})
	}
}
