package state

import (
	"strings"
	"testing"
)

func TestDataDirIsLocked(t *testing.T) {
	dir := t.TempDir()
	unlock, err := LockDataDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockDataDir(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second agent got the directory: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	unlock, err = LockDataDir(dir)
	if err != nil {
		t.Fatalf("not free again: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
}
