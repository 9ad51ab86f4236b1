// Package trusted decides which files and programs of this host a command that runs as root may believe. Any user can
// listen at the agent's address while no agent runs, and name a file of his own.
package trusted

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxBytes is how much of a file is read.
const maxBytes = 1 << 16

// Users returns the users who may run an agent: root, the caller's user, and the owner of the directory of subnet
// files.
func Users(directory string) []int {
	out := []int{0, os.Geteuid()}
	if info, err := os.Stat(directory); err == nil {
		out = append(out, ownerOf(info).UID)
	}
	return out
}

// ReadFile reads a file that only trusted users can have written or replaced. root acts on its
// content, and while no agent runs, its path may come from any program that listens at the agent's
// address.
func ReadFile(path string, users ...int) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%q is not an absolute path", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	if err := checkDirectories(real, users); err != nil {
		return "", err
	}
	// O_NONBLOCK: opening a pipe without a writer would block forever.
	file, err := os.OpenFile(real, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", path)
	}
	if err == nil {
		err = checkOwner(path, ownerOf(info), users)
	}
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(file, maxBytes))
	return string(text), err
}

// checkDirectories returns an error unless only trusted users can replace what is at a path without links.
func checkDirectories(path string, users []int) error {
	for dir := "/"; ; {
		info, err := os.Lstat(dir)
		if err == nil {
			err = checkOwner(dir, ownerOf(info), users)
		}
		if err != nil {
			return err
		}
		rest, inside := strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/")
		name, _, deeper := strings.Cut(rest, "/")
		if !inside || !deeper {
			return nil
		}
		dir = filepath.Join(dir, name)
	}
}

// fileOwner describes who can change a file or directory: its owner and its mode.
type fileOwner struct {
	UID  int
	Mode fs.FileMode
}

// checkOwner returns an error unless only trusted users can have written a file, or can replace
// the entries of a directory. Others may write into a directory such as /tmp, where they cannot
// touch files of other users.
func checkOwner(path string, o fileOwner, users []int) error {
	switch {
	case !slices.Contains(users, o.UID):
		return fmt.Errorf("%s belongs to user %d: a subnet file and the directories above it must belong to root, "+
			"or to the owner of /run/leno", path, o.UID)
	case o.Mode.Perm()&0o022 != 0 && o.Mode&fs.ModeSticky == 0:
		return fmt.Errorf("%s can be written by others (its mode is %04o): chmod go-w", path, o.Mode.Perm())
	}
	return nil
}

func ownerOf(info fs.FileInfo) fileOwner {
	o := fileOwner{UID: -1, Mode: info.Mode()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		o.UID = int(st.Uid)
	}
	return o
}
