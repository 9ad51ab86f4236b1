package consul

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/lenonet/leno/registry"
)

// anonymousToken is the secret of Consul's anonymous token. Sending it is not
// the same as sending none: without a token the local Consul agent lends its
// own default token to the request.
const anonymousToken = "anonymous"

const tokenHeader = "X-Consul-Token"

// token is the ACL token of one client: fixed, or out of a file.
type token struct {
	file string

	mu     sync.Mutex
	loaded bool
	value  string
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
	data, err := os.ReadFile(t.file)
	if err != nil {
		return fmt.Errorf("consul token file: %w: %w", registry.ErrDenied, err)
	}
	value := strings.TrimSpace(string(data))
	if value == "" {
		return fmt.Errorf("consul token file %s: %w: it is empty", t.file, registry.ErrDenied)
	}
	t.value, t.loaded = value, true
	return nil
}

// tokenKey is the context key of the *token a request is sent under. Without
// one the request carries no token at all.
type tokenKey struct{}

// transport sets the token of every request, tries once more with a token file
// read again when Consul answers 403, and turns error statuses into
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
		if changed, err := source.reload(); err == nil && changed {
			if resp, err = t.again(req, resp, source); err != nil {
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
	return nil, &statusError{Code: resp.StatusCode, Body: strings.TrimSpace(string(body))}
}

func (t *transport) again(req *http.Request, denied *http.Response, source *token) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, io.LimitReader(denied.Body, maxErrorBody))
	_ = denied.Body.Close()
	tok, err := source.current()
	if err != nil {
		return nil, err
	}
	second := withToken(req, tok)
	if req.GetBody != nil {
		if second.Body, err = req.GetBody(); err != nil {
			return nil, err
		}
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
