package access

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/e2e/jwt"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/traffic"
	"github.com/lenonet/leno/e2e/world"
)

// TestLogin runs agents that have a JWT instead of a token. While packets flow, their tokens are
// replaced in time and deleted by an operator, and one agent changes from a token to a login. No
// lease lapses and no packet is lost, each refused login is reported with what to do, tokens and
// JWTs appear nowhere, and agents that stop leave no token behind.
func TestLogin(t *testing.T) {
	s := &secretive{testWorld: newWorld(t, lab.Options{
		Hosts: 2, ConsulConfig: fmt.Sprintf(denying, `"initial_management": "`+world.OperatorToken+`", `)})}
	a, b := s.Hosts[0], s.Hosts[1]
	issuer := jwt.New(t)
	s.addAuthMethod(issuer)
	file := func(h *lab.Host) string { return filepath.Join(h.Dir, "jwt") }
	write := func(h *lab.Host, text string) { s.Must(os.WriteFile(file(h), []byte(text+"\n"), 0o600)) }
	configure := func(h *lab.Host, secret string) string {
		text := strings.Replace(h.Config(oftenRenewed, h.Network("default", world.Plan("vxlan"))), "consul {\n", "consul {\n"+secret+"\n", 1)
		return strings.Replace(text, `"DEBUG"`, `"TRACE"`, 1)
	}
	login := func(h *lab.Host, method string) string {
		return fmt.Sprintf("login {\n  auth_method = %q\n  bearer_token_file = %q\n  meta = { host = %q }\n}", method, file(h), h.Name)
	}
	for _, h := range s.Hosts {
		write(h, s.uses(issuer.Sign(t, time.Hour, map[string]any{"sub": h.Name})))
	}
	s.Must(a.StartAgent(configure(a, login(a, "hosts"))))
	s.Must(b.StartAgent(configure(b, fmt.Sprintf("token = %q", s.issue("b", hostRules)))))
	for _, h := range s.Hosts {
		s.Must(h.WaitReady(s.Ctx))
		s.Container(h, "default")
	}
	s.Settle("default")
	whole := traffic.Watch(s.World)
	sessions := map[string]string{a.Name: s.heldBy(a), b.Name: s.heldBy(b)}
	tokens := s.loginTokens()
	first := tokens[a.Name]
	if len(first) == 0 || len(tokens) != 1 {
		t.Fatalf("tokens %q", tokens)
	}

	// From a token to a login, and a login that is refused: the token from before stays in use.
	reload := func(h *lab.Host, text string) error {
		s.Must(os.WriteFile(h.ConfigFile(), []byte(text), 0o600))
		_, err := s.run(h, "reload")
		return err
	}
	if err := reload(b, configure(b, login(b, "nope"))); err == nil || !strings.Contains(err.Error(), `create the auth method "nope"`) {
		t.Errorf("reload with an unknown auth method: %v", err)
	}
	s.Must(reload(b, configure(b, login(b, "hosts"))))
	s.WaitHealth(b, http.StatusOK)
	if now := s.loginTokens(); len(now) != 2 {
		t.Errorf("tokens %q", now)
	}

	// An operator deletes the tokens of b.
	for _, accessor := range s.loginTokens()[b.Name] {
		_, err := s.Consul.Client().ACL().TokenDelete(accessor, &consul.WriteOptions{Token: world.OperatorToken})
		s.Must(err)
	}
	s.Eventually("another login of "+b.Name, func(context.Context) error {
		if now := s.loginTokens(); len(now[b.Name]) == 0 {
			return fmt.Errorf("tokens %q", now)
		}
		return nil
	})
	s.WaitHealth(b, http.StatusOK)

	// The JWT cannot be used: the token stays until it has to be replaced, and the check says why.
	write(b, s.uses(issuer.Sign(t, -time.Hour, nil)))
	s.loginFails(b, "token is expired", "replace the expired JWT in "+file(b))
	write(b, "")
	s.loginFails(b, "it is empty", "see that the file contains a JWT")
	write(b, s.uses(issuer.Sign(t, time.Hour, map[string]any{"sub": "again"})))
	s.WaitHealth(b, http.StatusOK)
	s.Eventually("the first token to be replaced", func(context.Context) error {
		now := s.loginTokens()
		if !slices.ContainsFunc(now[a.Name], func(accessor string) bool { return !slices.Contains(first, accessor) }) {
			return fmt.Errorf("tokens %q", now)
		}
		return nil
	})
	s.WaitHealth(a, http.StatusOK)
	if now := map[string]string{a.Name: s.heldBy(a), b.Name: s.heldBy(b)}; fmt.Sprint(now) != fmt.Sprint(sessions) {
		t.Errorf("sessions %v, before %v", now, sessions)
	}
	whole()
	s.FollowsAddress(a, s.Containers)

	s.follow(a)
	for _, h := range s.Hosts {
		for _, path := range []string{"/v1/agent/self", "/v1/agent/config", "/healthz", "/v1/agent/events"} {
			s.ask(h, "GET", path, "", world.OperatorToken)
		}
		_, err := s.run(h, "doctor", "-passive", "-token="+world.OperatorToken)
		s.Must(err)
		_, err = s.run(h, "debug", "-duration=1s", "-output="+filepath.Join(h.Dir, "debug.tar.gz"))
		s.Must(err)
		_, err = h.Exec(s.Ctx, "tar", "-xzf", filepath.Join(h.Dir, "debug.tar.gz"), "-C", h.Dir)
		s.Must(err)
		s.Must(h.StopAgent(s.Ctx))
	}
	s.following.Wait()
	if left := s.loginTokens(); len(left) != 0 {
		t.Errorf("tokens that stay behind: %q", left)
	}
	s.search(file(a), file(b))

	// An operator's token replaces the login, which may be impossible by now.
	write(b, "no JWT")
	operator := filepath.Join(t.TempDir(), "operator")
	s.Must(os.WriteFile(operator, []byte(world.OperatorToken), 0o600))
	for _, args := range [][]string{
		{"doctor", "-passive", "-token=" + world.OperatorToken},
		{"cleanup", "-token=" + world.OperatorToken, "-dry-run"},
		{"cleanup", "-consul-token-file", operator},
	} {
		out, err := s.run(b, append(args, "-config-file", b.ConfigFile())...)
		if args[0] == "cleanup" && err != nil || strings.Contains(out, "consul login") {
			t.Errorf("leno %q: %v\n%s", args, err, out)
		}
	}
	if subnet, err := os.ReadFile(b.SubnetFile("default")); err == nil {
		t.Errorf("the clean-up left the subnet file behind: %s", subnet)
	}
}

