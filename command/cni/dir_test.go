package cni

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/config"
)

// TestDataDir: leno-cni keeps its data where no other user can write or replace it.
func TestDataDir(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: files of other users")
	}
	const other = 65534
	for _, tt := range []struct {
		name string
		make func(dir string) error // makes the content of dir
		path string
		want string // "" for accepted
	}{
		{"new", nil, "a/b", ""},
		{"there", func(dir string) error { return os.Mkdir(dir+"/a", 0o755) }, "a", ""},
		{"another user's", func(dir string) error {
			return errors.Join(os.Mkdir(dir+"/a", 0o755), os.Chown(dir+"/a", other, other))
		}, "a", "/a belongs to user 65534"},
		{"below another user's", func(dir string) error {
			return errors.Join(os.MkdirAll(dir+"/a/b", 0o755), os.Chown(dir+"/a", other, other))
		}, "a/b", "/a belongs to user 65534"},
		{"new below another user's", func(dir string) error {
			return errors.Join(os.Mkdir(dir+"/a", 0o755), os.Chown(dir+"/a", other, other))
		}, "a/b", "/a belongs to user 65534"},
		{"writable by others", func(dir string) error { return errors.Join(os.Mkdir(dir+"/a", 0), os.Chmod(dir+"/a", 0o777)) }, "a", "others than user 0 can write"},
		{"writable by others, sticky", func(dir string) error {
			return errors.Join(os.Mkdir(dir+"/a", 0), os.Chmod(dir+"/a", 0o777|os.ModeSticky))
		}, "a", "others than user 0 can write"},
		{"new in a sticky one", func(dir string) error {
			return errors.Join(os.Mkdir(dir+"/a", 0), os.Chmod(dir+"/a", 0o777|os.ModeSticky))
		}, "a/b", ""},
		{"a link of another user", func(dir string) error {
			return errors.Join(os.Symlink(dir, dir+"/a"), os.Lchown(dir+"/a", other, other))
		}, "a", "/a belongs to user 65534"},
		{"a link to another user's", func(dir string) error {
			return errors.Join(os.Mkdir(dir+"/b", 0o755), os.Chown(dir+"/b", other, other), os.Symlink(dir+"/b", dir+"/a"))
		}, "a/c", "/b belongs to user 65534"},
		{"a file", func(dir string) error { return os.WriteFile(dir+"/a", nil, 0o600) }, "a", "not a directory"},
		{"below a file", func(dir string) error { return os.WriteFile(dir+"/a", nil, 0o600) }, "a/b", "not a directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.make != nil {
				if err := tt.make(dir); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, tt.path)
			err := makeDataDir(path)
			if tt.want == "" {
				info, stat := os.Stat(path)
				if err != nil || stat != nil || !info.IsDir() || tt.name == "new" && info.Mode().Perm() != 0o700 {
					t.Errorf("%v, %v", err, stat)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v lacks %q", err, tt.want)
			}
		})
	}
}

// TestRelativeDataDir: a relative dataDir, below the runtime's working directory, is never used.
// DEL still ends, because it must not fail on a broken configuration.
func TestRelativeDataDir(t *testing.T) {
	for _, dir := range []string{"", ".", "x", "./x", "../x"} {
		if err := checkDataDir(dir); err == nil || !strings.Contains(err.Error(), "is not an absolute path") {
			t.Errorf("%q: %v", dir, err)
		}
		c, err := parseForDel([]byte(`{"cniVersion":"1.0.0","name":"x","type":"leno-cni","dataDir":"` + dir + `"}`))
		if err != nil || c.DataDir != config.CNIDir {
			t.Errorf("%q: %q, %v", dir, c.DataDir, err)
		}
	}
}
