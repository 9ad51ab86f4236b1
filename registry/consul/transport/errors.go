package transport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// StatusError is an HTTP status that means an error, with Consul's text.
type StatusError struct {
	Code int
	Body string
}

func (e *StatusError) Error() string { return fmt.Sprintf("consul answered %d: %s", e.Code, e.Body) }

// Classify wraps err with the matching sentinel:
//
//   - ErrDenied: 401 and 403, and texts with that meaning, which is all that a transaction and some forwarded errors
//     contain; a *registry.RefusedError where the text says that the token is not the reason;
//   - ErrUnavailable: no connection, a timeout, 429 (reads over the rate limit, or more than 200 connections from one
//     address), 503 (writes over the rate limit) and other 5xx (500 without a leader), an answer that is truncated or
//     not from Consul.
//
// Cancellation, requests that Consul considers bad and errors that already wrap a sentinel stay as they are.
func Classify(err error) error {
	var (
		status *StatusError
		other  api.StatusError // where a 404 or 409 is an error
		urlErr *url.Error
	)
	switch {
	case errors.As(err, &urlErr) && errors.Is(urlErr.Err, registry.ErrToken):
		return urlErr.Err // nothing was requested
	case err == nil, errors.Is(err, context.Canceled), errors.As(err, &other), errors.Is(err, registry.ErrDenied),
		errors.Is(err, registry.ErrUnavailable), errors.Is(err, registry.ErrUncertain):
		return err
	case errors.As(err, &status):
		return status.classify()
	case errors.As(err, &urlErr):
		err = urlErr.Err // callers name what they requested; its URL would only hide the reason
	case IsDenied(err.Error()):
		return fmt.Errorf("%w: %w", registry.ErrDenied, err)
	}
	// Timeouts, connections that broke within an answer, unexpected answers: a write may have taken place.
	return fmt.Errorf("%w: %w", registry.ErrUnavailable, err)
}

func (e *StatusError) classify() error {
	remedy := refusalRemedy(e.Body)
	switch {
	case e.Code == http.StatusForbidden && remedy != "":
		err := fmt.Errorf("consul's configuration forbids it, whatever the token: %w", e)
		return &registry.RefusedError{Err: err, Remedy: remedy}
	case e.Code == http.StatusUnauthorized, e.Code == http.StatusForbidden, IsDenied(e.Body):
		return fmt.Errorf("%w: %w", registry.ErrDenied, e)
	case e.Code == http.StatusTooManyRequests, e.Code >= 500:
		return fmt.Errorf("%w: %w", registry.ErrUnavailable, e)
	}
	return e
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

// IsDenied reports whether text is one of Consul's messages for a missing right or a token that does not exist.
func IsDenied(text string) bool {
	return strings.Contains(text, "Permission denied") || isUnknownToken(text)
}

// isUnknownToken reports whether text is Consul's message for a token that does not exist.
func isUnknownToken(text string) bool { return strings.Contains(text, "ACL not found") }

// Uncertain returns an error that wraps ErrUncertain with a reason.
func Uncertain(format string, args ...any) error {
	return fmt.Errorf("%w: %s", registry.ErrUncertain, fmt.Sprintf(format, args...))
}

// Hidden returns the error for an answer that may lack records because the token may not see them.
func Hidden(prefix string) error {
	return fmt.Errorf("%w: %w: the token may not read all of %s", registry.ErrUncertain, registry.ErrDenied, prefix)
}
