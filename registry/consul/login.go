package consul

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/registry"
)

const (
	// linger is how long a token is kept after another one has replaced it. Requests in progress use it, and the local
	// Consul agent does for a service until it is registered again, which happens every 30 s.
	linger = 40 * time.Second
	// freshLogin is how long a token that Consul does not know is no reason for another login: a server that is behind
	// does not know a new token yet.
	freshLogin = 5 * time.Second
)

// A grant is the result of a login.
type grant struct {
	secret  string // the token, "" for none
	bearer  digest // of the JWT
	since   time.Time
	due     time.Time // when to log in again; zero for never
	expires time.Time // zero for never
	unused  time.Time // when another token replaced this one
}

type digest [sha256.Size]byte

// login gets tokens by logging in, and logs them out. It is safe for concurrent use.
type login struct {
	api     *api.Client
	timeout time.Duration // of one login
	linger  time.Duration
	logger  hclog.Logger
	hide    func(secret string)

	asking chan struct{} // holds a value while a login is in progress

	mu      sync.Mutex
	method  registry.Login // zero while the client has a token of another kind
	changes int            // of method
	have    grant          // zero before the first login
	failed  failure        // of the last login
	retired []grant        // replaced, and not logged out yet
	ended   bool
	changed chan struct{} // closed and replaced when renew has something to do
}

// failure is a login that failed.
type failure struct {
	began time.Time
	err   error
}

func newLogin(conf Config, client *api.Client) *login {
	return &login{
		api:     client,
		method:  conf.Login,
		logger:  conf.Logger,
		timeout: conf.timeout,
		linger:  conf.linger,
		hide:    conf.Hide,
		asking:  make(chan struct{}, 1),
		changed: make(chan struct{}),
	}
}

// authMethod returns the auth method in use, "" if the client's token does not come from a login.
func (l *login) authMethod() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.method.AuthMethod
}

// current returns the token, and logs in if there is none.
func (l *login) current(ctx context.Context) (string, error) {
	l.mu.Lock()
	secret := l.have.secret
	l.mu.Unlock()
	if secret != "" {
		return secret, nil
	}
	return l.replace(ctx, "", false)
}

// afterDenial returns the token to use after Consul denied a request under the token used: another one if it has been
// replaced by now, if Consul does not know it any more, or if the JWT has been replaced, since its claims decide which
// rights the token gets. Otherwise it returns the same token.
func (l *login) afterDenial(ctx context.Context, used, answer string) (string, error) {
	l.mu.Lock()
	have, file := l.have, l.method.BearerTokenFile
	l.mu.Unlock()
	switch {
	case have.secret != used:
		return l.current(ctx)
	case strings.Contains(answer, "ACL not found"):
		if time.Since(have.since) < freshLogin {
			return used, nil
		}
		return l.replace(ctx, used, true)
	}
	bearer, err := readSecret(file)
	if err != nil || sha256.Sum256([]byte(bearer)) == have.bearer {
		return used, nil
	}
	return l.replace(ctx, used, false)
}

// replace logs in, unless another call has done so since the token used was current, and returns the token. gone means
// that Consul does not know the token used. If the login fails, the token used stays.
func (l *login) replace(ctx context.Context, used string, gone bool) (string, error) {
	called := time.Now()
	select {
	case l.asking <- struct{}{}:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	defer func() { <-l.asking }()
	l.mu.Lock()
	method, changes, have, failed, ended := l.method, l.changes, l.have, l.failed, l.ended
	l.mu.Unlock()
	switch {
	case ended:
		return "", fmt.Errorf("%w: %w: the client has logged out", registry.ErrToken, registry.ErrDenied)
	case have.secret != used:
		return have.secret, nil
	case failed.began.After(called): // another caller asked while this one waited
		return "", failed.err
	}
	began := time.Now()
	got, err := l.ask(ctx, method)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
			l.failed = failure{began, err}
		}
		if gone && l.have.secret == used && (l.have.due.IsZero() || began.Before(l.have.due)) {
			l.have.due = began
			l.notifyLocked()
		}
		return "", err
	}
	if l.changes != changes || l.ended { // the token is not wanted any more
		l.retireLocked(got)
		return "", fmt.Errorf("%w: the login was replaced while it was in progress", registry.ErrUnavailable)
	}
	if gone {
		l.have = grant{}
	}
	l.takeLocked(got)
	return got.secret, nil
}

