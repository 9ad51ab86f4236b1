package files

import (
	"os"
	"path/filepath"
	"testing"
)

func TestIsSame(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"run/leno", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"var-run": "run", "run/leno/link.env": "a.env", "gone": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"run/leno/a.env", "run/leno/a.env", true},
		{"run/leno/a.env", "var-run/leno/a.env", true},
		{"run/leno/a.env", "var-run/../run//leno/./a.env", true},
		{"run/new/deep/a.env", "var-run/new/deep/a.env", true}, // neither exists
		{"run/leno/a.env", "run/leno/b.env", false},
		{"run/leno/a.env", "run/leno/link.env", false},
		{"run/leno/a.env", "other/a.env", false},
		{"run/new/a.env", "run/old/a.env", false},
		{"run/new/a.env", "other/new/a.env", false},
		{"gone/a.env", "gone/a.env", true},
		{"gone/a.env", "other/a.env", false},
	} {
		a, b := dir+"/"+tt.a, dir+"/"+tt.b
		if IsSame(a, b) != tt.want || IsSame(b, a) != tt.want {
			t.Errorf("%s and %s: %t", tt.a, tt.b, !tt.want)
		}
	}
	if IsSame("/a", "/nowhere/a") || !IsSame("/nowhere/a", "/nowhere/a") {
		t.Error("below the root")
	}
}
