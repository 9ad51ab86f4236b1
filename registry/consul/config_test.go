package consul

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
)

func TestKVPrefix(t *testing.T) {
	t.Parallel()
	for give, want := range map[string]string{"": "leno", "/": "leno", "infra/leno/": "infra/leno", "x": "x"} {
		if got := (Config{KVPrefix: give}).withDefaults().KVPrefix; got != want {
			t.Errorf("%q: got %q, want %q", give, got, want)
		}
	}
}

func TestNodeName(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "consul.sock")
	s := newServer(t, `addresses { http = "127.0.0.1 unix://`+socket+`" }`)
	name := strings.Replace(s.addr, "127.0.0.1:", "node-", 1)
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{
		s.addr:              name,
		"unix://" + socket:  name,
		"localhost:" + port: name,
		"http://192.0.2.1":  "", // not asked
	} {
		got, err := s.client(t, "leno", func(c *Config) { c.Address = address }).NodeName(testContext(t))
		if err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", address, got, err, want)
		}
	}
}
