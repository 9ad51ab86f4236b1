package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/files"
)

// TestBlockingFiles checks that a file that would block, waiting for another process or for a file system that does
// not answer, causes an error that names it, along with the other errors.
func TestBlockingFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"a.hcl": `log_level = "LOUD"`})
	pipe := filepath.Join(dir, "b.hcl")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, sources := range [][]string{{dir}, {filepath.Join(dir, "a.hcl"), pipe}} {
		loaded := make(chan error, 1)
		go func() {
			_, err := Load(sources, registryOptions())
			loaded <- err
		}()
		select {
		case err := <-loaded:
			if err == nil || !strings.Contains(err.Error(), pipe+": is not a regular file") || !strings.Contains(err.Error(), "LOUD") {
				t.Errorf("%q: %v", sources, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%q: blocked", sources)
		}
	}
	ended, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	hang := make(chan struct{})
	defer close(hang)
	_, err := files.Within(ended, "/mnt/leno.hcl", func() (int, error) { <-hang; return 0, nil })
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "/mnt/leno.hcl: reading it takes too long") {
		t.Errorf("a file that blocks: %v", err)
	}
	if _, err := load(ended, []string{filepath.Join(dir, "a.hcl")}, registryOptions()); err == nil || strings.Count(err.Error(), "a.hcl") != 1 {
		t.Errorf("a configuration that blocks: %v", err)
	}
}

// TestHandedOverFiles checks that standard input and the like are read although they are not regular files.
func TestHandedOverFiles(t *testing.T) {
	if c, err := Load([]string{os.DevNull}, Options{}); err != nil || len(c.Files) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString(`log_level = "WARN"`); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := Load([]string{"/proc/self/fd/" + strconv.Itoa(int(r.Fd()))}, Options{})
	if err != nil || c.Log.Level != "WARN" {
		t.Errorf("%+v, %v", c.Log, err)
	}
}

// TestSubnetFileTwice gives one subnet file to two networks, under two spellings.
func TestSubnetFileTwice(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"run/leno/README": "", "other/README": ""})
	if err := os.Symlink("run", filepath.Join(dir, "var-run")); err != nil {
		t.Fatal(err)
	}
	src := func(first, second string) string {
		return "network \"a\" {\n  subnet_file = \"" + dir + first + "\"\n}\nnetwork \"b\" {\n  subnet_file = \"" + dir + second + "\"\n}\n"
	}
	_, err := Parse([]byte(src("/run/leno/x.env", "/var-run/leno/x.env")), "a.hcl", Options{})
	if err == nil || !strings.Contains(err.Error(), "a.hcl:5: Subnet file used twice") {
		t.Errorf("one file under two spellings: %v", err)
	}
	if _, err := Parse([]byte(src("/run/leno/x.env", "/other/x.env")), "a.hcl", Options{}); err != nil {
		t.Error(err)
	}
}
