// Package owned creates directories that belong to a process, so that a later process can tell
// which ones a killed process has left behind. It does not know what the directories contain.
package owned

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockName is the file whose lock marks a directory as in use. The kernel releases the lock when
// its process ends in any way, and child processes do not inherit it.
const lockName = ".owner"

// A Dir is a directory that this process owns.
type Dir struct {
	Path string
	lock *os.File
}

// Make creates a directory at path, which must not exist.
func Make(path string) (*Dir, error) {
	// The directory gets its name once it is locked, so that a sweep never finds it without an
	// owner.
	begun, err := os.MkdirTemp(filepath.Dir(path), ".begun-")
	if err != nil {
		return nil, err
	}
	d, err := lock(begun)
	if err == nil {
		if err = os.Chmod(begun, 0o755); err == nil {
			err = unix.Renameat2(unix.AT_FDCWD, begun, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make %s: %w", path, err), d.Close(), os.RemoveAll(begun))
	}
	d.Path = path
	return d, nil
}

func lock(dir string) (*Dir, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Dir{Path: dir, lock: f}, nil
}

// Keep gives up the ownership for good: no sweep takes the directory for one that was left behind.
func (d *Dir) Keep() error {
	return errors.Join(os.Remove(filepath.Join(d.Path, lockName)), d.Close())
}

// Close ends the ownership and leaves the directory in place. It may be called again.
func (d *Dir) Close() error {
	if d == nil || d.lock == nil {
		return nil
	}
	err := d.lock.Close()
	d.lock = nil
	return err
}

// Remove removes the directory with everything in it.
func (d *Dir) Remove() error { return errors.Join(os.RemoveAll(d.Path), d.Close()) }

// Sweep calls remove for each directory that matches the pattern, as in filepath.Match, and whose
// process ended without removing it.
func Sweep(pattern string, remove func(path string) error) error {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		if _, err := os.Lstat(filepath.Join(path, lockName)); err != nil {
			continue // kept, or not created by this package
		}
		d, err := lock(path)
		switch {
		case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, os.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		default:
			errs = append(errs, remove(path), d.Close())
		}
	}
	return errors.Join(errs...)
}
