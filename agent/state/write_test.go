package state

import (
	"os"
	"path/filepath"
	"testing"
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