// addAuthMethod creates the auth method "hosts", whose tokens have the rights of hosts for the
// shortest time that Consul accepts.
func (s *secretive) addAuthMethod(issuer jwt.Issuer) {
	s.T.Helper()
	acl, write := s.Consul.Client().ACL(), &consul.WriteOptions{Token: world.OperatorToken}
	method := &consul.ACLAuthMethod{Name: "hosts", Type: "jwt", MaxTokenTTL: time.Minute, Config: issuer.AuthMethod(s.T)}
	_, _, err := acl.AuthMethodCreate(method, write)
	s.Must(err)
	_, _, err = acl.PolicyCreate(&consul.ACLPolicy{Name: "hosts", Rules: hostRules}, write)
	s.Must(err)
	role := &consul.ACLRole{Name: "hosts", Policies: []*consul.ACLLink{{Name: "hosts"}}}
	_, _, err = acl.RoleCreate(role, write)
	s.Must(err)
	rule := &consul.ACLBindingRule{AuthMethod: "hosts", BindType: consul.BindingRuleBindTypeRole, BindName: "hosts"}
	_, _, err = acl.BindingRuleCreate(rule, write)
	s.Must(err)
}

// loginTokens returns the accessors of the tokens that hosts got by logging in, by host. A host has more than one for a
// while after it has replaced its token.
func (s *secretive) loginTokens() map[string][]string {
	s.T.Helper()
	accessors := map[string][]string{}
	list, _, err := s.Consul.Client().ACL().TokenListFiltered(consul.ACLTokenFilterOptions{AuthMethod: "hosts"},
		&consul.QueryOptions{Token: world.OperatorToken})
	s.Must(err)
	for _, entry := range list {
		i := slices.IndexFunc(s.Hosts, func(h *lab.Host) bool { return strings.Contains(entry.Description, fmt.Sprintf("%q", h.Name)) })
		if i < 0 {
			s.T.Fatalf("the token %s is described as %q, without a host", entry.AccessorID, entry.Description)
		}
		accessors[s.Hosts[i].Name] = append(accessors[s.Hosts[i].Name], entry.AccessorID)
		token, _, err := s.Consul.Client().ACL().TokenRead(entry.AccessorID, &consul.QueryOptions{Token: world.OperatorToken})
		if err == nil { // it may have been deleted
			s.uses(token.SecretID)
		}
	}
	return accessors
}

// loginFails waits until the check of a host's login says why it fails and what to do. Doctor says the same.
func (s *secretive) loginFails(h *lab.Host, why, remedy string) {
	s.T.Helper()
	s.WaitHealth(h, http.StatusTooManyRequests, why, remedy)
	text, err := s.run(h, "doctor", "-passive")
	text = strings.Join(strings.Fields(text), " ")
	if !strings.Contains(text, why) || !strings.Contains(text, remedy) {
		s.T.Errorf("doctor says neither %q nor %q: %v\n%s", why, remedy, err, text)
	}
}
