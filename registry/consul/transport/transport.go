package transport

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
)

const (
	tokenHeader = "X-Consul-Token"
	// anonymousToken is the secret of Consul's anonymous token. Sending it differs from sending no token: without one,
	// the local Consul agent uses its own default token for the request.
	anonymousToken = "anonymous"
)

// tokenKey is the context key of the *Token for a request. A request without it carries no token at all.
type tokenKey struct{}

// Context returns a context for requests under the token.
func (t *Token) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, tokenKey{}, t)
}

// roundTripper sets the token of every request. When Consul denies a request, it tries once more if the token has
// changed, or if reading the token file again or another login returns another one. It turns error statuses into
// *StatusError, because the API client keeps them only as text in several spellings, and drops the code for
// transactions and renewals. An answer that does not come from Consul also becomes a *StatusError.
type roundTripper struct{ base http.RoundTripper }

func (t roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	token, ok := req.Context().Value(tokenKey{}).(*Token)
	if !ok {
		token = &Token{}
	}
	secret, err := token.Current(req.Context())
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	resp, err := t.send(req, req.Body, secret)
	if err != nil {
		return nil, err
	}
	if answer := peek(resp); isDenial(resp.StatusCode, answer) && (req.Body == nil || req.GetBody != nil) {
		now, err := token.afterDenial(req.Context(), secret, answer)
		switch {
		case err != nil && token.AuthMethod() != "":
			_ = resp.Body.Close()
			return nil, err // it tells why there is no valid token
		case err == nil && now != secret: // if the file cannot be read, the answer stays: denied
			_ = resp.Body.Close()
			secret = now
			if resp, err = t.sendAgain(req, secret); err != nil {
				return nil, err
			}
		}
	}
	if parser, ok := req.Context().Value(answerKey{}).(*answer); ok && resp.StatusCode == http.StatusOK {
		if resp.Body, err = parser.read(resp.Body); err != nil {
			return nil, err
		}
	}
	switch {
	case strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html"):
		// This is a page of a proxy or portal in between. Consul's API sends no HTML, and for several of its answers
		// the page would be mistaken for "false" or "not found".
		_ = resp.Body.Close()
		body := fmt.Sprintf("a page with status %d that is not Consul's", resp.StatusCode)
		return nil, &StatusError{Code: http.StatusBadGateway, Body: body}
	case resp.StatusCode < 400, resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusConflict:
		return resp, nil
	}
	answer := peek(resp)
	_ = resp.Body.Close()
	return nil, &StatusError{Code: resp.StatusCode, Body: withoutToken(strings.TrimSpace(answer), secret)}
}

// isDenial reports whether an answer denies a request. That a transaction lacks a right is reported with 409.
func isDenial(code int, answer string) bool {
	return code == http.StatusForbidden || code == http.StatusConflict && IsDenied(answer)
}

// maxErrorBody limits the text of an error.
const maxErrorBody = 4 << 10

// peek reads the beginning of an answer that is an error, and leaves it to be read again.
func peek(resp *http.Response) string {
	if resp.StatusCode < 400 {
		return ""
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(text), resp.Body), resp.Body}
	return string(text)
}

// withoutToken removes the token that was sent from the answer of Consul, or of a proxy before it, because the text
// goes to logs and to the caller.
func withoutToken(text, secret string) string {
	if secret == "" || secret == anonymousToken {
		return text
	}
	return strings.ReplaceAll(text, secret, "(token)")
}

// send sends a request with a body and a token.
func (t roundTripper) send(req *http.Request, body io.ReadCloser, secret string) (*http.Response, error) {
	out := req.Clone(req.Context())
	out.Body = body
	out.Header.Del(tokenHeader)
	if secret != "" {
		out.Header.Set(tokenHeader, secret)
	}
	return t.base.RoundTrip(out)
}

func (t roundTripper) sendAgain(req *http.Request, secret string) (*http.Response, error) {
	body := req.Body
	if req.GetBody != nil {
		var err error
		if body, err = req.GetBody(); err != nil {
			return nil, err
		}
	}
	return t.send(req, body, secret)
}
