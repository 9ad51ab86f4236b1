package nomad

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/e2e/lab"
)

// managementToken has all rights in Consul. No host of leno has it.
const managementToken = "7f6a3c9e-0000-4000-8000-000000000003"

// agentToken is the token of the Consul agents themselves.
const agentToken = "7f6a3c9e-0000-4000-8000-000000000004"

// denies is the configuration of a Consul agent that refuses every request without a token.
const denies = `{"acl": {"enabled": true, "default_policy": "deny", "tokens": {%s"agent": "` + agentToken + `"}}}`

// TestIdentity runs the job on a Consul with ACLs, without a token on the host: the agent logs in
// with the identity that Nomad gives the job. Until the operator has made Consul accept it, the
// agent says what is missing, and when the job stops, no token is left.
func TestIdentity(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	t.Parallel()
	c := newCluster(t, 1, func(o *lab.Options) {
		o.ConsulConfig = fmt.Sprintf(denies, `"initial_management": "`+managementToken+`", `)
		o.ConsulClientConfig = fmt.Sprintf(denies, "")
	})
	m := c.machines[0]
	acl, as := c.Consul.Client().ACL(), &consul.WriteOptions{Token: managementToken}
	_, _, err := acl.PolicyCreate(&consul.ACLPolicy{Name: "agents", Rules: `node_prefix "" { policy = "write" } service_prefix "" { policy = "read" }`}, as)
	c.must(err)
	_, _, err = acl.TokenCreate(&consul.ACLToken{SecretID: agentToken, Policies: []*consul.ACLLink{{Name: "agents"}}}, as)
	c.must(err)
	c.must(m.installPlugins(c.programs.cni))
	c.prepare(m)
	c.startClients()

	c.does("nomad job run -var=auth_method=leno examples/nomad/leno.nomad.hcl", "-detach")
	c.eventually("the agent to say that there is no auth method", func(ctx context.Context) error {
		status, body, err := m.Get(ctx, "/healthz")
		if err != nil {
			return err
		}
		return errors.Join(contains(body, `auth method \"leno\" not found`), contains(body, `create the auth method \"leno\" in Consul`),
			contains(fmt.Sprint(status), fmt.Sprint(http.StatusServiceUnavailable)))
	})
	c.acceptIdentities()
	c.agents(0, m)
	c.eventually("the agent to be healthy", func(ctx context.Context) error {
		status, body, err := m.Get(ctx, "/healthz")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d: %s", status, body)
		}
		return err
	})
	if tokens := c.loginTokens("leno"); len(tokens) != 1 {
		t.Errorf("tokens %q", tokens)
	}
	c.holdsNoToken(m)

	c.leavesNoToken()

	// With the driver exec, the user leno can read the JWT.
	c.gone(m)
	c.must(m.write(configuration+"/chroot.hcl", c.chroot()))
	c.follow(m, "sudo install -D -m 644 examples/nomad/leno.tmpfiles /etc/tmpfiles.d/leno-nomad.conf")
	c.must(m.stopNomad(c.ctx, syscall.SIGTERM))
	m.nomad = nil
	c.startClients()
	c.does("nomad job run examples/nomad/leno-exec.nomad.hcl", "-detach", "-var=auth_method=leno")
	c.agents(0, m)
	c.eventually("a token for the agent", func(context.Context) error {
		if tokens := c.loginTokens("leno"); len(tokens) != 1 {
			return fmt.Errorf("tokens %q", tokens)
		}
		return nil
	})
	c.leavesNoToken()
	c.gone(m)
	c.sharesIdentity(m)
}

