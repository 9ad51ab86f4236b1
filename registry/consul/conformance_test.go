package consul

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/registrytest"
)

// suiteStore opens its clients behind a proxy that refuses keys like the strictest releases of Consul.
type suiteStore struct {
	*store
	proxy string
}

func (s suiteStore) Open(tb testing.TB) registry.Registry {
	return s.open(tb, func(c *Config) { c.Address = s.proxy })
}

func (s suiteStore) Key(parts ...string) string { return s.prefix + "/" + strings.Join(parts, "/") }

func (s suiteStore) LeaseKey(n registry.Network, slot uint64) string {
	return s.Key("leases", n.Name, registry.SubnetKey(n.Plan.Subnets(slot)[0]))
}

func (s suiteStore) Keys(tb testing.TB, parts ...string) []string {
	return s.store.Keys(tb, s.Key(append(parts, "")...))
}

func TestConformance(t *testing.T) {
	addr := proxy(t, common.get(t), func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if key := strangeKey(t, r); key != "" {
			t.Errorf("%s %s has the key %q", r.Method, r.URL.Path, key)
			http.Error(w, "Invalid key name. Keys must respect the following format: "+plainKey.String(), http.StatusBadRequest)
			return
		}
		pass.ServeHTTP(w, r)
	})
	registrytest.Run(t, func(t *testing.T) registrytest.Store { return suiteStore{newStore(t), addr} })
}

// plainKey matches a little less than every release of Consul accepts: Consul 1.21.5 also accepts upper case and
// ",?&=".
var plainKey = regexp.MustCompile(`^[a-z0-9._/-]*$`)

// strangeKey returns a key with other characters that a request has in its path or writes in a transaction, or "" when
// there is none. Such keys of other programs can only be read and deleted in transactions.
func strangeKey(t *testing.T, r *http.Request) string {
	if key, ok := strings.CutPrefix(r.URL.Path, "/v1/kv/"); ok && !plainKey.MatchString(key) {
		return key
	}
	if r.URL.Path != "/v1/txn" {
		return ""
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return "" // the client has gone; passing the request on will fail too
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var ops []struct{ KV struct{ Verb, Key string } }
	if err := json.Unmarshal(body, &ops); err != nil {
		t.Errorf("transaction: %v", err)
	}
	for _, op := range ops {
		switch op.KV.Verb {
		case "set", "cas", "lock":
			if !plainKey.MatchString(op.KV.Key) {
				return op.KV.Key
			}
		}
	}
	return ""
}
