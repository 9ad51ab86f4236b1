package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockPatience is how long a call waits for another one of the same container or bridge, which may wait for other
	// plugins.
	lockPatience = time.Minute
	// lockPause is the time between attempts.
	lockPause = 20 * time.Millisecond
)

// lockDir returns the directory of the lock files, one for each container. Only root can open them, whereas a container
// can lock its own network namespace.
func lockDir(dataDir string) string { return filepath.Join(dataDir, "locks") }

// lockContainer locks a container against other calls until unlock, which removes the lock file if last is true.
func lockContainer(ctx context.Context, dataDir, id string, last bool) (unlock func(), err error) {
	if err := os.MkdirAll(lockDir(dataDir), 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(lockDir(dataDir), shortName(id))
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			return nil, err
		}
		if err := lock(ctx, file); err != nil {
			return nil, errors.Join(err, file.Close())
		}
		if !isAt(file, path) { // a call that has ended removed it
			_ = file.Close()
			continue
		}
		return func() {
			if last {
				_ = os.Remove(path) // GC removes it otherwise
			}
			file.Close()
		}, nil
	}
}

// removeLocks removes lock files, except those of the containers to keep and of calls at work.
func removeLocks(dataDir string, keep ...string) error {
	files, err := entries(lockDir(dataDir))
	errs := []error{err}
	for _, entry := range files {
		path := filepath.Join(lockDir(dataDir), entry.Name())
		if slices.ContainsFunc(keep, func(id string) bool { return shortName(id) == entry.Name() }) {
			continue
		}
		file, err := os.Open(path)
		if err != nil {
			continue // a call has removed it
		}
		if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && isAt(file, path) {
			errs = append(errs, os.Remove(path))
		}
		_ = file.Close()
	}
	return errors.Join(errs...)
}

// isAt reports whether a path leads to an open file.
func isAt(file *os.File, path string) bool {
	mine, mineErr := file.Stat()
	now, err := os.Stat(path)
	return mineErr == nil && err == nil && os.SameFile(mine, now)
}

// lockPath locks a file or directory against other calls until unlock.
func lockPath(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := lock(ctx, file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { file.Close() }, nil
}

// lock locks an open file until it is closed. The kernel releases the lock when the program is killed.
func lock(ctx context.Context, file *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock %s, which another call holds: %w", file.Name(), ctx.Err())
		case <-time.After(lockPause):
		}
	}
}
