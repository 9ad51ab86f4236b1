package transport

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

const (
	// freshLogin is how long a token that Consul does not know is no reason for another login: a server that is behind
	// does not know a new token yet.
	freshLogin = 5 * time.Second
	// replicated limits how long a new token is kept back because a server does not know it yet.
	replicated = 2 * time.Second
)

// AuthMethod returns the auth method with which the client logs in, "" if it has a token of another kind.
func (t *Token) AuthMethod() string {
	from, _ := t.now()
	return from.Login.AuthMethod
}

// LoginChanged returns a channel that is closed when RenewLogin has to be called earlier than it said.
func (t *Token) LoginChanged() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// RenewLogin logs in if that is due, and logs out tokens that have been replaced. It returns when it has to be called
// again, which is the zero time for never. On an error the token in use stays, as long as it is valid, and RenewLogin
// has to be called again soon.
func (t *Token) RenewLogin(ctx context.Context) (next time.Time, err error) {
	t.logOutRetired(ctx)
	from, have := t.now()
	isDue := have.secret == "" || !have.due.IsZero() && !time.Now().Before(have.due)
	if from.Login.IsSet() && isDue {
		_, err = t.replace(ctx, have.secret)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	next = t.have.due
	for _, g := range t.retired {
		if at := t.logOutAt(g); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next, err
}

// logOutAt returns when to log out a replaced token.
func (t *Token) logOutAt(g grant) time.Time { return g.unused.Add(t.conf.Linger) }

// logOutRetired logs out the tokens that are not used any more. Those that cannot be logged out stay for the next call.
func (t *Token) logOutRetired(ctx context.Context) {
	t.mu.Lock()
	retired := t.retired
	t.retired = nil
	t.mu.Unlock()
	var rest []grant
	for _, g := range retired {
		if !time.Now().Before(t.logOutAt(g)) {
			if t.logOut(ctx, g) == nil {
				continue
			}
			g.unused = time.Now() // to try again
		}
		rest = append(rest, g)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retired = append(rest, t.retired...)
}

// Logout ends the use of a login and logs out all its tokens. It returns when ctx ends at the latest.
func (t *Token) Logout(ctx context.Context) error {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	select { // a login in progress yields another token
	case <-t.obtaining.DoChan("", func() (any, error) { return "", errLoggedOut }): // for those that join
	case <-ctx.Done():
	}
	t.mu.Lock()
	if t.from.Login.IsSet() {
		t.takeLocked(grant{})
	}
	all := t.retired
	t.retired = nil
	t.mu.Unlock()
	var errs []error
	for _, g := range all {
		errs = append(errs, t.logOut(ctx, g))
	}
	return errors.Join(errs...)
}

// logOut makes Consul delete a token. A token that is gone is no error.
func (t *Token) logOut(ctx context.Context, g grant) error {
	ctx, cancel := context.WithTimeout(g.context(ctx), t.conf.Timeout)
	defer cancel()
	_, err := t.api.ACL().Logout((&api.WriteOptions{}).WithContext(ctx))
	if err != nil && !isUnknownToken(err.Error()) {
		return fmt.Errorf("consul logout: %w", Classify(err))
	}
	return nil
}

// context returns a context for requests under the grant.
func (g grant) context(ctx context.Context) context.Context { return (&Token{have: g}).Context(ctx) }

// logIn logs in with what the file of the JWT contains now.
func (t *Token) logIn(ctx context.Context, method registry.Login) (grant, error) {
	bearer, err := readBearer(method)
	if err != nil {
		return grant{}, err
	}
	t.conf.hide(bearer)
	g := grant{bearer: digestOf(bearer), since: time.Now()}
	ctx, cancel := context.WithTimeout(g.context(ctx), t.conf.Timeout)
	defer cancel()
	params := &api.ACLLoginParams{AuthMethod: method.AuthMethod, BearerToken: bearer, Meta: method.Meta}
	got, _, err := t.api.ACL().Login(params, (&api.WriteOptions{}).WithContext(ctx))
	if err != nil {
		return grant{}, loginError(method, bearer, err)
	}
	g.secret = got.SecretID
	t.conf.hide(g.secret)
	if got.ExpirationTime != nil {
		g.due = g.since.Add(renewAfter(got.ExpirationTime.Sub(got.CreateTime), rand.Float64()))
	}
	g.awaitReplication(ctx, t.api)
	t.conf.Logger.Debug("logged in",
		"auth_method", method.AuthMethod, "accessor", got.AccessorID, "expires", got.ExpirationTime)
	return g, nil
}

// renewAfter returns when to replace a token that lives for a time: after half to two thirds of it, so that the hosts
// of a fleet that started together do not log in together. jitter is in [0,1).
func renewAfter(life time.Duration, jitter float64) time.Duration {
	return life/2 + time.Duration(jitter*float64(life)/6)
}

// awaitReplication blocks until any server knows a new token. A Consul agent that asks one that does not remembers that
// there is no such token.
func (g grant) awaitReplication(ctx context.Context, client *api.Client) {
	ctx, cancel := context.WithTimeout(g.context(ctx), replicated)
	defer cancel()
	for {
		_, _, err := client.ACL().TokenReadSelf((&api.QueryOptions{AllowStale: true}).WithContext(ctx))
		if err == nil || !isUnknownToken(err.Error()) || registry.Sleep(ctx, 50*time.Millisecond) != nil {
			return
		}
	}
}

// readBearer reads the JWT of a login.
func readBearer(method registry.Login) (string, error) {
	bearer, err := readSecret(method.BearerTokenFile)
	if err != nil {
		return "", &registry.LoginError{
			Err: fmt.Errorf("consul login: bearer token file %w", err),
			Remedy: "see that the file contains a JWT and that the agent may read it " +
				"(consul.login.bearer_token_file): a running agent reads it again by itself",
		}
	}
	return bearer, nil
}

func digestOf(bearer string) digest { return sha256.Sum256([]byte(bearer)) }
