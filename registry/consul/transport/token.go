package transport

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/singleflight"

	"github.com/lenonet/leno/registry"
)

// Token is the ACL token of one client: fixed, from a file, or from a login. It is safe for concurrent use.
type Token struct {
	conf *Config     // nil for a caller's token, which is fixed
	api  *api.Client // for logins

	obtaining singleflight.Group // one file is read, or one login made, at a time

	mu      sync.Mutex
	from    registry.Credentials
	have    grant         // zero before the first use of a file or login
	retired []grant       // replaced, and not logged out yet
	ended   bool          // no more logins
	changed chan struct{} // closed and replaced when Renew has something to do
}

// A grant is a token, and what is known of the login that it is from.
type grant struct {
	secret string    // "" for none
	bearer digest    // of the JWT, zero for a token that is not from a login
	since  time.Time // of the login
	due    time.Time // when to log in again; zero for never
	unused time.Time // when another token replaced this one
}

type digest [sha256.Size]byte

func newToken(conf Config, from registry.Credentials) *Token {
	t := &Token{conf: &conf, from: from, have: grant{secret: from.Token}, changed: make(chan struct{})}
	t.conf.hide(from.Token)
	return t
}

// withEnvironment returns the credentials or, without any, those of the environment, in the order in which Consul's own
// commands look for them.
func withEnvironment(c registry.Credentials, environment *api.Config) registry.Credentials {
	if !c.IsSet() {
		if c.TokenFile = environment.TokenFile; c.TokenFile == "" {
			c.Token = environment.Token
		}
	}
	return c
}

func (c *Config) hide(secret string) {
	if secret != "" {
		c.Hide(secret)
	}
}

// now returns where the token is from, and the one in use.
func (t *Token) now() (from registry.Credentials, have grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.from, t.have
}

// HasToken reports whether the configuration or the environment gives the client a token or a way to get one.
func (t *Token) HasToken() bool {
	from, _ := t.now()
	return from.IsSet()
}

// Current returns the token to send, "" for none. It reads the file or logs in on the first call.
func (t *Token) Current(ctx context.Context) (string, error) {
	from, have := t.now()
	if have.secret != "" || from.TokenFile == "" && !from.Login.IsSet() {
		return have.secret, nil
	}
	return t.replace(ctx, "")
}

// afterDenial returns the token to use after Consul gave an answer that denies the token used: another one if it has
// been replaced by now, and the content of the file. It logs in again if Consul does not know the token any more, or if
// the JWT has been replaced, since its claims decide which rights the token gets. The result is the token used if there
// is no other one. On an error the token stays.
func (t *Token) afterDenial(ctx context.Context, used, answer string) (string, error) {
	from, have := t.now()
	switch {
	case have.secret != used:
		return t.Current(ctx)
	case from.TokenFile != "":
	case !from.Login.IsSet():
		return used, nil
	case isUnknownToken(answer):
		if time.Since(have.since) < freshLogin {
			return used, nil
		}
	default:
		if bearer, err := readSecret(from.Login.BearerTokenFile); err != nil || digestOf(bearer) == have.bearer {
			return used, nil
		}
	}
	return t.replace(ctx, used)
}

