package consul

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/e2e/jwt"
	"github.com/lenonet/leno/registry"
)

// loginTest is a store with an auth method and a file with a JWT for it.
type loginTest struct {
	*store
	t      *testing.T
	issuer jwt.Issuer
	method string
	file   string
	serial int // of the last JWT

	mu      sync.Mutex
	secrets []string // that the client hides
}

func newLoginTest(t *testing.T, s *store, maxTTL time.Duration) *loginTest {
	t.Helper()
	l := &loginTest{store: s, t: t, issuer: jwt.New(t)}
	l.method = strings.ReplaceAll(s.prefix, "/", "-")
	l.file = filepath.Join(t.TempDir(), "jwt")
	l.addAuthMethod(t, l.issuer, l.method, leastPrivilege(s, nodeOf(t, s)), maxTTL)
	l.write(l.issuer.Sign(t, time.Hour, nil))
	return l
}

func (l *loginTest) write(token string) {
	l.t.Helper()
	if err := os.WriteFile(l.file, []byte(token+"\n"), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func (l *loginTest) login() registry.Login {
	return registry.Login{AuthMethod: l.method, BearerTokenFile: l.file}
}

// client returns a client that logs in.
func (l *loginTest) client(change ...func(*Config)) *Client {
	l.t.Helper()
	logsIn := func(conf *Config) {
		conf.Token, conf.Login = "", l.login()
		conf.Hide = func(secret string) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.secrets = append(l.secrets, secret)
		}
	}
	return l.open(l.t, append([]func(*Config){logsIn}, change...)...)
}

// tokens returns the accessors of the tokens that the auth method has issued.
func (l *loginTest) tokens() (accessors []string) {
	l.t.Helper()
	list, _, err := l.admin.ACL().TokenListFiltered(api.ACLTokenFilterOptions{AuthMethod: l.method}, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, entry := range list {
		accessors = append(accessors, entry.AccessorID)
	}
	return accessors
}

// makeDue makes another login due, as if the time had passed.
func (l *loginTest) makeDue(c *Client) {
	l.t.Helper()
	l.serial++
	l.write(l.issuer.Sign(l.t, time.Hour, map[string]any{"jti": fmt.Sprint(l.serial)}))
	take, _, err := c.PrepareToken(testContext(l.t), registry.Credentials{Login: l.login()})
	if err != nil {
		l.t.Fatal(err)
	}
	take()
}

func (l *loginTest) wantTokens(n int) {
	l.t.Helper()
	if got := l.tokens(); len(got) != n {
		l.t.Fatalf("%d tokens, want %d", len(got), n)
	}
}

// TestLogin: the first call logs in, all calls use that token, and the token is deleted at the end.
func TestLogin(t *testing.T) {
	l := newLoginTest(t, newStore(t), 0)
	t.Setenv("CONSUL_HTTP_TOKEN", "of the environment") // a login comes first
	n := putNetwork(t, l.store, "default", "10.5.0.0/16")
	c, ctx := l.client(), testContext(t)
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() {
			if _, err := c.Network(ctx, n.Name); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	l.wantTokens(1)
	lease := acquire(t, c, n, 0)
	c.Reconnect() // the client stays usable, with its token
	if next, err := c.RenewLogin(ctx); err != nil || !next.IsZero() {
		t.Errorf("a token that does not expire is to be renewed at %s, %v", next, err)
	}
	if err := c.Renew(ctx, lease); err != nil {
		t.Error(err)
	}
	wantIs(t, errOf2(c.As("").Network(ctx, n.Name)), registry.ErrDenied) // a caller does not get the token
	bearer, err := os.ReadFile(l.file)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := c.kv.Token.Current(ctx)
	if err != nil || strings.Join(l.secrets, " ") != strings.TrimSpace(string(bearer))+" "+secret {
		t.Errorf("hides %d secrets, want the JWT and the token", len(l.secrets))
	}
	if err := c.Logout(ctx); err != nil {
		t.Fatal(err)
	}
	l.wantTokens(0)
	wantIs(t, errOf2(c.Network(ctx, n.Name)), registry.ErrToken) // it does not log in again
	if _, session, ok := l.Get(t, c.kv.keys.Lease(n.Name, lease.Subnet())); !ok || session != lease.Session {
		t.Errorf("after the logout the record is there %v, held by %q", ok, session)
	}
}

// TestLoginRenewal: a token with the shortest life is to be replaced after half of it to two thirds of it. It is replaced
// while the lease is renewed and watched, which goes on without a failure.
func TestLoginRenewal(t *testing.T) {
	t.Parallel()
	s := &store{server: newServer(t, ""), prefix: "leno"}
	l := newLoginTest(t, s, time.Minute)
	n := putNetwork(t, s, "default", "10.5.0.0/16")
	c := l.client(func(conf *Config) { conf.Linger = time.Second; conf.Wait = 30 * time.Second })
	before := time.Now()
	lease := acquire(t, c, n, 0)
	due, err := c.RenewLogin(testContext(t))
	if earliest, latest := before.Add(30*time.Second), time.Now().Add(40*time.Second); err != nil || due.Before(earliest) || due.After(latest) {
		t.Errorf("a token for a minute is to be replaced at %s, %v, want %s to %s", due, err, earliest, latest)
	}
	first := l.tokens()
	if len(first) != 1 {
		t.Fatalf("tokens %q", first)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	var loops sync.WaitGroup
	loops.Go(func() { // as the agent does
		for ctx.Err() == nil {
			changed := c.LoginChanged()
			next, err := c.RenewLogin(ctx)
			if err != nil && ctx.Err() == nil {
				t.Errorf("renew the login: %v", err)
				return
			}
			select {
			case <-ctx.Done():
			case <-changed:
			case <-time.After(time.Until(next)):
			}
		}
	})
	loops.Go(func() {
		for index := uint64(0); ctx.Err() == nil; {
			_, next, err := c.WatchLeases(ctx, n, index)
			if err != nil && ctx.Err() == nil {
				t.Errorf("watch the leases: %v", err)
				return
			}
			index = next
		}
	})
	renew := func() {
		t.Helper()
		if err := c.Renew(ctx, lease); err != nil {
			t.Fatalf("renew the lease: %v", err)
		}
	}
	renew()
	if now := l.tokens(); !slices.Equal(now, first) {
		t.Errorf("tokens %q before it is due, want %q", now, first)
	}
	l.makeDue(c) // as if half a minute had passed
	eventually(t, "the first token to be replaced and logged out", func() bool {
		renew()
		now := l.tokens()
		return len(now) == 1 && now[0] != first[0]
	})
	if err := c.Renew(ctx, lease); err != nil {
		t.Error(err)
	}
	if _, session, _ := s.Get(t, c.kv.keys.Lease(n.Name, lease.Subnet())); session != lease.Session {
		t.Errorf("held by %q, before %q", session, lease.Session)
	}
	cancel()
	loops.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	l.wantTokens(0)
}

// TestLoginAgain: Consul does not know the token any more, or the JWT has other claims.
func TestLoginAgain(t *testing.T) {
	t.Parallel()
	l := newLoginTest(t, newStore(t), time.Hour)
	n := putNetwork(t, l.store, "default", "10.5.0.0/16")
	c, ctx := l.client(), testContext(t)
	lease := acquire(t, c, n, 0)
	revoke := func() {
		t.Helper()
		for _, accessor := range l.tokens() {
			if _, err := l.admin.ACL().TokenDelete(accessor, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A token that Consul does not know counts as new for some seconds.
	revoke()
	eventually(t, "a login after the token was deleted", func() bool { return c.Renew(ctx, lease) == nil })
	l.wantTokens(1)

	revoke()
	second := claim(1) // in a transaction
	second.NodeID = "another"
	eventually(t, "a login after the token was deleted", func() bool { return errOf2(c.Acquire(ctx, n, second)) == nil })
	l.wantTokens(1)

	// Without a valid JWT, the error says why. With one, the next call logs in.
	revoke()
	changed := c.LoginChanged()
	l.write("")
	eventually(t, "the reason", func() bool { return errors.Is(c.Renew(ctx, lease), registry.ErrLogin) })
	<-changed
	_, err := c.RenewLogin(ctx)
	wantIs(t, err, registry.ErrLogin)
	l.write(l.issuer.Sign(t, time.Hour, map[string]any{"jti": "next"}))
	if err := c.Renew(ctx, lease); err != nil {
		t.Errorf("with another JWT: %v", err)
	}

	// A JWT that only gives the right to read, then one that gives all rights.
	rule := api.ACLBindingRule{AuthMethod: l.method, BindType: api.BindingRuleBindTypeRole, Selector: `value.role == "reader"`}
	policy := &api.ACLPolicy{Name: l.method + "-reader", Rules: `key_prefix "` + l.prefix + `/" { policy = "read" }`}
	if _, _, err := l.admin.ACL().PolicyCreate(policy, nil); err != nil {
		t.Fatal(err)
	}
	role := &api.ACLRole{Name: policy.Name, Policies: []*api.ACLRolePolicyLink{{Name: policy.Name}}}
	if _, _, err := l.admin.ACL().RoleCreate(role, nil); err != nil {
		t.Fatal(err)
	}
	rule.BindName = role.Name
	if _, _, err := l.admin.ACL().BindingRuleCreate(&rule, nil); err != nil {
		t.Fatal(err)
	}
	l.write(l.issuer.Sign(t, time.Hour, map[string]any{"role": "reader"}))
	take, _, err := c.PrepareToken(ctx, registry.Credentials{Login: l.login()})
	if err != nil {
		t.Fatal(err)
	}
	take()
	if _, err := c.RenewLogin(ctx); err != nil {
		t.Fatal(err)
	}
	wantIs(t, c.Renew(ctx, lease), registry.ErrDenied)
	l.write(l.issuer.Sign(t, time.Hour, nil))
	if err := c.Renew(ctx, lease); err != nil { // reads the file again
		t.Errorf("with a JWT that gives the right: %v", err)
	}
}

// TestLoginRefused: each error is one sentence that names the auth method or the file, and says what to do. It does not
// contain the JWT.
func TestLoginRefused(t *testing.T) {
	t.Parallel()
	l := newLoginTest(t, newStore(t), 0)
	putNetwork(t, l.store, "default", "10.5.0.0/16")
	sign := func(claims map[string]any) string { return l.issuer.Sign(t, time.Hour, claims) }
	for _, tt := range []struct {
		name, token string
		method      string // "" for the right one
		wants       []string
	}{
		{"empty file", "", "", []string{l.file + ": it is empty; see that the file contains a JWT", "bearer_token_file"}},
		{"no file", "-", "", []string{l.file + ": no such file or directory; see that the file contains a JWT"}},
		{"several words", "a b", "", []string{l.file + ": there is more in it than a token"}},
		{"expired", l.issuer.Sign(t, -time.Hour, nil), "",
			[]string{l.method, "token is expired", "; replace the expired JWT in " + l.file}},
		{"unknown method", sign(nil), "nope", []string{`"nope"`, `; create the auth method "nope"`, "consul.login.auth_method"}},
		{"no binding rule", sign(map[string]any{"role": "other"}), "",
			[]string{l.method, "; add a binding rule", "consul acl binding-rule list -method " + l.method}},
		{"another audience", sign(map[string]any{"aud": "other"}), "",
			[]string{l.method, "aud claim", "; see that the auth method", l.file}},
		{"another key", jwt.New(t).Sign(t, time.Hour, nil), "", []string{l.method, "no known key", "; see that the auth method"}},
		{"no JWT", "some-token", "", []string{l.method, "error parsing token", "; see that the auth method"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.token == "-" {
				if err := os.Remove(l.file); err != nil {
					t.Fatal(err)
				}
			} else {
				l.write(tt.token)
			}
			login := l.login()
			if tt.method != "" {
				login.AuthMethod = tt.method
			}
			c := l.client(func(conf *Config) { conf.Login = login })
			_, err := c.Network(testContext(t), "default")
			wantIs(t, err, registry.ErrLogin, registry.ErrToken, registry.ErrDenied)
			_, renewErr := c.RenewLogin(testContext(t))
			wantIs(t, renewErr, registry.ErrLogin)
			for _, want := range tt.wants {
				if !strings.Contains(err.Error(), want) || !strings.Contains(renewErr.Error(), want) {
					t.Errorf("%q and %q do not both contain %q", err, renewErr, want)
				}
			}
			if len(tt.token) > 3 && strings.Contains(err.Error(), tt.token) || strings.Contains(err.Error(), "http://") {
				t.Errorf("%q contains the JWT or a URL", err)
			}
			// A client that has a token keeps it.
			keeps := l.open(t)
			_, _, err = keeps.PrepareToken(testContext(t), registry.Credentials{Login: login})
			wantIs(t, err, registry.ErrLogin)
			if _, err := keeps.Network(testContext(t), "default"); err != nil {
				t.Errorf("the token from before is lost: %v", err)
			}
		})
	}
	l.wantTokens(0)
}

// TestLoginWithoutACLs: a Consul without ACLs refuses logins.
func TestLoginWithoutACLs(t *testing.T) {
	t.Parallel()
	s, err := configureServer(t.TempDir(), "", true)
	if err != nil {
		t.Fatal(err)
	}
	file := s.args[2]
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	without := strings.Replace(string(text), "acl { enabled = true", "acl { enabled = false", 1)
	if err := os.WriteFile(file, []byte(without), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	bearer := filepath.Join(t.TempDir(), "jwt")
	if err := os.WriteFile(bearer, []byte(jwt.New(t).Sign(t, time.Hour, nil)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := s.client(t, "leno", func(conf *Config) {
		conf.Token, conf.Login = "", registry.Login{AuthMethod: "nomad-workloads", BearerTokenFile: bearer}
	})
	_, err = c.Network(testContext(t), "default")
	wantIs(t, err, registry.ErrLogin)
	if !strings.HasSuffix(err.Error(), "; enable ACLs in Consul, or remove the login block (consul.login)") {
		t.Error(err)
	}
}

// TestLoginInAnOutage: while Consul cannot be reached, the token stays, and it is no refusal.
func TestLoginInAnOutage(t *testing.T) {
	t.Parallel()
	l := newLoginTest(t, newStore(t), time.Hour)
	putNetwork(t, l.store, "default", "10.5.0.0/16")
	var away atomic.Bool
	addr := proxy(t, l.server, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if away.Load() {
			http.Error(w, "No cluster leader", http.StatusInternalServerError)
			return
		}
		pass.ServeHTTP(w, r)
	})
	c, ctx := l.client(func(conf *Config) { conf.Address = addr }), testContext(t)
	next, err := c.RenewLogin(ctx)
	if life := time.Until(next); err != nil || life < 29*time.Minute || life > 40*time.Minute {
		t.Fatalf("a token for an hour is renewed in %s, %v", life, err)
	}
	before := l.tokens()
	away.Store(true)
	l.makeDue(c)
	next, err = c.RenewLogin(ctx)
	wantIs(t, err, registry.ErrUnavailable)
	if !next.Before(time.Now()) {
		t.Errorf("the next attempt would be at %s", next)
	}
	away.Store(false)
	if _, err := c.Network(ctx, "default"); err != nil {
		t.Errorf("under the token from before: %v", err)
	}
	if now := l.tokens(); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("tokens %q, before %q", now, before)
	}
	if _, err = c.RenewLogin(ctx); err != nil {
		t.Error(err)
	}
	l.wantTokens(2) // the one before lingers
	// A logout that Consul does not answer ends with the context.
	away.Store(true)
	wantIs(t, c.Close(), registry.ErrUnavailable)
}

// TestTokenAndLogin: a client changes between a token and a login, and logs out what it does not use.
func TestTokenAndLogin(t *testing.T) {
	t.Parallel()
	l := newLoginTest(t, newStore(t), 0)
	n := putNetwork(t, l.store, "default", "10.5.0.0/16")
	c := l.open(t, func(conf *Config) { conf.Linger = time.Millisecond })
	ctx := testContext(t)
	change := func(to registry.Credentials, tokens int) {
		t.Helper()
		take, _, err := c.PrepareToken(ctx, to)
		if err != nil {
			t.Fatal(err)
		}
		take()
		if _, err := c.Network(ctx, n.Name); err != nil {
			t.Error(err)
		}
		eventually(t, "unused tokens to be logged out", func() bool {
			if _, err := c.RenewLogin(ctx); err != nil {
				t.Fatal(err)
			}
			return len(l.tokens()) == tokens
		})
	}
	change(registry.Credentials{Login: l.login()}, 1)
	first := l.tokens()
	described := l.login()
	described.Meta = map[string]string{"host": "a"}
	change(registry.Credentials{Login: described}, 1)
	if now := l.tokens(); len(now) != 1 || now[0] == first[0] {
		t.Errorf("tokens %q, before %q", now, first)
	}
	_, drop, err := c.PrepareToken(ctx, registry.Credentials{Login: l.login()})
	if err != nil {
		t.Fatal(err)
	}
	l.wantTokens(2)
	drop()
	change(registry.Credentials{Login: described}, 1)
	change(registry.Credentials{Token: rootToken}, 0)
}

// TestServiceAfterLogin: the local Consul agent uses the token of the registration to tell the servers how a service
// is. Changes reach them after that token was replaced and deleted, because the service is registered again.
func TestServiceAfterLogin(t *testing.T) {
	t.Parallel()
	l := newLoginTest(t, newStore(t), time.Hour)
	c, ctx := l.client(func(conf *Config) { conf.Linger = time.Nanosecond }), testContext(t)
	service := registry.Service{Name: "leno", ID: "leno-" + l.method}
	announce := func(status string) {
		t.Helper()
		if err := c.Announce(ctx, service, registry.Verdict{Status: status}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the servers to know that the service is "+status, func() bool {
			checks, _, err := l.admin.Health().Checks(service.Name, nil)
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(checks, func(c *api.HealthCheck) bool {
				return c.ServiceID == service.ID && c.Status == status
			})
		})
	}
	announce("passing")
	first := l.tokens()
	l.makeDue(c)
	for range 2 { // the second call logs out
		if _, err := c.RenewLogin(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if now := l.tokens(); len(now) != 1 || now[0] == first[0] {
		t.Fatalf("tokens %q, before %q", now, first)
	}
	announce("warning")
	announce("passing")
	if err := c.Withdraw(ctx, service); err != nil {
		t.Error(err)
	}
}