// sharesIdentity lets the agent log in with the identity with which Nomad's client logs in for the task, and with the
// same auth method. Each gets a token of its own.
func (c *cluster) sharesIdentity(m *machine) {
	c.t.Helper()
	const method = "nomad-workloads" // the default of Nomad's clients
	acl, as := c.Consul.Client().ACL(), &consul.WriteOptions{Token: managementToken}
	read := &consul.QueryOptions{Token: managementToken}
	accepts, _, err := acl.AuthMethodRead("leno", read)
	c.must(err)
	accepts.Name = method
	_, _, err = acl.AuthMethodCreate(accepts, as)
	c.must(err)
	rules, _, err := acl.BindingRuleList("leno", read)
	c.must(err)
	for _, rule := range rules {
		rule.ID, rule.AuthMethod = "", method
		_, _, err = acl.BindingRuleCreate(rule, as)
		c.must(err)
	}
	text := strings.NewReplacer(`name = "leno"
        aud`, `name = "consul_default"
        aud`, "nomad_leno.jwt", "nomad_consul_default.jwt").Replace(c.example("nomad/leno.nomad.hcl"))
	c.must(errors.Join(contains(text, `name = "consul_default"`), contains(text, "nomad_consul_default.jwt")))
	path := filepath.Join(c.Dir, "leno.nomad.hcl")
	c.must(os.WriteFile(path, []byte(text), 0o644))
	c.nomad("job", "run", "-detach", "-var=auth_method="+method, path)
	tokens := func(want int) {
		c.t.Helper()
		c.eventually(fmt.Sprintf("%d tokens", want), func(context.Context) error {
			if got := c.loginTokens(method); len(got) != want {
				return fmt.Errorf("tokens %q", got)
			}
			return nil
		})
	}
	tokens(2)
	c.agents(0, m)
	c.nomad("job", "stop", "-detach", "leno")
	tokens(0)
}

// leavesNoToken stops the job and waits until its token is deleted.
func (c *cluster) leavesNoToken() {
	c.t.Helper()
	c.nomad("job", "stop", "-detach", "leno")
	c.eventually("the token to be deleted", func(context.Context) error {
		if tokens := c.loginTokens("leno"); len(tokens) != 0 {
			return fmt.Errorf("tokens %q", tokens)
		}
		return nil
	})
}

// acceptIdentities does what the page says to make Consul accept the identities of the job.
func (c *cluster) acceptIdentities() {
	c.t.Helper()
	program, err := lab.FindConsul()
	c.must(err)
	method := filepath.Join(c.Dir, "auth-method.json")
	const example = "examples/nomad/consul/auth-method.json"
	text := strings.Replace(c.example("nomad/consul/auth-method.json"), "http://127.0.0.1:4646", serverURL, 1)
	c.must(os.WriteFile(method, []byte(text), 0o644))
	for _, line := range c.lines("consul acl policy create -name=leno -rules=@examples/nomad/consul/policy.hcl") {
		line = strings.ReplaceAll(line, "@"+example, "@"+method)
		line = strings.ReplaceAll(line, "@examples/", "@"+c.file("")+"/")
		command := append([]string{"env", "CONSUL_HTTP_ADDR=" + c.Consul.Addr.String() + ":8500", "CONSUL_HTTP_TOKEN=" + managementToken, program},
			strings.Fields(line)[1:]...)
		_, err := c.Consul.Namespace.Exec(c.ctx, command...)
		c.must(err)
	}
}

// loginTokens returns the secrets of the tokens that Consul has issued for logins with an auth method.
func (c *cluster) loginTokens(method string) (secrets []string) {
	c.t.Helper()
	acl, as := c.Consul.Client().ACL(), &consul.QueryOptions{Token: managementToken}
	list, _, err := acl.TokenListFiltered(consul.ACLTokenFilterOptions{AuthMethod: method}, as)
	c.must(err)
	for _, entry := range list {
		if token, _, err := acl.TokenRead(entry.AccessorID, as); err == nil { // it may have been deleted
			secrets = append(secrets, token.SecretID)
		}
	}
	return secrets
}

// holdsNoToken fails the test if a file of the machine contains a token.
func (c *cluster) holdsNoToken(m *machine) {
	c.t.Helper()
	tokens, files := append(c.loginTokens("leno"), managementToken), 0
	c.must(filepath.WalkDir(m.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil // files of a running allocation come and go
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		files++
		for _, token := range tokens {
			if strings.Contains(string(text), token) {
				c.t.Errorf("a token is in %s", path)
			}
		}
		return nil
	}))
	if files < 5 {
		c.t.Errorf("only %d files were read", files)
	}
}
