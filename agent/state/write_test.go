package state

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWriteFileAtomicKeepsTheOldFileWhenItFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	// Writing a file in place of a directory fails at the last step.
	other := filepath.Join(dir, "d")
	if err := os.MkdirAll(filepath.Join(other, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(other, []byte("new"), 0o644); err == nil {
		t.Error("a directory was replaced by a file")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 {
		t.Errorf("temporary files were left behind: %v", entries)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "old" {
		t.Errorf("%q, %v", data, err)
	}
}

// TestReplaceFile: the owner and the mode of a file and a link to it stay, and no directory is made.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "daemon.json"), filepath.Join(dir, "link.json")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	owner := os.Geteuid()
	if owner == 0 {
		owner = 64199
		if err := os.Chown(path, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if err := ReplaceFile(link, []byte("new")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	info, statErr := os.Lstat(path)
	if err != nil || statErr != nil || string(text) != "new" || info.Mode() != 0o600 {
		t.Errorf("%q, %v, %v, %v", text, info, err, statErr)
	}
	if got := int(info.Sys().(*syscall.Stat_t).Uid); got != owner {
		t.Errorf("its owner is %d, want %d", got, owner)
	}
	if target, err := os.Readlink(link); err != nil || target != path {
		t.Errorf("the link leads to %q: %v", target, err)
	}
	if err := ReplaceFile(filepath.Join(dir, "missing", "x"), nil); err == nil {
		t.Error("it made a directory")
	}
	if err := ReplaceFile(os.DevNull, nil); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("a device: %v", err)
	}
}

// TestReplaceFileOnAFullDisk: the file stays as it is, and nothing else is left behind.
func TestReplaceFileOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a mount")
	}
	runtime.LockOSThread() // the mount ends with this thread
	dir := t.TempDir()
	err := unix.Unshare(unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err == nil {
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	path, old := filepath.Join(dir, "leno.hcl"), []byte("old")
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ReplaceFile(path, make([]byte, 64<<10)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v, want %v", err, unix.ENOSPC)
	}
	entries, err := os.ReadDir(dir)
	if data, readErr := os.ReadFile(path); err != nil || len(entries) != 1 || string(data) != string(old) {
		t.Errorf("%v, %q, %v, %v", entries, data, err, readErr)
	}
}
