package agent

import (
	"context"
	"errors"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// logoutTimeout bounds how long a store that hangs delays the end of an agent.
const logoutTimeout = 2 * time.Second

// keepLogin replaces the store's token in time until ctx ends. While it fails, the store keeps its token.
func (a *Agent) keepLogin(ctx context.Context) error {
	store := a.env.Store.Registry.Abilities().Logins
	if store == nil {
		return nil
	}
	backoff := a.env.Store.Outage.NewLoop()
	for {
		changed := store.LoginChanged()
		next, err := store.RenewLogin(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		a.reportLogin(store.AuthMethod(), err)
		if err != nil {
			if err := backoff.Wait(ctx, err, changed); err != nil {
				return err
			}
			continue
		}
		if err := awaitLogin(ctx, next, changed); err != nil {
			return err
		}
	}
}

// awaitLogin blocks until next, for ever if that is zero, or until changed is closed.
func awaitLogin(ctx context.Context, next time.Time, changed <-chan struct{}) error {
	var due <-chan time.Time
	if !next.IsZero() {
		due = time.After(time.Until(next))
	}
	select {
	case <-due:
	case <-changed:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// reportLogin updates the check of the login, which exists only with a login block. An outage of the store is the
// business of another check.
func (a *Agent) reportLogin(method string, err error) {
	board := a.env.Reports.Health
	switch {
	case method == "":
		board.Clear("", health.Login)
	case err == nil:
		if board.Set("", health.Login, api.Passing, "logged in with auth method "+method) {
			a.log.Info("logged in", "auth_method", method)
		}
	case errors.Is(err, registry.ErrLogin):
		if board.Set("", health.Login, api.Warning, err.Error()) {
			a.log.Warn("login failed, trying again", "auth_method", method, "error", err)
		}
	}
}

// logout deletes the store's tokens.
func (a *Agent) logout(ctx context.Context) {
	store := a.env.Store.Registry.Abilities().Logins
	if store == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), logoutTimeout)
	defer cancel()
	if err := store.Logout(ctx); err != nil {
		a.log.Warn("logout failed, the token stays until it expires", "error", err)
	}
}
