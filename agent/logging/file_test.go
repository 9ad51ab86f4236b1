package logging

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/config"
)

// openLog returns a log with a file in a directory that does not exist yet.
func openLog(t *testing.T, change func(c *config.Log)) (l *Log, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "var/log/leno.log")
	c := config.Log{Level: "INFO", File: path}
	if change != nil {
		change(&c)
	}
	l, err := New(io.Discard, false, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l, path
}

func text(t *testing.T, path string) string {
	t.Helper()
	out, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// rotatedFiles returns the rotated files, oldest first.
func rotatedFiles(t *testing.T, path string) []string {
	t.Helper()
	found, err := filepath.Glob(strings.TrimSuffix(path, ".log") + "-*.log")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

// TestFileModes: the umask, such as that of the unit, does not change the mode of a new log file. Another mode, which an
// operator has set, stays.
func TestFileModes(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	for _, umask := range []int{0, 0o077} {
		unix.Umask(umask)
		l, path := openLog(t, nil)
		l.Logger().Info("hello")
		if got := text(t, path); !strings.HasSuffix(got, "[INFO]  leno: hello\n") {
			t.Errorf("%q", got)
		}
		dir := os.FileMode(0o750 &^ umask)
		for name, want := range map[string]os.FileMode{path: 0o640, filepath.Dir(path): dir, filepath.Dir(filepath.Dir(path)): dir} {
			if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
				t.Errorf("umask %o: %s: %v, %v", umask, name, info.Mode(), err)
			}
		}
	}
	l, path := openLog(t, nil)
	if err := errors.Join(os.Chmod(path, 0o644), l.Reopen()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("reopened: %v, %v", info.Mode(), err)
	}
}

func TestFileIsRotated(t *testing.T) {
	line := strings.Repeat("x", 60) // about 100 bytes with time and level
	for _, tt := range []struct {
		name   string
		change func(c *config.Log)
		lines  int
		files  int // rotated
		each   int // lines in each rotated file, 0 for any
	}{
		{"a few hundred bytes", func(c *config.Log) { c.RotateBytes = 250 }, 7, 3, 2},
		{"less than a line", func(c *config.Log) { c.RotateBytes = 1 }, 4, 3, 1},
		{"two kept", func(c *config.Log) { c.RotateBytes, c.RotateMaxFiles = 250, 2 }, 20, 2, 2},
		{"not yet", func(c *config.Log) { c.RotateBytes = 1 << 20 }, 20, 0, 0},
		{"the default", func(*config.Log) {}, 20, 0, 0},
		{"of any age", func(c *config.Log) { c.RotateDuration = time.Nanosecond }, 4, 3, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, path := openLog(t, tt.change)
			if err := os.WriteFile(strings.TrimSuffix(path, ".log")+"-mine.txt", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			for i := range tt.lines {
				l.Logger().Info(line, "number", i)
			}
			rotated := rotatedFiles(t, path)
			if len(rotated) != tt.files {
				t.Fatalf("%d rotated files: %q", len(rotated), rotated)
			}
			all := ""
			for _, r := range rotated {
				got := text(t, r)
				all += got
				if tt.each > 0 && strings.Count(got, "\n") != tt.each {
					t.Errorf("%s:\n%s", r, got)
				}
			}
			all += text(t, path)
			last := 0
			for i := range tt.lines {
				at := strings.Index(all, fmt.Sprintf("number=%d\n", i))
				if tt.name != "two kept" && at < 0 || at >= 0 && at < last {
					t.Errorf("line %d is at %d, the one before at %d", i, at, last)
				}
				last = max(last, at)
			}
		})
	}
}

// TestFileAge checks that a file's age counts, not the process's.
func TestFileAge(t *testing.T) {
	l, path := openLog(t, func(c *config.Log) { c.RotateDuration = time.Hour })
	l.Logger().Info("first")
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		t.Fatal(err)
	}
	if born := l.output.file.born; time.Since(born) > time.Minute || born.After(time.Unix(s.Mtim.Unix())) {
		t.Errorf("born %s, written %s", born, time.Unix(s.Mtim.Unix()))
	}
}

// TestFileIsMovedAway does what logrotate does.
func TestFileIsMovedAway(t *testing.T) {
	l, path := openLog(t, nil)
	l.Logger().Info("one")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	l.Logger().Info("two")
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	l.Logger().Info("three")
	if old, now := text(t, path+".1"), text(t, path); !strings.Contains(old, "two") || strings.Contains(old, "three") || !strings.Contains(now, "three") {
		t.Errorf("moved:\n%s\nnew:\n%s", old, now)
	}
	// The directory is removed as well. If it cannot be created again, the old file stays in use.
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	l.Logger().Info("four")
	if got := text(t, path); !strings.Contains(got, "four") {
		t.Error(got)
	}
	if err := os.Rename(path, path+".2"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Error(err)
	}
	l.Logger().Info("five")
	if got := text(t, path+".2"); !strings.Contains(got, "five") {
		t.Error(got)
	}
}

func TestFileThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{
		dir:                 "log_file: " + dir + " is not a file",
		pipe:                "is not a file",
		"/dev/full":         "is not a file",
		plain + "/leno.log": "not a directory",
		"/proc/leno.log":    "log_file: open /proc/leno.log",
	} {
		if _, err := New(io.Discard, false, config.Log{Level: "INFO", File: path}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestFullDisk checks that the logging code notices nothing, and that standard error tells when the fault begins and
// ends, and how many lines are missing.
func TestFullDisk(t *testing.T) {
	var stderr lineBuffer
	path := filepath.Join(t.TempDir(), "leno.log")
	l, err := New(&stderr, false, config.Log{Level: "INFO", File: path})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.Logger().Info("before")
	good := l.output.file.f
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	l.output.file.f = full
	for range 3 {
		l.Logger().Info("while it is full")
	}
	// A part of a line fitted.
	if _, err := good.WriteString("half a li"); err != nil {
		t.Fatal(err)
	}
	l.output.file.f, l.output.file.torn = good, true
	if err := full.Close(); err != nil {
		t.Fatal(err)
	}
	l.Logger().Info("after")
	l.Logger().Info("long after")

	got := string(stderr)
	if n := strings.Count(got, "log file cannot be written"); n != 1 || !strings.Contains(got, "no space left on device") {
		t.Errorf("told %d times that it began:\n%s", n, got)
	}
	if n := strings.Count(got, "log file is written again: lost=4"); n != 1 { // three, and the one about the fault
		t.Errorf("told %d times that it is over:\n%s", n, got)
	}
	var messages []string
	for line := range strings.Lines(text(t, path)) {
		messages = append(messages, line[strings.LastIndex(line, "leno: ")+1:])
	}
	if want := []string{"eno: before\n", "half a li\n", "eno: after\n", "eno: log file is written again: lost=4\n", "eno: long after\n"}; !slices.Equal(messages, want) {
		t.Errorf("%q", messages)
	}
}

// TestRotationFails checks that the file stays in use.
func TestRotationFails(t *testing.T) {
	l, path := openLog(t, func(c *config.Log) { c.RotateBytes = 1 })
	l.Logger().Info("one")
	l.output.file.path = filepath.Join(filepath.Dir(path), strings.Repeat("x", 255))
	l.Logger().Info("two")
	l.Logger().Info("three")
	if got := text(t, path); strings.Count(got, "\n") != 3 {
		t.Error(got)
	}
	l.output.file.path, l.output.file.wait = path, time.Time{}
	l.Logger().Info("four")
	if got := text(t, path); strings.Count(got, "\n") != 1 || len(rotatedFiles(t, path)) != 1 {
		t.Error(got)
	}
}
