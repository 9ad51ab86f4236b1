package consul

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/internal/testkit/process"
	"github.com/lenonet/leno/internal/testkit/programs"
	"github.com/lenonet/leno/registry"
)

// wantText fails unless an error wraps is and has all words.
func wantText(t *testing.T, err, is error, words ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Fatalf("got error %v, want one that is %q", err, is)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q lacks %q", err, w)
		}
	}
}

// TestBlockedEndpoint: the error about an endpoint that Consul's configuration blocks does not blame the token.
func TestBlockedEndpoint(t *testing.T) {
	t.Parallel()
	s := newServerWith(t, `http_config { block_endpoints = ["/v1/txn"] }`)
	c := s.client(t, "leno")
	if err := c.PutNetwork(testContext(t), network("default", "10.5.0.0/16")); err != nil {
		t.Fatal(err)
	}
	n, err := c.Network(testContext(t), "default")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Acquire(testContext(t), n, claim(1))
	wantText(t, err, registry.ErrRefused, "whatever the token", "http_config.block_endpoints")
	wantIs(t, err, registry.ErrDenied)
}

// TestWritesOfOtherHosts: the error about a write that Consul accepts from other hosts only does not blame the token.
func TestWritesOfOtherHosts(t *testing.T) {
	t.Parallel()
	s, err := configureServer(t.TempDir(), `http_config { allow_write_http_from = ["192.0.2.0/24"] }`, true)
	if err != nil {
		t.Fatal(err)
	}
	binary, err := programs.Consul.Find()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	if s.process, err = process.Start(exec.Command(binary, s.args...), s.logFile); err != nil {
		t.Fatal(err)
	}
	err = s.process.WaitFor(testContext(t), "a leader", func(context.Context) error {
		_, _, err := s.admin.KV().Get("any", nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = s.client(t, "leno").PutNetwork(testContext(t), network("default", "10.5.0.0/16"))
	wantText(t, err, registry.ErrRefused, "whatever the token", "http_config.allow_write_http_from")
}

// TestTTLBelowMinimum: the error says which option to change if Consul's servers do not accept the TTL of leases.
func TestTTLBelowMinimum(t *testing.T) {
	t.Parallel()
	s := newServerWith(t, `session_ttl_min = "5m"`)
	c := s.client(t, "leno")
	if err := c.PutNetwork(testContext(t), network("default", "10.5.0.0/16")); err != nil {
		t.Fatal(err)
	}
	n, err := c.Network(testContext(t), "default")
	if err != nil {
		t.Fatal(err)
	}
	short := claim(1)
	short.TTL = 2 * time.Minute
	_, err = c.Acquire(testContext(t), n, short)
	wantText(t, err, registry.ErrNotSupported, "lease.ttl is 2m0s", "accept 5m0s to 24h0m0s", "set lease.ttl to at least 5m0s",
		"session_ttl_min of Consul's servers to at most 2m0s")
	if errors.Is(err, registry.ErrUnavailable) {
		t.Errorf("%v says that Consul is away", err)
	}
	acquire(t, c, n, 1)
}

// TestNodeNotRegistered: a claim is repeated soon if the catalog lacks the node of the host's Consul agent, as before the
// agent has registered it.
func TestNodeNotRegistered(t *testing.T) {
	t.Parallel()
	s := &store{server: newServerWith(t, ""), prefix: "leno"}
	n, c := putNetwork(t, s, "default", "10.5.0.0/16"), s.open(t)
	name, err := s.admin.Agent().NodeName()
	if err != nil {
		t.Fatal(err)
	}
	for err == nil { // unless the server has registered it again in between
		if _, err := s.admin.Catalog().Deregister(&api.CatalogDeregistration{Node: name}, nil); err != nil {
			t.Fatal(err)
		}
		_, err = c.Acquire(testContext(t), n, claim(1))
	}
	wantText(t, err, registry.ErrUncertain, "the catalog lacks the node of this Consul agent")
	if errors.Is(err, registry.ErrUnavailable) {
		t.Errorf("%v says that Consul is away", err)
	}
}

// TestOtherDatacenter: the error says why a host gets no lease in another datacenter than that of its Consul agent.
func TestOtherDatacenter(t *testing.T) {
	t.Parallel()
	near, far := newServerWith(t, `datacenter = "dc1"`), newServerWith(t, `datacenter = "dc2"`)
	if err := near.admin.Agent().Join(far.wan, true); err != nil {
		t.Fatal(err)
	}
	c := near.client(t, "leno", func(c *Config) { c.Datacenter = "dc2" })
	eventually(t, "dc1 to know dc2", func() bool {
		return c.PutNetwork(testContext(t), network("default", "10.5.0.0/16")) == nil
	})
	n, err := c.Network(testContext(t), "default")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Acquire(testContext(t), n, claim(1))
	wantText(t, err, registry.ErrNotSupported, `consul.datacenter is "dc2", and this Consul agent is of "dc1"`,
		"set consul.address to an agent of dc2, or remove consul.datacenter")
	// An agent of the datacenter may name it.
	acquire(t, far.client(t, "leno", func(c *Config) { c.Datacenter = "dc2" }), n, 1)
}
