package consul

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
)

const maxErrorBody = 4 << 10

// statusError is an HTTP status that means an error, with Consul's text.
type statusError struct {
	Code int
	Body string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("consul answered %d: %s", e.Code, e.Body)
}

// refusedError is the error of a transaction that Consul rolled back because a check or a lock in it did not hold.
type refusedError struct{ reasons []string }

func (e *refusedError) Error() string {
	return "consul rolled the transaction back: " + strings.Join(e.reasons, "; ")
}

func (e *refusedError) Unwrap() error { return claims.ErrOutdated }

// isRefused reports whether err is a *refusedError.
func isRefused(err error) bool {
	var refused *refusedError
	return errors.As(err, &refused)
}

// classify wraps err with the matching sentinel:
//
//   - ErrDenied: 401 and 403, and texts with that meaning, which is all that a transaction and some forwarded errors
//     contain; a *registry.RefusedError where the text says that the token is not the reason;
//   - ErrUnavailable: no connection, a timeout, 429 (reads over the rate limit, or more than 200 connections from one
//     address), 503 (writes over the rate limit) and other 5xx (500 without a leader), an answer that is truncated or
//     not from Consul.
//
// Cancellation, requests that Consul considers bad and errors that already wrap a sentinel stay as they are.
func classify(err error) error {
	var (
		status *statusError
		other  api.StatusError
		urlErr *url.Error
	)
	switch {
	case errors.As(err, &urlErr) && errors.Is(urlErr.Err, registry.ErrToken):
		return urlErr.Err // nothing was requested
	case err == nil, errors.Is(err, context.Canceled), isRefused(err), errors.Is(err, registry.ErrDenied),
		errors.Is(err, registry.ErrUnavailable), errors.Is(err, registry.ErrUncertain):
		return err
	case errors.As(err, &status):
		return classifyStatus(status.Code, status.Body, status)
	case errors.As(err, &other):
		return classifyStatus(other.Code, other.Body, err)
	case errors.As(err, &urlErr):
		// Callers name what they requested; its URL would only hide the reason.
		return fmt.Errorf("%w: %w", registry.ErrUnavailable, urlErr.Err)
	case denied(err.Error()):
		return fmt.Errorf("%w: %w", registry.ErrDenied, err)
	default:
		// Timeouts, connections that broke within an answer, unexpected answers: a write may have taken place.
		return fmt.Errorf("%w: %w", registry.ErrUnavailable, err)
	}
}

func classifyStatus(code int, body string, err error) error {
	switch {
	case code == http.StatusForbidden && refusalRemedy(body) != "":
		err = fmt.Errorf("consul's configuration forbids it, whatever the token: %w", err)
		return &registry.RefusedError{Err: err, Remedy: refusalRemedy(body)}
	case code == http.StatusUnauthorized, code == http.StatusForbidden, denied(body):
		return fmt.Errorf("%w: %w", registry.ErrDenied, err)
	case code == http.StatusTooManyRequests, code >= 500:
		return fmt.Errorf("%w: %w", registry.ErrUnavailable, err)
	default:
		return err
	}
}

// refusalRemedy returns what to do about a request that the configuration of the Consul agent forbids, given its
// answer, and "" for any other answer.
func refusalRemedy(text string) string {
	switch {
	case strings.Contains(text, "Access is restricted"), strings.HasPrefix(text, "Access denied: HTTP write"):
		return "add this host's address to http_config.allow_write_http_from of the Consul agent, " +
			"or use a Consul agent on this host"
	case strings.Contains(text, "blocked by agent configuration"):
		return "remove leno's endpoints (/v1/kv, /v1/txn, /v1/session, /v1/agent) from " +
			"http_config.block_endpoints of the Consul agent"
	}
	return ""
}

// denied reports whether text is one of Consul's messages for a missing right or a token that does not exist.
func denied(text string) bool {
	return strings.Contains(text, "Permission denied") || strings.Contains(text, "ACL not found")
}

// uncertain returns an error that wraps ErrUncertain with a reason.
func uncertain(format string, args ...any) error {
	return fmt.Errorf("%w: %s", registry.ErrUncertain, fmt.Sprintf(format, args...))
}

// hidden returns the error for an answer that may lack records because the token may not see them.
func hidden(prefix string) error {
	return fmt.Errorf("%w: %w: the token may not read all of %s", registry.ErrUncertain, registry.ErrDenied, prefix)
}
