package access

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/docpages"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// denying makes a Consul agent refuse every request without a token, and lists of keys without a right of their own.
const denying = `{"acl": {"enabled": true, "default_policy": "deny", "enable_key_list_policy": true, "tokens": {%s"agent": "` + world.OperatorToken + `"}}}`

// TestPolicy runs agents with a token of exactly examples/consul/policy.hcl: one defines the
// network, becomes ready, is registered and renews its lease. Everything that the policy does not
// allow is denied.
func TestPolicy(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2, ConsulConfig: fmt.Sprintf(denying, `"initial_management": "`+world.OperatorToken+`", `)})
	rules := docpages.Source(t, "examples/consul/policy.hcl")
	first, second := w.Hosts[0], w.Hosts[1]
	w.startDenyingConsul(first)
	w.startDenyingConsul(second)

	// The first host defines the network. The second only joins it, which works without the right
	// to define networks.
	token := w.startWithPolicy(first, rules, world.Plan("vxlan"))
	definer := regexp.MustCompile(`(?s)\nkey_prefix "leno/networks/" \{.*?\n\}\n`)
	joining := strings.ReplaceAll(definer.ReplaceAllString(rules, "\n"), `"host-a"`, `"host-b"`)
	if !definer.MatchString(rules) || strings.Contains(joining, "host-a") {
		t.Fatal("the policy is not as this test knows it")
	}
	w.startWithPolicy(second, joining, "")

	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
		w.WaitPeers(h, "default", 1)
		before := w.local(h).Renewed
		w.Eventually(h.Name+" to renew", func(context.Context) error {
			if now := w.local(h).Renewed; !now.After(before) {
				return fmt.Errorf("last at %s", now)
			}
			return nil
		})
		w.Eventually("the service of "+h.Name, func(context.Context) error {
			entries, _, err := w.Consul.Client().Health().Service("leno", "", true, &consul.QueryOptions{Token: world.OperatorToken})
			for _, e := range entries {
				if e.Node.Node == h.Name && e.Service.Address == h.Addrs[0].String() {
					return nil
				}
			}
			return fmt.Errorf("not among %d that pass, %v", len(entries), err)
		})
	}

	c, q, write := w.Consul.Client(), &consul.QueryOptions{Token: token}, &consul.WriteOptions{Token: token}
	for what, try := range map[string]func() error{
		"reserve a subnet": func() error {
			_, err := c.KV().Put(&consul.KVPair{Key: "leno/reservations/default/10.5.9.0-24"}, write)
			return err
		},
		"write beside leno": func() error { _, err := c.KV().Put(&consul.KVPair{Key: "lenox"}, write); return err },
		"read beside leno":  func() error { _, _, err := c.KV().Get("lenox", q); return err },
		"make a session elsewhere": func() error {
			_, _, err := c.Session().CreateNoChecks(&consul.SessionEntry{Node: second.Name}, write)
			return err
		},
		"list tokens": func() error { _, _, err := c.ACL().TokenList(q); return err },
		"register another service": func() error {
			return c.Agent().ServiceRegisterOpts(&consul.AgentServiceRegistration{Name: "web"}, consul.ServiceRegisterOpts{Token: token})
		},
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), "403") {
			t.Errorf("%s: %v, want 403", what, err)
		}
	}
	w.denied(first, second)
	w.operators(first, second)
}

