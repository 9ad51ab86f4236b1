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

// anonymousToken is the secret of Consul's anonymous token. Sending it differs from sending no token: without one, the
// local Consul agent uses its own default token for the request.
const anonymousToken = "anonymous"

const tokenHeader = "X-Consul-Token"

// token is the ACL token of one client, either fixed or from a file.
type token struct {
	hide func(secret string) // nil for a caller's token

	mu     sync.Mutex
	file   string // "" for none
	loaded bool   // the file has been read
	value  string
}

// source returns the configured token or, without one, the token of the environment, in the order in which Consul's own
// commands look for it.
func (c Config) source(environment *api.Config) (value, file string) {
	if c.Token != "" || c.TokenFile != "" {
		return c.Token, c.TokenFile
	}
	if environment.TokenFile != "" {
		return "", environment.TokenFile
	}
	return environment.Token, ""
}

// current returns the token to send, "" for none. It reads the file on the first call.
func (t *token) current() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == "" || t.loaded {
		return t.value, nil
	}
	return t.value, t.readLocked()
}

// reload reads the file again and reports whether the token has changed. On an error the old token stays.
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

// set replaces the token for all later requests, and reports whether it has changed. If there is a file, value is its
// content.
func (t *token) set(value, file string) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed = t.value != value
	t.file, t.loaded = file, file != ""
	t.takeLocked(value)
	return changed
}

// tokenFileError is the error of a token file that cannot be used. Its text names only the file and the reason: Consul
// has denied nothing.
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

// reason returns an error of a file without the operation and the path.
func reason(err error) error {
	var about *fs.PathError
	if errors.As(err, &about) {
		return about.Err
	}
	return err
}

// PrepareToken prepares the use of another token, or of the current content of its file; if both are empty, it uses the
// token of the environment. take switches all later calls to it. On an error the client keeps its token.
func (c *Client) PrepareToken(value, file string) (take func(), err error) {
	conf := Config{Token: value, TokenFile: file}
	value, file = conf.source(api.DefaultConfigWithLogger(c.logger))
	if file != "" {
		if value, err = readToken(file); err != nil {
			return nil, err
		}
	}
	return func() {
		if c.kv.token.set(value, file) {
			c.logger.Info("consul token changed")
		}
	}, nil
}

// tokenKey is the context key of the *token for a request. A request without it carries no token at all.
type tokenKey struct{}

// transport sets the token of every request. When Consul answers 403, it tries once more if the token has changed or if
// reading the token file again returns another one. It turns error statuses into *statusError, because the API client
// keeps them only as text in several spellings, and drops the code for transactions and renewals. An answer that does
// not come from Consul also becomes a *statusError.
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
		// If the file cannot be read, the answer stays: denied.
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
		// This is a page of a proxy or portal in between. Consul's API sends no HTML, and for several of its answers
		// the page would be mistaken for "false" or "not found".
		_ = resp.Body.Close()
		body := fmt.Sprintf("a page with status %d that is not Consul's", resp.StatusCode)
		return nil, &statusError{Code: http.StatusBadGateway, Body: body}
	case resp.StatusCode < 400, resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusConflict:
		return resp, nil
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	return nil, &statusError{Code: resp.StatusCode, Body: withoutToken(strings.TrimSpace(string(body)), tok)}
}

// withoutToken removes the token that was sent from the answer of Consul, or of a proxy before it, because the text
// goes to logs and to the caller.
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