// takeLocked makes a grant the current one.
func (l *login) takeLocked(got grant) {
	l.retireLocked(l.have)
	l.have = got
	l.notifyLocked()
}

// retireLocked remembers to log out a token.
func (l *login) retireLocked(g grant) {
	if g.secret != "" {
		g.unused = time.Now()
		l.retired = append(l.retired, g)
	}
}

func (l *login) notifyLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// prepare prepares the use of another method, which may be none. If it is another one, it logs in with it. A Consul that
// cannot be used does not prevent the change: the login follows later. If the method is the one in use and the JWT has
// changed, another login is due at once. take makes the change and drop undoes the preparation.
func (l *login) prepare(ctx context.Context, method registry.Login) (take, drop func(), err error) {
	l.mu.Lock()
	same, bearerUsed := l.method.Equal(method), l.have.bearer
	l.mu.Unlock()
	if !method.IsSet() {
		return func() { l.change(method, grant{}) }, nil, nil
	}
	if same {
		bearer, err := readSecret(method.BearerTokenFile)
		if err != nil {
			return nil, nil, bearerError(err)
		}
		if sha256.Sum256([]byte(bearer)) == bearerUsed {
			return func() {}, nil, nil
		}
		return l.makeDue, nil, nil
	}
	got, err := l.ask(ctx, method)
	if errors.Is(err, registry.ErrLogin) {
		return nil, nil, err
	}
	drop = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.retireLocked(got)
		l.notifyLocked()
	}
	return func() { l.change(method, got) }, drop, nil
}

// change makes another method, and the grant that was got with it, the current one.
func (l *login) change(method registry.Login, got grant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.method.Equal(method) {
		return // as for a method that was none and still is
	}
	l.method = method
	l.changes++
	l.takeLocked(got)
}

// makeDue makes another login due.
func (l *login) makeDue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.have.due = time.Now()
	l.notifyLocked()
}

// renew logs out replaced tokens, and logs in if that is due. It returns when it has to be called again, which is the
// zero time for never. If the login fails, the token in use stays.
func (l *login) renew(ctx context.Context) (next time.Time, err error) {
	l.logoutRetired(ctx)
	l.mu.Lock()
	method, have := l.method, l.have
	l.mu.Unlock()
	isDue := have.secret == "" || !have.due.IsZero() && !time.Now().Before(have.due)
	if method.IsSet() && isDue {
		_, err = l.replace(ctx, have.secret, false)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	next = l.have.due
	for _, g := range l.retired {
		if at := l.logoutAt(g); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next, err
}

// logoutAt returns when to log out a replaced token.
func (l *login) logoutAt(g grant) time.Time { return g.unused.Add(l.linger) }

// logoutRetired logs out the tokens that are not used any more. Those that cannot be logged out stay for the next call.
func (l *login) logoutRetired(ctx context.Context) {
	l.mu.Lock()
	retired := l.retired
	l.retired = nil
	l.mu.Unlock()
	var rest []grant
	for _, g := range retired {
		switch {
		case time.Now().Before(l.logoutAt(g)):
			rest = append(rest, g)
		case l.logout(ctx, g.secret) != nil:
			g.unused = time.Now() // to try again
			rest = append(rest, g)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retired = append(rest, l.retired...)
}

// logoutAll ends the use of the login and logs out all its tokens. It returns after ctx ended at the latest.
func (l *login) logoutAll(ctx context.Context) error {
	select {
	case l.asking <- struct{}{}: // a login in progress yields another token
		defer func() { <-l.asking }()
	case <-ctx.Done():
	}
	l.mu.Lock()
	l.ended = true
	all := l.retired
	if l.have.secret != "" {
		all = append(all, l.have)
	}
	l.have, l.retired = grant{}, nil
	l.mu.Unlock()
	var errs []error
	for _, g := range all {
		errs = append(errs, l.logout(ctx, g.secret))
	}
	return errors.Join(errs...)
}
