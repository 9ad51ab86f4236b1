package consul

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// TestRights: Consul accepts the rules that an agent is told it needs. Together they grant all rights, and without one
// of them exactly that right is missing. With a token that does not exist, ErrDenied is returned.
func TestRights(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	node, err := s.open(t).NodeName(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	wish := registry.RequiredRights{Node: node, Networks: []string{"blue", "default"}, Defines: []string{"blue"}, Service: "leno"}
	rights, err := s.open(t).Rights(testContext(t), wish)
	if err != nil {
		t.Fatal(err)
	}
	if len(rights) != 8 {
		t.Fatalf("%d rules: %+v", len(rights), rights)
	}
	for i, left := range append(rights, registry.Right{}) {
		var rules []string
		for j, r := range rights {
			if i != j {
				rules = append(rules, r.Rule)
			}
			if !r.Granted || r.For == "" {
				t.Errorf("of the token that may do everything: %+v", r)
			}
		}
		secret, _ := s.newToken(t, strings.Join(rules, "\n"))
		got, err := s.open(t, func(c *Config) { c.Token = secret }).Rights(testContext(t), wish)
		if err != nil {
			t.Fatalf("without %q: %v", left.Rule, err)
		}
		denied := ""
		for _, r := range got {
			if !r.Granted {
				denied += r.Rule
			}
		}
		if denied != left.Rule {
			t.Errorf("without %q: denied %q", left.Rule, denied)
		}
	}
	_, err = s.open(t, func(c *Config) { c.Token = "7f6a3c9e-0000-4000-8000-00000000dead" }).Rights(testContext(t), wish)
	if !errors.Is(err, registry.ErrDenied) || !strings.Contains(err.Error(), "ACL not found") {
		t.Errorf("of an unknown token: %v", err)
	}
}

// TestRightsOfExample: with the rules of the example no right is missing.
func TestRightsOfExample(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile("../../examples/consul/policy.hcl")
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t)
	node, err := s.open(t).NodeName(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	secret, _ := s.newToken(t, strings.ReplaceAll(string(rules), `"host-a"`, `"`+node+`"`))
	c := s.client(t, "leno", func(c *Config) { c.Token = secret })
	rights, err := c.Rights(testContext(t), registry.RequiredRights{Node: node, Networks: []string{"default"}, Defines: []string{"default"}, Service: "leno"})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rights {
		if !r.Granted {
			t.Errorf("missing: %s", r.Rule)
		}
	}
	// Sessions of other hosts belong to other nodes.
	other := "other-" + strings.TrimPrefix(s.prefix, "test/")
	if _, err := s.admin.Catalog().Register(&api.CatalogRegistration{Node: other, Address: "192.0.2.9"}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = s.admin.Catalog().Deregister(&api.CatalogDeregistration{Node: other}, nil) })
	session, _, err := s.admin.Session().CreateNoChecks(&api.SessionEntry{Node: other, Name: c.kv.keys.Prefix + "/default/host-9", TTL: "10s"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	holders, err := c.Holders(testContext(t), "default")
	if err != nil || !slices.ContainsFunc(holders, func(h registry.Holder) bool { return h.Session == session && h.Node == "host-9" }) {
		t.Errorf("%+v, %v", holders, err)
	}
}

// TestRightsOfLists: in a Consul that asks for the right to list keys, an agent gets a lease with the rules of the example,
// and with "read" in place of "list" exactly that rule is missing. A Consul without this option grants the rule to tokens
// that may read.
func TestRightsOfLists(t *testing.T) {
	t.Parallel()
	example, err := os.ReadFile("../../examples/consul/policy.hcl")
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*server{
		"asked for": newServerWith(t, "acl { enable_key_list_policy = true }"), "not asked for": newServerWith(t, ""),
	} {
		node, err := s.client(t, "leno").NodeName(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		rules := strings.ReplaceAll(string(example), `"host-a"`, `"`+node+`"`)
		denied := func(rules string) (out []string) {
			t.Helper()
			secret, _ := s.newToken(t, rules)
			c := s.client(t, "leno", func(c *Config) { c.Token = secret })
			rights, err := c.Rights(testContext(t), registry.RequiredRights{Node: node, Networks: []string{"default"}, Service: "leno"})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rights {
				if !r.Granted {
					out = append(out, r.Rule)
				}
			}
			return out
		}
		if got := denied(rules); len(got) > 0 {
			t.Errorf("%s: the example lacks %q", name, got)
		}
		var want []string
		if name == "asked for" {
			want = []string{`key_prefix "leno/" { policy = "list" }`}
		}
		if got := denied(strings.ReplaceAll(rules, `"list"`, `"read"`)); !slices.Equal(got, want) {
			t.Errorf("%s: with read the token lacks %q, want %q", name, got, want)
		}
		secret, _ := s.newToken(t, rules)
		c := s.client(t, "leno", func(c *Config) { c.Token = secret })
		if err := c.PutNetwork(testContext(t), network("default", "10.5.0.0/16")); err != nil {
			t.Fatal(err)
		}
		n, err := c.Network(testContext(t), "default")
		if err != nil {
			t.Fatal(err)
		}
		acquire(t, c, n, 1)
		if _, _, err := c.WatchReservations(testContext(t), n, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
