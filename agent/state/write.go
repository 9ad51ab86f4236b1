// Package state reads and writes the files of an agent: the node id, files for each network and the locks in the state
// directory, and the subnet file that container runtimes read.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/files"
)

// WriteFile replaces the file at path atomically: a reader sees either the old or the new content, also after a crash
// or on a full disk. It creates the directory if necessary.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return writeFile(path, data, func(tmp *os.File) error { return tmp.Chmod(mode) })
}

// ReplaceFile replaces the content of a file of the operator as WriteFile does. It keeps the owner and the mode of an
// existing file, and a symlink to it. The directory must exist.
func ReplaceFile(path string, data []byte) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return writeFile(path, data, func(tmp *os.File) error { return tmp.Chmod(0o644) })
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return &os.PathError{Op: "write", Path: path, Err: files.ErrNotRegular}
	}
	return writeFile(path, data, func(tmp *os.File) error {
		owner := info.Sys().(*syscall.Stat_t)
		return errors.Join(tmp.Chown(int(owner.Uid), int(owner.Gid)), tmp.Chmod(info.Mode().Perm()))
	})
}

// writeFile replaces the file at path with one that has the data, and the owner and mode that setOwner gives it.
func writeFile(path string, data []byte, setOwner func(tmp *os.File) error) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tmp.Close(), os.Remove(tmp.Name()))
		}
	}()
	if _, err := tmp.Write(data); err != nil {
		return err
	}
	if err := setOwner(tmp); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return fmt.Errorf("%s was replaced: %w", path, err)
	}
	return nil
}

// writeJSON replaces a file that only its owner may read.
func writeJSON(path string, content any) error {
	data, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(path, append(data, '\n'), 0o600)
}

// Unfinished returns the temporary files beside path that WriteFile left behind because its process was killed.
func Unfinished(path string) (out []string) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil // there is no such directory, or it cannot be read
	}
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), "."+filepath.Base(path)+".")
		if _, err := strconv.ParseUint(number, 10, 64); ok && err == nil {
			out = append(out, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	return out
}

// removeWithDir removes the file at path, and its directory if it is empty then.
func removeWithDir(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	err := os.Remove(filepath.Dir(path))
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}
