package consul

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"sync"
	"unicode"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// anonymousToken is the secret of Consul's anonymous token. Sending it is not
// the same as sending none: without a token the local Consul agent lends its
// own default token to the request.
const anonymousToken = "anonymous"

const tokenHeader = "X-Consul-Token"

// token is the ACL token of one client: fixed, or out of a file.
type token struct {
	hide func(secret string) // nil for a caller's

	mu     sync.Mutex
	file   string // "" for none
	loaded bool   // the file was read
	value  string
}

// source is where the token comes from: the configuration, else the environment
// in the order in which Consul's own commands look.
func (c Config) source(environment *api.Config) (value, file string) {
	if c.Token != "" || c.TokenFile != "" {
		return c.Token, c.TokenFile
	}
	if environment.TokenFile != "" {
		return "", environment.TokenFile
	}
	return environment.Token, ""
}

// current is the token to send, "" for none. A file is read at the first call.
func (t *token) current() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == "" || t.loaded {
		return t.value, nil
	}
	return t.value, t.readLocked()
}

// reload reads the file again and says whether the token is another one now.
// On an error the old token stays.
func (t *token) reload() (changed bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == "" {
		return false, nil
	}
	old := t.value
	err = t.readLocked()
	return t.value != old, err
}

func (t *token) readLocked() error {
	value, err := readToken(t.file)
	if err != nil {
		return err
	}
	t.loaded = true
	t.takeLocked(value)
	return nil
}

func (t *token) takeLocked(value string) {
	if t.hide != nil && value != "" {
		t.hide(value)
	}
	t.value = value
}

// set replaces the token for all requests from now on, and says whether it is
// another one. What was read of a file is its value.
func (t *token) set(value, file string) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed = t.value != value
	t.file, t.loaded = file, file != ""
	t.takeLocked(value)
	return changed
}

// tokenFileError is a token file that cannot be used. Its text names the file and the
// reason only: Consul has denied nothing.
type tokenFileError struct{ err error }

func (e *tokenFileError) Error() string { return "consul token file " + e.err.Error() }
func (e *tokenFileError) Unwrap() []error {
	return []error{registry.ErrToken, registry.ErrDenied, e.err}
}

func readToken(file string) (string, error) {
	unusable := func(why string) error { return &tokenFileError{fmt.Errorf("%s: %s", file, why)} }
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return "", unusable("it is no regular file") // a FIFO would block
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", &tokenFileError{fmt.Errorf("%s: %w", file, reason(err))}
	}
	value, err := ParseToken(data)
	if err != nil {
		return "", unusable(err.Error())
	}
	return value, nil
}

// ParseToken returns the token in the content of a token file. White space around it
// does not count.
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

// reason is an error of a file without the operation and the path.
func reason(err error) error {
	var about *fs.PathError
	if errors.As(err, &about) {
		return about.Err
	}
	return err
}

// PrepareToken makes ready to go on under another token, or what its file has in
// it now; with neither it is the environment's. take changes over for all calls
// from then on. On an error the client has what it had.
func (c *Client) PrepareToken(value, file string) (take func(), err error) {
	conf := Config{Token: value, TokenFile: file}
	value, file = conf.source(api.DefaultConfigWithLogger(c.logger))
	if file != "" {
		if value, err = readToken(file); err != nil {
			return nil, err
		}
	}
	return func() {
		if c.token.set(value, file) {
			c.logger.Info("consul token changed")
		}
	}, nil
}

// tokenKey is the context key of the *token a request is sent under. Without
// one the request carries no token at all.
type tokenKey struct{}

// transport sets the token of every request, tries once more with a token file
// read again, or with a token that came meanwhile, when Consul answers 403, and turns error statuses into
// *statusError: the API client keeps them only as text in several spellings,
// and for transactions and renewals it drops the code. What is not of Consul at
// all becomes one, too.
type transport struct {
	base http.RoundTripper
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	source, ok := req.Context().Value(tokenKey{}).(*token)
	if !ok {
		source = &token{}
	}
	tok, err := source.current()
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	resp, err := t.base.RoundTrip(withToken(req, tok))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusForbidden && (req.Body == nil || req.GetBody != nil) {
		// A file that cannot be read leaves the answer as it was: denied.
		_, unread := source.reload()
		if now, err := source.current(); unread == nil && err == nil && now != tok {
			tok = now
			if resp, err = t.again(req, resp, tok); err != nil {
				return nil, err
			}
		}
	}
	if found, ok := req.Context().Value(pairsKey{}).(*pairs); ok && resp.StatusCode == http.StatusOK {
		if resp.Body, err = found.read(resp.Body); err != nil {
			return nil, err
		}
	}
	switch {
	case strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html"):
		// A page of a proxy or portal in between: Consul's API has none, and
		// several of its answers would be taken from it as "false" or "gone".
		_ = resp.Body.Close()
		return nil, &statusError{Code: http.StatusBadGateway, Body: fmt.Sprintf("a page with status %d that is not Consul's", resp.StatusCode)}
	case resp.StatusCode < 400, resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusConflict:
		return resp, nil
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	return nil, &statusError{Code: resp.StatusCode, Body: withoutToken(strings.TrimSpace(string(body)), tok)}
}

// withoutToken is what Consul, or a proxy before it, said, without the token that
// it was sent: the text goes to logs and to whoever asked.
func withoutToken(text, tok string) string {
	if tok == "" || tok == anonymousToken {
		return text
	}
	return strings.ReplaceAll(text, tok, "(token)")
}

func (t *transport) again(req *http.Request, denied *http.Response, tok string) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, io.LimitReader(denied.Body, maxErrorBody))
	_ = denied.Body.Close()
	second := withToken(req, tok)
	if req.GetBody != nil {
		body, err := req.GetBody()
		if err != nil {
			return nil, err
		}
		second.Body = body
	}
	return t.base.RoundTrip(second)
}

func withToken(req *http.Request, tok string) *http.Request {
	out := req.Clone(req.Context())
	out.Header.Del(tokenHeader)
	if tok != "" {
		out.Header.Set(tokenHeader, tok)
	}
	return out
}
