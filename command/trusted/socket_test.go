package trusted

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckSocket covers a listener of this namespace, one that only the table of another namespace has, a socket of
// another user, and one that a killed agent left behind.
func TestCheckSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "leno.sock")
	users := Users(dir)
	if err := CheckSocket(path, users...); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no socket: %v", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := CheckSocket(path, users...); err != nil {
		t.Error(err)
	}
	if err := CheckSocket(path); err == nil || !strings.Contains(err.Error(), "belongs to user") {
		t.Errorf("of a user who is not trusted: %v", err)
	}
	moved := filepath.Join(dir, "other.sock")
	if err := os.Link(path, moved); err != nil {
		t.Fatal(err)
	}
	if err := CheckSocket(moved, users...); err == nil || !strings.Contains(err.Error(), "another network namespace") {
		t.Errorf("not in this namespace's table: %v", err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := CheckSocket(path, users...); err == nil {
		t.Error("a socket without a listener is accepted")
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := CheckSocket(path, users...); err == nil || !strings.Contains(err.Error(), "can be written by others") {
		t.Errorf("in a directory of everyone: %v", err)
	}
}

// TestIsListed: only a listener counts, not a connection to it.
func TestIsListed(t *testing.T) {
	const table = `Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 99 /run/leno/leno.sock
0000000000000000: 00000003 00000000 00000000 0001 03 98 /run/leno/connected.sock
0000000000000000: 00000002 00000000 00010000 0001 01 97
`
	for path, want := range map[string]bool{"/run/leno/leno.sock": true, "/run/leno/connected.sock": false, "/run/leno": false, "": false} {
		if got := isListed(table, path); got != want {
			t.Errorf("%q: %v", path, got)
		}
	}
}
