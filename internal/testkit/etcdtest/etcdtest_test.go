package etcdtest

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/internal/testkit/waiting"
)

var common Shared

func TestMain(m *testing.M) {
	waiting.Parallel(8)
	code := m.Run()
	common.Stop()
	os.Exit(code)
}

func testContext(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}

func put(tb testing.TB, c *clientv3.Client, key, value string) (rev int64) {
	tb.Helper()
	response, err := c.Put(testContext(tb), key, value)
	if err != nil {
		tb.Fatal(err)
	}
	return response.Header.Revision
}

// putOnceElected repeats a write until the members have a leader again.
func putOnceElected(tb testing.TB, c *clientv3.Client, key, value string) {
	tb.Helper()
	ctx := testContext(tb)
	for {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		_, err := c.Put(attempt, key, value)
		cancel()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			tb.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// get returns the value of a key, "" if it does not exist, with the ID of the cluster and its revision.
func get(tb testing.TB, c *clientv3.Client, key string) (value string, cluster uint64, rev int64) {
	tb.Helper()
	response, err := c.Get(testContext(tb), key)
	if err != nil {
		tb.Fatal(err)
	}
	for _, kv := range response.Kvs {
		value = string(kv.Value)
	}
	return value, response.Header.ClusterId, response.Header.Revision
}

func wantValue(tb testing.TB, c *clientv3.Client, key, want string) {
	tb.Helper()
	if got, _, _ := get(tb, c, key); got != want {
		tb.Errorf("%s is %q, want %q", key, got, want)
	}
}

// eachProgram runs a test with the newest and with the old etcd.
func eachProgram(t *testing.T, test func(t *testing.T, program string)) {
	t.Parallel()
	t.Run("new", func(t *testing.T) {
		t.Parallel()
		test(t, "")
	})
	t.Run("old", func(t *testing.T) {
		t.Parallel()
		test(t, OldProgram(t))
	})
}

func TestShared(t *testing.T) {
	t.Parallel()
	s := common.Get(t)
	if common.Get(t) != s {
		t.Error("two shared servers")
	}
	c := s.Client(t)
	put(t, c, "shared/a", "1")
	wantValue(t, c, "shared/a", "1")
	defer func() {
		if recover() == nil {
			t.Error("a test could stop the shared server")
		}
	}()
	s.Stop(0)
}

func TestRestartKeepsData(t *testing.T) {
	eachProgram(t, func(t *testing.T, program string) {
		s := Start(t, Options{Program: program})
		c := s.Client(t)
		put(t, c, "a", "1")
		endpoints := s.Endpoints()
		s.Stop(0)
		s.Stop(0) // no effect
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err := c.Get(ctx, "a"); err == nil {
			t.Error("a stopped server answered")
		}
		s.Restart(0)
		wantValue(t, c, "a", "1")
		if got := s.Endpoints(); !slices.Equal(got, endpoints) {
			t.Errorf("the endpoints changed from %v to %v", endpoints, got)
		}
	})
}

func TestPause(t *testing.T) {
	t.Parallel()
	s := Start(t, Options{})
	c := s.Client(t)
	s.Pause(0)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := c.Get(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a paused server: %v, want a timeout", err)
	}
	s.Resume(0)
	wantValue(t, c, "a", "")
}

func TestMembers(t *testing.T) {
	eachProgram(t, func(t *testing.T, program string) {
		s := Start(t, Options{Program: program, Members: 3})
		c := s.Client(t)
		put(t, c, "a", "1")
		s.Stop(0)
		putOnceElected(t, c, "a", "2")
		s.Stop(1)
		s.Stop(2)
		s.Restart(2) // alone, it does not become ready
		s.Restart(1)
		s.Restart(0)
		for _, endpoint := range s.Endpoints() {
			one := s.Client(t, func(conf *clientv3.Config) { conf.Endpoints = []string{endpoint} })
			wantValue(t, one, "a", "2")
		}
	})
}

func TestRestoreSnapshot(t *testing.T) {
	t.Parallel()
	for name, members := range map[string]int{"one": 1, "three": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Start(t, Options{Members: members, Auth: true})
			c := s.Client(t)
			put(t, c, "a", "1")
			_, cluster, saved := get(t, c, "a")
			snapshot := s.SaveSnapshot(t)
			latest := put(t, c, "a", "2")

			s.RestoreSnapshot(t, snapshot)
			value, id, rev := get(t, s.Client(t), "a")
			if value != "1" || rev != saved || id != cluster {
				t.Errorf("restored: value %q, revision %d, cluster %x; want 1, %d, %x", value, rev, id, saved, cluster)
			}

			s.RestoreSnapshot(t, snapshot, "--initial-cluster-token=other", "--bump-revision=1000", "--mark-compacted")
			value, id, rev = get(t, s.Client(t), "a")
			if value != "1" || rev <= latest || id == cluster {
				t.Errorf("restored: value %q, revision %d, cluster %x; want 1, above %d, not %x",
					value, rev, id, latest, cluster)
			}
		})
	}
}

