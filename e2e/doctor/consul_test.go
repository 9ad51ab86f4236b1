package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/e2e/docpages"
	"github.com/lenonet/leno/e2e/lab"
)

// denying is a configuration of Consul in which every request needs a token, and a list of keys a right of its own.
const denying = `{"acl": {"enabled": true, "default_policy": "deny", "enable_key_list_policy": true, "policy_ttl": "0s", "token_ttl": "0s", "tokens": {%s"agent": "` + rootToken + `"}}}`

// TestConsul causes faults of Consul's configuration, of tokens and of clocks, on hosts that have a Consul agent and a token
// each.
func TestConsul(t *testing.T) {
	t.Parallel()
	w := openLab(t, lab.Options{Hosts: 3, ConsulClientConfig: fmt.Sprintf(denying, ""),
		ConsulConfig: fmt.Sprintf(denying, `"initial_management": "`+rootToken+`", `)})
	p := w.admit(3, "\"wireguard\" {\nrotate_keys = \"1h\"\n}")
	copied := p.hosts[2]
	p.hosts = p.hosts[:2]
	w.visit(p, func() error { return p.inConsul(copied, docpages.Source(t, "examples/consul/policy.hcl")) })
	if err := w.runs.Wait(); err != nil {
		t.Error(err)
	}
	w.summarize()
}

// inConsul tests the faults. copied is the host that becomes a copy of the first one.
func (p *patient) inConsul(copied *lab.Host, policy string) error {
	policy += "\nagent_prefix \"\" {\n  policy = \"read\"\n}\n" // so that the copy knows to which node it lacks the rights
	for _, h := range append(p.hosts, copied) {
		if err := h.StartConsul(p.w.ctx); err != nil {
			return err
		}
	}
	for i, h := range p.hosts {
		if err := p.token(i, strings.ReplaceAll(policy, "host-a", h.Name)); err != nil {
			return err
		}
	}
	if err := p.start(); err != nil {
		return err
	}
	if err := p.treat(configuredInConsul(policy)...); err != nil {
		return err
	}
	return p.cloned(copied, policy)
}

// inAgent sets an option of the Consul agent on the first host, and starts that agent again.
func inAgent(option string, value any) func(*patient) error {
	return func(p *patient) error { return reconfigure(p, p.hosts[0].Consul, option, value) }
}

// inServer sets an option of the Consul server, and starts it again.
func inServer(option string, value any) func(*patient) error {
	return func(p *patient) error { return reconfigure(p, p.w.Consul, option, value) }
}

func reconfigure(p *patient, c *lab.Consul, option string, value any) error {
	if err := c.Kill(); err != nil { // a client that stops ends its sessions
		return err
	}
	c.Configure(option, value)
	return c.Start(p.w.ctx)
}

// configuredInConsul returns the faults in Consul's configuration. Each cure does what doctor printed.
func configuredInConsul(policy string) []fault {
	type limits map[string][]string
	reads := strings.Replace(policy, `policy = "list"`, `policy = "read"`, 1)
	return []fault{
		{"a right in Consul is missing", both(rights(reads), (*patient).endSession), func(p *patient) error {
			_, rule, _ := strings.Cut(p.remedy, "add to its policy: ")
			rule, _, _ = strings.Cut(rule, "\n")
			return rights(reads + rule)(p)
		}, want{check: "acl", shown: "lease", also: []string{"lease"}, words: []string{`key_prefix "leno/" { policy = "list" }`, "to read networks, reservations"}}},
		{"Consul's configuration forbids a request", inAgent("http_config", limits{"allow_write_http_from": {"192.0.2.0/24"}}),
			inAgent("http_config", limits{"allow_write_http_from": {"192.0.2.0/24", "127.0.0.1/32"}}),
			want{check: "lease", network: "NETWORK", shown: "lease", words: []string{"whatever the token", "add this host's address to http_config.allow_write_http_from"}}},
		{"Consul's configuration forbids a request", inAgent("http_config", limits{"block_endpoints": {"/v1/session"}}), inAgent("http_config", nil),
			want{check: "lease", network: "NETWORK", shown: "lease", words: []string{"whatever the token", "from http_config.block_endpoints"}}},
		{"Consul's servers do not accept `lease.ttl`", both(inServer("session_ttl_min", "20s"), (*patient).endSession), inServer("session_ttl_min", "10s"),
			want{check: "lease", network: "NETWORK", shown: "lease", words: []string{"lease.ttl is 10s", "set lease.ttl to at least 20s on every host, or session_ttl_min of Consul's servers to at most 10s"}}},
		{"the agent's token was deleted", (*patient).deleteToken, (*patient).newToken,
			want{check: "consul", shown: "lease", words: []string{"ACL not found", "give the agent a token with the rules of examples/consul/policy.hcl (consul.token_file)"}}},
		{"a right in Consul is missing", configured(0, plain), func(p *patient) error { return configured(0, withToken(p.secret))(p) },
			want{check: "acl", shown: "lease", words: []string{"the agent has no token", "create a token with the rules of examples/consul/policy.hcl, and set consul.token_file"}}},
		{"the clock of a host was ahead", (*patient).setAhead, both(typed(0), (*patient).areKeysNew),
			want{check: "keys", warning: true, network: "NETWORK", shown: "keys", words: []string{"in the future on this host", "set the clocks of all hosts, and run `leno network switch NETWORK -rotate-keys`"}}},
	}
}

