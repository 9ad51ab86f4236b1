package logging

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/config"
)

const (
	fileMode = 0o640 // it never contains secrets, but names and addresses
	dirMode  = 0o750

	// rotateAgain is the pause before a failed rotation is retried.
	rotateAgain = time.Minute
	// stamp names rotated files so that names sort by age: leno-….log.
	stamp = "20060102T150405.000000Z"
)

// file is a log file. It is rotated before it grows past a size, and with the first line after it has reached an age.
// Callers hold Log.mu.
type file struct {
	path  string
	bytes int64
	age   time.Duration // 0 for any
	keep  int           // number of rotated files, 0 for all

	f    *os.File
	size int64
	born time.Time
	torn bool      // the last write ended within a line
	wait time.Time // earliest time of the next rotation
	made bool      // openFile created it
}

// openFile opens the file, and creates it and its directories if missing.
func openFile(path string) (*file, error) {
	f := &file{path: path, bytes: config.DefaultRotateBytes}
	if err := f.reopen(); err != nil {
		return nil, err
	}
	return f, nil
}

// limit sets when to rotate.
func (f *file) limit(c config.Log) {
	f.bytes, f.age, f.keep = int64(c.RotateBytes), c.RotateDuration, c.RotateMaxFiles
	if f.bytes == 0 {
		f.bytes = config.DefaultRotateBytes
	}
}

// reopen opens the file that is at the path now. On an error it keeps the old one.
func (f *file) reopen() error {
	info, err := os.Stat(f.path)
	isNew := errors.Is(err, fs.ErrNotExist)
	switch {
	case err == nil && !info.Mode().IsRegular():
		// Opening a pipe would block, and a device cannot be rotated.
		return fmt.Errorf("log_file: %s is not a file", f.path)
	case isNew:
		f.made = true
		if err := os.MkdirAll(filepath.Dir(f.path), dirMode); err != nil {
			return fmt.Errorf("log_file: %w", err)
		}
	}
	next, err := os.OpenFile(f.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, fileMode)
	if err != nil {
		return fmt.Errorf("log_file: %w", err)
	}
	if isNew {
		_ = next.Chmod(fileMode) // the umask may have taken bits away; some file systems have no modes
	}
	if info, err = next.Stat(); err != nil {
		return errors.Join(fmt.Errorf("log_file: %w", err), next.Close())
	}
	f.close()
	f.f, f.size, f.torn = next, info.Size(), false
	f.born = time.Now()
	if f.size > 0 {
		f.born = birth(f.path, f.born)
	}
	return nil
}

// close closes the file; later writes are errors.
func (f *file) close() {
	if f.f != nil {
		_ = f.f.Close() // nothing is buffered
		f.f = nil
	}
}

// discard closes a file that was not written to, and removes it if openFile created it.
func (f *file) discard() {
	f.close()
	if f.made && f.size == 0 {
		_ = os.Remove(f.path) // on failure only an empty file remains
	}
}

// write appends a line. It first ends a line that was cut off by a full disk.
func (f *file) write(line []byte) error {
	if f.f == nil {
		return fs.ErrClosed
	}
	if f.due(len(line)) {
		f.rotate()
	}
	if f.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := f.f.Write(line)
	f.size += int64(n)
	if n > 0 {
		f.torn = !bytes.HasSuffix(line[:n], []byte{'\n'})
	}
	return err
}

// due reports whether to rotate before n more bytes.
func (f *file) due(n int) bool {
	now := time.Now()
	if f.size == 0 || now.Before(f.wait) {
		return false
	}
	if f.age > 0 && now.Sub(f.born) >= f.age {
		return true
	}
	if f.size+int64(n) <= f.bytes {
		return false
	}
	if info, err := f.f.Stat(); err == nil {
		f.size = info.Size() // another program may have truncated it
	}
	return f.size > 0 && f.size+int64(n) > f.bytes
}

// rotate moves the file away and opens another. If that fails, the old file stays in use: too large is better than
// lost.
func (f *file) rotate() {
	to := f.rotated(time.Now())
	for ; ; to = f.rotated(time.Now()) {
		if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			f.wait = time.Now().Add(rotateAgain)
			return
		}
	}
	err := os.Rename(f.path, to)
	if err == nil || errors.Is(err, fs.ErrNotExist) { // another program moved it already
		err = f.reopen()
	}
	if err != nil {
		f.wait = time.Now().Add(rotateAgain)
		return
	}
	f.prune()
}

// rotated returns the name of a file that is moved away at t.
func (f *file) rotated(t time.Time) string {
	ext := filepath.Ext(f.path)
	return strings.TrimSuffix(f.path, ext) + "-" + t.UTC().Format(stamp) + ext
}

// prune removes rotated files past the number to keep, oldest first.
func (f *file) prune() {
	if f.keep == 0 {
		return
	}
	dir, ext := filepath.Dir(f.path), filepath.Ext(f.path)
	prefix := strings.TrimSuffix(filepath.Base(f.path), ext) + "-"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	var found []string
	for _, e := range entries {
		middle, ok := strings.CutPrefix(e.Name(), prefix)
		middle, suffixed := strings.CutSuffix(middle, ext)
		if _, err := time.Parse(stamp, middle); ok && suffixed && err == nil {
			found = append(found, e.Name())
		}
	}
	slices.Sort(found)
	for _, name := range found[:max(0, len(found)-f.keep)] {
		_ = os.Remove(filepath.Join(dir, name)) // the next rotation tries again
	}
}
