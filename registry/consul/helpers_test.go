package consul

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/keys"
)

func network(name string, prefix string) registry.Network {
	plan, err := registry.Plan{{Prefix: netip.MustParsePrefix(prefix)}}.Normalize()
	if err != nil {
		panic(err)
	}
	return registry.Network{Name: name, Plan: plan, Backend: registry.Backend{Type: "vxlan", Object: json.RawMessage(`{"type":"vxlan","vni":1}`)}}
}

func putNetwork(t *testing.T, s *store, name, prefix string) registry.Network {
	t.Helper()
	c := s.open(t)
	if err := c.PutNetwork(testContext(t), network(name, prefix)); err != nil {
		t.Fatal(err)
	}
	n, err := c.Network(testContext(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// claim returns the claim of host i.
func claim(i int) registry.Claim {
	return registry.Claim{
		Node: fmt.Sprintf("host-%d", i), NodeID: fmt.Sprintf("id-%d", i),
		PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})},
		MTU:       1450, Backend: registry.Backend{Type: "vxlan", Object: json.RawMessage(`{"type":"vxlan"}`)},
		TTL: 10 * time.Minute, Hold: time.Hour, // no test takes so long
	}
}

// acquire returns a lease. In a large network, its slot is 100 + i if that is free: a random one may be one that a test
// names.
func acquire(t *testing.T, r registry.Registry, n registry.Network, i int) registry.Lease {
	t.Helper()
	c := claim(i)
	if slot := uint64(100 + i); n.Plan.InRange(slot) {
		c.Prefer = n.Plan.Subnets(slot)[0]
	}
	l, err := r.Acquire(testContext(t), n, c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// newTestFollower returns a follower that knows nothing, for tests without Consul.
func newTestFollower() *follower {
	return newFollower(keys.Layout{Prefix: "leno"}, "default", &atomic.Int64{})
}

// followerOf returns a client's follower of a network.
func followerOf(c *Client, network string) *follower {
	f, done := c.shared.followers.use(network)
	done()
	return f
}

func errOf[A, B any](_ A, _ B, err error) error { return err }
func errOf2[A any](_ A, err error) error        { return err }

func slots(set registry.LeaseSet) []uint64 {
	out := []uint64{}
	for _, l := range set.Leases {
		out = append(out, l.Slot)
	}
	return out
}

// proxy runs a proxy between a client and its server. hook gets each request, with the handler that passes it on, and
// answers it.
func proxy(t *testing.T, s *server, hook func(w http.ResponseWriter, r *http.Request, pass http.Handler)) (addr string) {
	t.Helper()
	pass := passTo(t, s)
	pass.ErrorLog = log.New(io.Discard, "", 0) // of requests that their clients gave up
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { hook(w, r, pass) }))
	t.Cleanup(p.Close)
	return p.Listener.Addr().String()
}

// passTo returns a handler that passes requests on to a server that is not restarted while the test runs: a PUT on a
// connection that the server is just closing is not retried.
func passTo(t *testing.T, s *server) *httputil.ReverseProxy {
	t.Helper()
	target := &url.URL{Scheme: "http", Host: s.addr}
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport}
}
