package programs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	home, path := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CACHE_HOME", home)
	t.Setenv("PATH", path)
	write := func(parts ...string) string {
		t.Helper()
		file := filepath.Join(parts...)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return file
	}
	expect := func(p Program, want string) {
		t.Helper()
		if got, err := p.Find(); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", p.Variable, got, err, want)
		}
	}
	for _, p := range []Program{Consul, Etcd, Etcdutl, OldEtcd} {
		t.Setenv(p.Variable, "")
		_, err := p.Find()
		if err == nil || !strings.Contains(err.Error(), p.Variable) || !strings.Contains(err.Error(), "tools/get ") {
			t.Errorf("%s: got %v, want an error that says what to do", p.Variable, err)
		}
	}

	write(home, "leno-tools", "consul-1.20.6", "consul")
	consul := write(home, "leno-tools", "consul-1.22.0", "consul")
	etcd := write(home, "leno-tools", "etcd-3.6.5-2-17", "etcd")
	etcdutl := write(home, "leno-tools", "etcd-3.6.5-2-17", "etcdutl")
	old := write(home, "leno-tools", "etcd-server-3.4.23", "etcd")
	expect(Consul, consul)
	expect(Etcd, etcd)
	expect(Etcdutl, etcdutl)
	expect(OldEtcd, old)

	installed := write(path, "etcd")
	expect(Etcd, installed)
	expect(OldEtcd, old)
	t.Setenv(Etcd.Variable, "/named/etcd")
	expect(Etcd, "/named/etcd")
}
