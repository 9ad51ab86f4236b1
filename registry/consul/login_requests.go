package consul

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// replicated limits how long a new token is kept back because a server does not know it yet.
const replicated = 2 * time.Second

// logout makes Consul delete a token. A token that is gone is no error.
func (l *login) logout(ctx context.Context, secret string) error {
	opts, cancel := l.options(ctx, &token{value: secret})
	defer cancel()
	_, err := l.api.ACL().Logout((&api.WriteOptions{}).WithContext(opts))
	if err != nil && !strings.Contains(err.Error(), "ACL not found") {
		return fmt.Errorf("consul logout: %w", classify(err))
	}
	return nil
}

// options returns the context of a request under a token. It does not depend on the request for which the token is.
func (l *login) options(ctx context.Context, under *token) (context.Context, context.CancelFunc) {
	ctx = context.WithValue(context.WithValue(ctx, pairsKey{}, nil), tokenKey{}, under)
	return context.WithTimeout(ctx, l.timeout)
}

// ask logs in with what the file contains now.
func (l *login) ask(ctx context.Context, method registry.Login) (grant, error) {
	bearer, err := readSecret(method.BearerTokenFile)
	if err != nil {
		return grant{}, bearerError(err)
	}
	l.hide(bearer)
	now := time.Now()
	call, cancel := l.options(ctx, &token{})
	defer cancel()
	params := &api.ACLLoginParams{AuthMethod: method.AuthMethod, BearerToken: bearer, Meta: method.Meta}
	got, _, err := l.api.ACL().Login(params, (&api.WriteOptions{}).WithContext(call))
	if err != nil {
		return grant{}, loginError(method, bearer, err)
	}
	l.hide(got.SecretID)
	g := grant{secret: got.SecretID, bearer: sha256.Sum256([]byte(bearer)), since: now}
	if got.ExpirationTime != nil {
		g.due, g.expires = renewal(now, got.ExpirationTime.Sub(got.CreateTime), rand.Float64())
	}
	l.awaitReplication(call, g.secret)
	l.logger.Debug("logged in", "auth_method", method.AuthMethod, "accessor", got.AccessorID, "expires", g.expires)
	return g, nil
}

// renewal returns when to replace a token that lives for a time: after half to two thirds of it, so that the hosts of a
// fleet that started together do not log in together. jitter is in [0,1).
func renewal(now time.Time, life time.Duration, jitter float64) (due, expires time.Time) {
	return now.Add(life/2 + time.Duration(jitter*float64(life)/6)), now.Add(life)
}

// awaitReplication blocks until any server knows a new token. A Consul agent that asks one that does not remembers that
// there is no such token.
func (l *login) awaitReplication(ctx context.Context, secret string) {
	ctx, cancel := context.WithTimeout(ctx, replicated)
	defer cancel()
	opts := (&api.QueryOptions{AllowStale: true}).
		WithContext(context.WithValue(ctx, tokenKey{}, &token{value: secret}))
	for {
		_, _, err := l.api.ACL().TokenReadSelf(opts)
		if err == nil || !strings.Contains(err.Error(), "ACL not found") {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}
