package lab

import (
	"os"
	"path/filepath"
	"testing"
)

// TestFindEtcd checks that Debian's older etcd in the cache is not taken for the one to test with.
func TestFindEtcd(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("LENO_TEST_ETCD", "")
	t.Setenv("PATH", "")
	for _, dir := range []string{"etcd-3.6.5-2-1763935909", "etcd-server-3.4.23-4+b4"} {
		path := filepath.Join(cache, "leno-tools", dir)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "etcd"), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := filepath.Join(cache, "leno-tools", "etcd-3.6.5-2-1763935909", "etcd")
	if got, err := FindEtcd(); err != nil || got != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
}
