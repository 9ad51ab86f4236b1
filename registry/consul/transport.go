package consul

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
)

const tokenHeader = "X-Consul-Token"

// tokenKey is the context key of the *token for a request. A request without it carries no token at all.
type tokenKey struct{}

// transport sets the token of every request. When Consul answers 403, it tries once more if the token has changed, or if
// reading the token file again or another login returns another one. It turns error statuses into *statusError, because the API client
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
	tok, err := source.current(req.Context())
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
		answer := peek(resp)
		now, err := source.afterDenial(req.Context(), tok, answer)
		switch {
		case err != nil && source.hasLogin():
			return nil, err // it tells why there is no valid token
		case err == nil && now != tok: // if the file cannot be read, the answer stays: denied
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

// peek reads the beginning of an answer that denies a request, and leaves it to be read again.
func peek(denied *http.Response) string {
	text, _ := io.ReadAll(io.LimitReader(denied.Body, maxErrorBody))
	_ = denied.Body.Close()
	denied.Body = io.NopCloser(bytes.NewReader(text))
	return string(text)
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
