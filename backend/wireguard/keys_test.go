package wireguard

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

func TestEnsureKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "wireguard.key")
	key, created, err := ensureKey(path, wgtypes.Key{})
	if err != nil || !created || key == (wgtypes.Key{}) {
		t.Fatalf("%v, %t, %v", key.PublicKey(), created, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file %v, %v", info, err)
	}
	again, created, err := ensureKey(path, wgtypes.Key{})
	if err != nil || created || again != key {
		t.Errorf("another key: %t, %v", created, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	again, created, err = ensureKey(path, key)
	if err != nil || !created || again != key {
		t.Errorf("the known key was not written again: %t, %v", created, err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("files %v, %v", left, err)
	}
	// A key that another program wrote is used as WireGuard uses it.
	raw := strings.Repeat("/", 43) + "="
	if err := os.WriteFile(path, []byte(raw), 0o600); err != nil {
		t.Fatal(err)
	}
	key, _, err = ensureKey(path, wgtypes.Key{})
	if err != nil || key[0] != 0xf8 || key[31] != 0x7f {
		t.Errorf("key % x, %v", key, err)
	}
}

func TestReadKeyRejects(t *testing.T) {
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"readable by others":    {testKey(1).String(), 0o604, "can be read or written by others (mode 0604): run chmod 600 "},
		"readable by the group": {testKey(1).String(), 0o640, "can be read or written by others (mode 0640)"},
		"empty":                 {"", 0o600, "is not 32 bytes in base64"},
		"short":                 {"AAAA\n", 0o600, "is not 32 bytes in base64"},
		"zero":                  {wgtypes.Key{}.String(), 0o600, "is all zeros"},
		"huge":                  {strings.Repeat("A", 1<<20), 0o600, "is not 32 bytes in base64"},
	} {
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, tt.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := readKey(path); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		} else if tt.text != "" && strings.Contains(err.Error(), strings.TrimSpace(tt.text)) {
			t.Errorf("%s: %v shows what the file has", name, err)
		}
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, dir} {
		if _, err := readKey(path); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := readKey(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
