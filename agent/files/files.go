// Package files reads files whose paths an operator chose, which may be no files, or on a file system that does not
// answer.
package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// ReadTimeout bounds how long reading a configuration, or the files that it names, may take: a file on a network file
// system whose server does not answer blocks forever, and so does everything that waits for it.
const ReadTimeout = 10 * time.Second

// Read reads a file whose path an operator chose, such as a configuration file or a key. It refuses a file that
// is not regular, because reading a FIFO or a terminal waits for another process, and gives up when ctx ends. The
// only exceptions are the empty device (/dev/null) and files that were handed to this process (/dev/stdin,
// /dev/fd/63). Errors name the path.
func Read(ctx context.Context, path string) ([]byte, error) {
	return Within(ctx, path, func() ([]byte, error) {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() && !isHandedOver(path) {
			return nil, &fs.PathError{Op: "read", Path: path, Err: ErrNotRegular}
		}
		return os.ReadFile(path)
	})
}

// ErrNotRegular is the error of Read for a FIFO, a device, a socket or a directory.
var ErrNotRegular = errors.New("is not a regular file")

// isHandedOver reports whether the path is a file descriptor of this process, or
// the empty device.
func isHandedOver(path string) bool {
	return path == os.DevNull || path == "/dev/stdin" || strings.HasPrefix(path, "/dev/fd/") ||
		strings.HasPrefix(path, "/proc/self/fd/")
}

// Within returns the result of read, or an error that names path when ctx ends before that. read then continues in
// the background and its result is dropped: no system call on a file can be interrupted. Once ctx has ended, read is
// not called.
func Within[T any](ctx context.Context, path string, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	if ctx.Err() == nil {
		go func() {
			value, err := read()
			done <- result{value, err}
		}()
	}
	var none T
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
			return none, fmt.Errorf("%s: %w", path, err)
		}
		return none, fmt.Errorf("%s: reading it takes too long, does its file system answer? %w", path, ctx.Err())
	}
}