// replace obtains a token in place of the token used, and returns it. Callers at the same time get the same one, or the
// same error.
func (t *Token) replace(ctx context.Context, used string) (string, error) {
	select {
	case result := <-t.obtaining.DoChan("", func() (any, error) { return t.obtain(used) }):
		secret, _ := result.Val.(string)
		return secret, result.Err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// errLoggedOut means that there is no token any more.
var errLoggedOut = fmt.Errorf("%w: %w: the client has logged out", registry.ErrToken, registry.ErrDenied)

// obtain reads the file or logs in, unless the token used was replaced before. On an error the token stays.
func (t *Token) obtain(used string) (string, error) {
	t.mu.Lock()
	from, have, ended := t.from, t.have, t.ended
	t.mu.Unlock()
	switch {
	case ended && from.Login.IsSet():
		return "", errLoggedOut
	case have.secret != used:
		return have.secret, nil
	}
	began := time.Now()
	got, err := t.get(context.Background(), from)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err != nil:
		if from.Login.IsSet() && used != "" && t.have.secret == used && (have.due.IsZero() || began.Before(have.due)) {
			t.dueLocked(began)
		}
		return "", err
	case !isEqual(t.from, from), t.ended && from.Login.IsSet(): // the token is not wanted any more
		t.retireLocked(got)
		return "", fmt.Errorf("%w: the login was replaced while it was in progress", registry.ErrUnavailable)
	}
	switch {
	case t.have.secret != used: // another one was taken in the meantime
		t.retireLocked(got)
	case got.secret != used: // the file may contain the same one
		t.takeLocked(got)
	}
	return t.have.secret, nil
}

// get returns a token from its source.
func (t *Token) get(ctx context.Context, from registry.Credentials) (grant, error) {
	if from.Login.IsSet() {
		return t.logIn(ctx, from.Login)
	}
	secret := from.Token
	if from.TokenFile != "" {
		var err error
		if secret, err = readSecret(from.TokenFile); err != nil {
			return grant{}, &tokenFileError{err}
		}
	}
	t.conf.hide(secret)
	return grant{secret: secret}, nil
}

func isEqual(a, b registry.Credentials) bool {
	return a.Token == b.Token && a.TokenFile == b.TokenFile && a.Login.Equal(b.Login)
}

// takeLocked makes a grant the current one.
func (t *Token) takeLocked(got grant) {
	t.retireLocked(t.have)
	t.have = got
	t.notifyLocked()
}

// retireLocked remembers to log out a token that is from a login.
func (t *Token) retireLocked(g grant) {
	if g.bearer != (digest{}) {
		g.unused = time.Now()
		t.retired = append(t.retired, g)
	}
}

// dueLocked makes another login due.
func (t *Token) dueLocked(at time.Time) {
	t.have.due = at
	t.notifyLocked()
}

func (t *Token) notifyLocked() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// PrepareToken prepares the use of another token, of the current content of its file, or of another login. take
// switches all later requests to it, and drop gives it up. On an error the token stays. With another login than before,
// PrepareToken logs in; a Consul that cannot be used does not prevent the change: the login follows later. If the login
// is the one in use and the JWT has changed, another login is due at once.
func (t *Token) PrepareToken(ctx context.Context, to registry.Credentials) (take, drop func(), err error) {
	to = withEnvironment(to, api.DefaultConfigWithLogger(t.conf.Logger))
	if from, have := t.now(); isEqual(from, to) && to.Login.IsSet() {
		bearer, err := readBearer(to.Login)
		if err != nil {
			return nil, nil, err
		}
		return func() {
			if digestOf(bearer) != have.bearer {
				t.mu.Lock()
				defer t.mu.Unlock()
				t.dueLocked(time.Now())
			}
		}, nil, nil
	}
	got, err := t.get(ctx, to)
	if errors.Is(err, registry.ErrToken) {
		return nil, nil, err
	}
	take = func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.have.secret != got.secret && !to.Login.IsSet() {
			t.conf.Logger.Info("consul token changed")
		}
		t.from = to
		t.takeLocked(got)
	}
	drop = func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.retireLocked(got)
		t.notifyLocked()
	}
	return take, drop, nil
}

// tokenFileError is the error of a token file that cannot be used. Its text names only the file and the reason: Consul
// has denied nothing.
type tokenFileError struct{ err error }

func (e *tokenFileError) Error() string { return "consul token file " + e.err.Error() }
func (e *tokenFileError) Unwrap() []error {
	return []error{registry.ErrToken, registry.ErrDenied, e.err}
}

// readSecret reads a file with a token or a JWT. The error names the file, and never shows what is in it.
func readSecret(file string) (string, error) {
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s: it is no regular file", file) // a FIFO would block
	}
	data, err := os.ReadFile(file)
	if about, ok := errors.AsType[*fs.PathError](err); ok {
		err = about.Err
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	value, err := ParseToken(data)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return value, nil
}

// ParseToken returns the token in the content of a token file, without surrounding white space.
func ParseToken(data []byte) (string, error) {
	value := strings.TrimSpace(string(data))
	if value == "" {
		return "", errors.New("it is empty")
	}
	if strings.ContainsFunc(value, unicode.IsSpace) {
		return "", errors.New("there is more in it than a token")
	}
	return value, nil
}