// operators runs the commands that change Consul on a, with tokens of exactly the rules that the
// page names, and without them.
func (w *testWorld) operators(a, b *lab.Host) {
	w.T.Helper()
	green := filepath.Join(a.Dir, "green.hcl")
	w.Must(os.WriteFile(green, []byte(`network "green" {
  ipv4 {
    prefix = "10.7.0.0/16"
  }
  backend "alloc" {}
}
`), 0o600))
	args := map[string][]string{
		"network apply":      {green},
		"network switch":     {"blue", "-stop"},
		"network delete":     {"green"},
		"reservation add":    {"-node=host-z", "green", "10.7.9.0/24"},
		"reservation remove": {"green", "10.7.9.0/24"},
		"lease revoke":       {"default", w.Subnet(b, "default").String()},
		"lease renew":        {"default"},
		"lease release":      {"default"},
	}
	// No host is in this network, so its switch goes on.
	_, err := w.Consul.Client().KV().Put(&consul.KVPair{Key: "leno/networks/blue", Value: []byte(`{"version":1,"name":"blue",
		"pools":[{"prefix":"10.8.0.0/16","subnet_len":24,"min":"10.8.1.0","max":"10.8.255.0"}],
		"backend":{"type":"vxlan","vni":8},"switch":{"to":{"type":"udp"}}}`)}, &consul.WriteOptions{Token: world.OperatorToken})
	w.Must(err)
	rules := map[string]string{}
	for _, row := range docpages.Rows(w.T, docpages.Path("operations/access-control"), "People") {
		for _, name := range docpages.Codes(row[0]) {
			for _, m := range regexp.MustCompile(`(\w+) ("[^"]+") (\w+)`).FindAllStringSubmatch(row[1], -1) {
				rules[name] += fmt.Sprintf("%s %s {\n  policy = %q\n}\n", m[1], m[2], m[3])
			}
		}
	}
	leno := func(ctx context.Context, args ...string) error {
		_, err := a.Leno(ctx, args...)
		return err
	}
	for _, name := range []string{"network apply", "network switch", "reservation add", "reservation remove", "network delete", "lease revoke", "lease renew", "lease release"} {
		line := append(strings.Fields(name), args[name]...)
		token := w.newToken(strings.ReplaceAll(name, " ", "-"), rules[name])
		// Commands know a network a moment after it was defined.
		w.Eventually(name+" to be denied", func(ctx context.Context) error {
			if err := leno(ctx, line...); err == nil || !strings.Contains(err.Error(), "permission denied") {
				return fmt.Errorf("without a token: %v", err)
			}
			return nil
		})
		if err := leno(w.Ctx, append(line, "-token="+token)...); err != nil {
			w.T.Errorf("%s with the rules of the page: %v", name, err)
		}
		delete(rules, name)
	}
	if len(rules) > 0 {
		w.T.Errorf("commands of the page that were not run: %v", rules)
	}
}

// newToken creates a policy and a token with it.
func (w *testWorld) newToken(name, rules string) string {
	w.T.Helper()
	acl, write := w.Consul.Client().ACL(), &consul.WriteOptions{Token: world.OperatorToken}
	policy, _, err := acl.PolicyCreate(&consul.ACLPolicy{Name: name, Rules: rules}, write)
	w.Must(err)
	token, _, err := acl.TokenCreate(&consul.ACLToken{Policies: []*consul.ACLLink{{ID: policy.ID}}}, write)
	w.Must(err)
	return token.SecretID
}

// startDenyingConsul starts a Consul client agent with ACLs on a host.
func (w *testWorld) startDenyingConsul(h *lab.Host) {
	w.T.Helper()
	path, err := lab.FindConsul()
	w.Must(err)
	config := filepath.Join(h.Dir, "acl.json")
	w.Must(os.WriteFile(config, fmt.Appendf(nil, denying, ""), 0o600))
	p, err := h.Start(path, "agent", "-config-file="+config, "-data-dir="+filepath.Join(h.Dir, "consul"), "-node="+h.Name,
		"-bind="+h.Addrs[0].String(), "-retry-join="+w.Consul.Addr.String(), "-retry-interval=1s", "-grpc-port=-1", "-dns-port=-1")
	w.Must(err)
	w.Must(p.WaitFor(w.Ctx, "the node of "+h.Name, func(context.Context) error {
		node, _, err := w.Consul.Client().Catalog().Node(h.Name, &consul.QueryOptions{Token: world.OperatorToken})
		if err == nil && node == nil {
			err = fmt.Errorf("not in the catalogue")
		}
		return err
	}))
}

// startWithPolicy starts a host's agent, and Consul on that host, with a token that has the rules.
func (w *testWorld) startWithPolicy(h *lab.Host, rules, network string) (token string) {
	w.T.Helper()
	token = w.newToken(h.Name, rules)
	file := filepath.Join(h.Dir, "token")
	w.Must(os.WriteFile(file, []byte(token+"\n"), 0o600))
	w.Must(h.StartAgent(fmt.Sprintf("data_dir = %q\nconsul {\n  token_file = %q\n}\n%s\n%s", h.DataDir(), file, oftenRenewed, h.Network("default", network))))
	w.Must(h.WaitReady(w.Ctx))
	return token
}

// local returns the host's part in the network "default".
func (w *testWorld) local(h *lab.Host) api.Local {
	w.T.Helper()
	var n api.Network
	w.Must(world.GetJSON(w.Ctx, h, "/v1/network/default", &n))
	if n.Local == nil {
		w.T.Fatalf("%s takes no part", h.Name)
	}
	return *n.Local
}