func TestCompact(t *testing.T) {
	eachProgram(t, func(t *testing.T, program string) {
		s := Start(t, Options{Program: program})
		c := s.Client(t)
		first := put(t, c, "a", "1")
		s.Compact(t, put(t, c, "a", "2"))
		response := <-c.Watch(testContext(t), "a", clientv3.WithRev(first))
		if err := response.Err(); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("a watch from a compacted revision: %v", err)
		}
	})
}

func TestAuth(t *testing.T) {
	eachProgram(t, func(t *testing.T, program string) {
		s := Start(t, Options{Program: program, Auth: true})
		put(t, s.Client(t), "a/x", "1")
		s.AddUser(t, "reader", "secret",
			Right{Key: "a/", Prefix: true, Access: Read},
			Right{Key: "b", Access: ReadWrite})

		reader := s.Client(t, func(conf *clientv3.Config) { conf.Username, conf.Password = "reader", "secret" })
		wantValue(t, reader, "a/x", "1")
		put(t, reader, "b", "2")
		for _, key := range []string{"a/x", "b/y", "c"} {
			if _, err := reader.Put(testContext(t), key, "3"); !errors.Is(err, rpctypes.ErrPermissionDenied) {
				t.Errorf("the reader wrote %s: %v", key, err)
			}
		}

		stranger := s.Client(t, func(conf *clientv3.Config) { conf.Username, conf.Password = "", "" })
		if _, err := stranger.Get(testContext(t), "a/x"); !errors.Is(err, rpctypes.ErrUserEmpty) {
			t.Errorf("a client without a user: %v", err)
		}
		wrong := clientv3.Config{
			Endpoints:   s.Endpoints(),
			DialTimeout: patience,
			Username:    "reader",
			Password:    "wrong",
		}
		if c, err := clientv3.New(wrong); !errors.Is(err, rpctypes.ErrAuthFailed) {
			if err == nil {
				_ = c.Close()
			}
			t.Errorf("a client with a wrong password: %v", err)
		}
	})
}

func TestTLS(t *testing.T) {
	eachProgram(t, func(t *testing.T, program string) {
		s := Start(t, Options{Program: program, TLS: true, Auth: true})
		c := s.Client(t)
		put(t, c, "a", "1")
		s.Stop(0)
		s.Restart(0)
		wantValue(t, c, "a", "1")

		s.AddUser(t, "reader", "secret", Right{Key: "a", Access: Read})
		certFile, keyFile := s.IssueCert(t, "reader")
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			t.Fatal(err)
		}
		reader := s.Client(t, func(conf *clientv3.Config) {
			conf.Username, conf.Password = "", ""
			conf.TLS = conf.TLS.Clone()
			conf.TLS.Certificates = []tls.Certificate{pair}
		})
		wantValue(t, reader, "a", "1")

		without := s.tls.Clone()
		without.Certificates = nil
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: without, DisableKeepAlives: true}}
		if err := checkHealth(client, s.Endpoints()[0]+"/health"); err == nil {
			t.Error("a client without a certificate was served")
		}
	})
}

func TestFailedStart(t *testing.T) {
	t.Parallel()
	_, err := start(t.TempDir(), Options{ExtraArgs: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("%v, want what etcd has printed", err)
	}
	_, err = start(t.TempDir(), Options{Program: filepath.Join(t.TempDir(), "etcd")})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that does not exist: %v", err)
	}
}