// session returns the ID of the session of a host.
func (p *patient) session(h *lab.Host) (string, error) {
	sessions, _, err := p.w.Consul.Client().Session().List(&consul.QueryOptions{Token: rootToken})
	for _, s := range sessions {
		if s.Name == "leno/"+p.network+"/"+h.Name {
			return s.ID, nil
		}
	}
	return "", fmt.Errorf("no session of %s: %+v, %w", h.Name, sessions, err)
}

// endSession ends the session of the first host.
func (p *patient) endSession() error {
	id, err := p.session(p.hosts[0])
	if err == nil {
		_, err = p.w.Consul.Client().Session().Destroy(id, &consul.WriteOptions{Token: rootToken})
	}
	return err
}

// deleteToken deletes the token of the first host.
func (p *patient) deleteToken() error {
	acl := p.w.Consul.Client().ACL()
	token, _, err := acl.TokenReadSelf(&consul.QueryOptions{Token: p.secret})
	if err == nil {
		_, err = acl.TokenDelete(token.AccessorID, &consul.WriteOptions{Token: rootToken})
	}
	return err
}

// newToken creates a token with the policy of the first host, and starts its agent with it.
func (p *patient) newToken() error {
	token, _, err := p.w.Consul.Client().ACL().TokenCreate(&consul.ACLToken{Policies: []*consul.ACLTokenPolicyLink{{ID: p.policy}}},
		&consul.WriteOptions{Token: rootToken})
	if err != nil {
		return err
	}
	p.secret = token.SecretID
	return configured(0, withToken(p.secret))(p)
}

// setAhead writes the time of the last switch as a host would have done whose clock was ahead.
func (p *patient) setAhead() error {
	pair, definition, err := p.definition()
	if err != nil {
		return err
	}
	epoch, _ := definition["epoch"].(map[string]any)
	if epoch["since"] == nil {
		return fmt.Errorf("no time in %s", pair.Value)
	}
	epoch["since"] = time.Now().Add(3 * time.Hour).UTC().Truncate(time.Second)
	if pair.Value, err = json.Marshal(definition); err != nil {
		return err
	}
	_, err = p.w.Consul.Client().KV().Put(pair, &consul.WriteOptions{Token: rootToken})
	return err
}

// areKeysNew blocks until all hosts have new keys.
func (p *patient) areKeysNew() error {
	return lab.WaitFor(p.w.ctx, "new keys", func(context.Context) error {
		pair, definition, err := p.definition()
		if epoch, _ := definition["epoch"].(map[string]any); err == nil && (definition["switch"] != nil || epoch["number"] == nil) {
			err = fmt.Errorf("%s", pair.Value)
		}
		return err
	})
}

// definition returns the network's definition in Consul.
func (p *patient) definition() (pair *consul.KVPair, definition map[string]any, err error) {
	pair, _, err = p.w.Consul.Client().KV().Get("leno/networks/"+p.network, &consul.QueryOptions{Token: rootToken})
	if err == nil {
		err = json.Unmarshal(pair.Value, &definition)
	}
	return pair, definition, err
}

// cloned starts a copy of the first host, with its token, on a host with a Consul agent of its own. Both hosts show it. After
// the printed remedy, the copy lacks only a token of its own.
func (p *patient) cloned(copied *lab.Host, policy string) error {
	h := p.hosts[0]
	err := lab.WaitFor(p.w.ctx, "a copy between two writes", func(ctx context.Context) error {
		_, err := copied.Exec(ctx, "sh", "-euc", fmt.Sprintf("rm -rf %s; cp -a %s %[1]s", copied.DataDir(), h.DataDir()))
		return err
	})
	if err != nil {
		return err
	}
	config := p.config(copied)
	rename := strings.NewReplacer(fmt.Sprintf("node_name = %q", copied.Name), fmt.Sprintf("node_name = %q", h.Name))
	if err := copied.StartAgent(rename.Replace(withToken(p.secret)(p, config))); err != nil {
		return err
	}
	p.hosts = []*lab.Host{copied, h}
	w := alone()["the host is a copy of another one"]
	for i, host := range p.hosts {
		if err := p.showsCheck(host, w.shown); err != nil {
			return err
		}
		if err := p.sees(seen{host: i, want: w}); err != nil {
			return err
		}
	}
	w.words = append(w.words, "start it again with a token of its own")
	if err := p.finds(w); err != nil {
		return err
	}
	if err := copied.StopAgent(p.w.ctx); err != nil {
		return err
	}
	if err := typed(0)(p); err != nil {
		return err
	}
	if err := p.token(0, strings.ReplaceAll(policy, "host-a", copied.Name)); err != nil {
		return err
	}
	return p.onAll(func(i int) error { return p.w.well(p.hosts[i]) })
}
