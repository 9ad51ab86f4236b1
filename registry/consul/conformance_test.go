package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/internal/testkit/registrytest"
	"github.com/lenonet/leno/registry"
)

// suiteStore opens its clients behind a proxy that refuses keys like the strictest releases of Consul, and that closes
// the connections of blocking queries like the most impatient ones.
type suiteStore struct {
	*store
	proxy string
}

func (s suiteStore) Open(tb testing.TB) registry.Registry {
	return s.open(tb, func(c *Config) { c.Address, c.Wait = s.proxy, 4*cutAfter })
}

func (s suiteStore) Key(parts ...string) string { return s.prefix + "/" + strings.Join(parts, "/") }

func (s suiteStore) LeaseKey(n registry.Network, slot uint64) string {
	return s.Key("leases", n.Name, registry.SubnetKey(n.Plan.Subnets(slot)[0]))
}

func (s suiteStore) Keys(tb testing.TB, parts ...string) []string {
	return s.store.Keys(tb, s.Key(append(parts, "")...))
}

// cutAfter is when the proxy closes the connection of every second blocking query. In the affected versions of Consul
// it is 30 s.
const cutAfter = 500 * time.Millisecond

func TestConformance(t *testing.T) {
	t.Parallel()
	var blocking, cut atomic.Int64
	addr := proxy(t, common.get(t), func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if key, why := strangeKey(t, r); why != "" {
			t.Errorf("%s %s has the key %q", r.Method, r.URL.Path, key)
			http.Error(w, why, http.StatusBadRequest)
			return
		}
		if r.URL.Query().Has("index") && blocking.Add(1)%2 == 0 {
			cut.Add(passAndCut(w, r, pass))
			return
		}
		pass.ServeHTTP(w, r)
	})
	registrytest.Run(t, func(t *testing.T) registrytest.Store { return suiteStore{newStore(t), addr} })
	t.Run("CutOff", func(t *testing.T) { // the parts of the suite that were selected may not block for so long
		t.Parallel()
		s := newStore(t)
		watcher := suiteStore{s, addr}.Open(t)
		_, index, err := watcher.WatchNetworks(testContext(t), 0)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(testContext(t))
		ended := make(chan error, 1)
		go func() {
			_, _, err := watcher.WatchNetworks(ctx, index)
			ended <- err
		}()
		eventually(t, "a blocking query is cut off", func() bool { return cut.Load() > 0 })
		cancel()
		wantIs(t, <-ended, context.Canceled)
	})
}

// passAndCut passes a request on, and closes its connection if there is no answer after cutAfter. It returns how many
// connections it has closed.
func passAndCut(w http.ResponseWriter, r *http.Request, pass http.Handler) (closed int64) {
	ctx, cancel := context.WithTimeout(r.Context(), cutAfter)
	defer cancel()
	answer := httptest.NewRecorder()
	pass.ServeHTTP(answer, r.WithContext(ctx))
	if ctx.Err() != nil {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_ = conn.Close()
		}
		return 1
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
	return 0
}

// TestCutAnswers watches through connections that are closed again and again while nothing changes. No call returns
// before there is a change, and all see it.
func TestCutAnswers(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var cut atomic.Int64
	addr := proxy(t, common.get(t), func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if !r.URL.Query().Has("index") {
			pass.ServeHTTP(w, r)
			return
		}
		cut.Add(passAndCut(w, r, pass))
	})
	watcher, n, leases, index := watched(t, s, func(c *Config) { c.Address, c.Wait = addr, 4*cutAfter })
	_, networksIndex, err := watcher.WatchNetworks(testContext(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	changed := make(chan struct{})
	var calls errgroup.Group
	call := func(what string, watch func() error) {
		calls.Go(func() error {
			err := watch()
			select {
			case <-changed:
			default:
				return fmt.Errorf("%s returned before there was a change: %w", what, err)
			}
			return err
		})
	}
	call("networks", func() error {
		_, _, err := watcher.WatchNetworks(testContext(t), networksIndex)
		return err
	})
	call("leases", func() error {
		_, _, err := watcher.WatchLeases(testContext(t), n, index)
		return err
	})
	call("one lease", func() error {
		_, _, err := watcher.WatchLease(testContext(t), n, leases[0].Subnet(), leases[0].ModifyIndex)
		return err
	})
	eventually(t, "connections are closed", func() bool { return cut.Load() >= 9 })
	close(changed)
	putNetwork(t, s, "other", "10.6.0.0/16")
	c := claim(0)
	c.Session, c.Prefer, c.MTU = leases[0].Session, leases[0].Subnet(), 1400
	if _, err := s.open(t).Acquire(testContext(t), n, c); err != nil {
		t.Fatal(err)
	}
	if err := calls.Wait(); err != nil {
		t.Error(err)
	}
}

// plainKey matches a little less than every release of Consul accepts: Consul 1.21.5 also accepts upper case and
// ",?&=".
var plainKey = regexp.MustCompile(`^[a-z0-9._/-]*$`)

// refusal returns why a release of Consul refuses a key in the path of a request, or changes it, and "" if none does.
func refusal(key string) string {
	switch folder := strings.TrimSuffix(key, "/"); {
	case !plainKey.MatchString(key): // 1.21.5
		return "Invalid key name. Keys must respect the following format: " + plainKey.String()
	case folder != "" && folder != path.Clean(folder) || slices.Contains(strings.Split(key, "/"), ".."): // since 1.22.0
		return "invalid key name, path traversal is not allowed"
	}
	return ""
}

// strangeKey returns a key that a request has in its path or writes in a transaction, and why it is refused. Such keys
// of other programs can only be read and deleted in transactions.
func strangeKey(t *testing.T, r *http.Request) (key, why string) {
	if key, ok := strings.CutPrefix(r.URL.Path, "/v1/kv/"); ok {
		return key, refusal(key)
	}
	if r.URL.Path != "/v1/txn" {
		return "", ""
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return "", "" // the client has gone; passing the request on will fail too
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var ops []struct{ KV struct{ Verb, Key string } }
	if err := json.Unmarshal(body, &ops); err != nil {
		t.Errorf("transaction: %v", err)
	}
	for _, op := range ops {
		switch op.KV.Verb {
		case "set", "cas", "lock":
			if why := refusal(op.KV.Key); why != "" {
				return op.KV.Key, why
			}
		}
	}
	return "", ""
}

// TestRefusal: the proxy of the conformance suite refuses at least the keys that the tested release of Consul refuses,
// and leno needs none of the others.
func TestRefusal(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, tt := range []struct {
		key     string
		refused bool
	}{
		{"leases/default/10.5.34.0-24", false},
		{"leases/default/fd00.5.0.22..-64", false},
		{"networks/a..b", false},
		{"leases/default/", false},
		{"leases", false},
		{"...", false},
		{"leases/../networks", true},
		{"leases/./default", true},
		{"..", true},
		{"leases//default", true},
		{"a%2e%2e", true},
		{"A", true},
		{"a ", true},
	} {
		why := refusal(s.prefix + "/" + tt.key)
		if (why != "") != tt.refused {
			t.Errorf("%q: %q", tt.key, why)
		}
		if why != "" {
			continue
		}
		if _, err := s.admin.KV().Put(&api.KVPair{Key: s.prefix + "/" + tt.key, Value: []byte("x")}, nil); err != nil {
			t.Errorf("%q: %v", tt.key, err)
		}
		if _, _, ok := s.Get(t, s.prefix+"/"+tt.key); !ok {
			t.Errorf("%q is not there", tt.key)
		}
	}
}
