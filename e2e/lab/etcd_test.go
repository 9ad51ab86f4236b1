package lab

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestEtcd checks that three servers keep their data when they are stopped and killed, that a cut
// server gives no consistent answer, and that Restore sets all of them back.
func TestEtcd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	defer goleak.VerifyNone(t)
	ctx := within(t, 15*time.Minute)
	l, err := New(ctx, Options{Hosts: 1, Servers: 3, Store: StoreEtcd})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	}()
	if l.Consul != nil || len(l.StoreServers) != 3 || l.Store.Address() != "192.0.2.1:2379" {
		t.Errorf("store %v of %d servers, Consul %v", l.Store, len(l.StoreServers), l.Consul)
	}
	config := l.Hosts[0].Config()
	const endpoints = `endpoints = ["http://192.0.2.1:2379", "http://192.0.2.2:2379", "http://192.0.2.3:2379"]`
	if !strings.Contains(config, endpoints) || strings.Contains(config, "consul") {
		t.Errorf("configuration of a host:\n%s", config)
	}
	client, err := l.Etcd.Client()
	if err != nil {
		t.Fatal(err)
	}
	put := func(value string) {
		t.Helper()
		if _, err := client.Put(ctx, "leno/x", value); err != nil {
			t.Fatal(err)
		}
	}
	value := func() string {
		t.Helper()
		got, err := client.Get(ctx, "leno/x")
		if err != nil || len(got.Kvs) != 1 {
			t.Fatalf("%v, %v", got, err)
		}
		return string(got.Kvs[0].Value)
	}
	put("1")
	for _, way := range []struct {
		name string
		end  func(Store) error
	}{{"stop", func(s Store) error { return s.Stop(ctx) }}, {"kill", Store.Kill}} {
		name := way.name
		for _, s := range l.StoreServers {
			if err := way.end(s); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if err := StartAll(ctx, l.StoreServers); err != nil {
			t.Fatalf("start after %s: %v", name, err)
		}
		if got := value(); got != "1" {
			t.Errorf("after %s: %q", name, got)
		}
	}

	snapshot, err := client.SnapshotWithVersion(ctx)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(snapshot.Snapshot)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(l.Dir, "snapshot.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	put("2")
	if err := l.RestoreEtcd(ctx, path); err != nil {
		t.Fatal(err)
	}
	if got := value(); got != "1" {
		t.Errorf("restored: %q", got)
	}

	if err := l.Etcd.Cut(ctx); err != nil {
		t.Fatal(err)
	}
	alone, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if got, err := client.Get(alone, "leno/x"); err == nil {
		t.Errorf("a server that is cut off answers %v", got)
	}
	if err := l.Etcd.Mend(ctx); err != nil {
		t.Fatal(err)
	}
	err = WaitFor(ctx, "an answer of the mended server", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := client.Get(ctx, "leno/x")
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

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
