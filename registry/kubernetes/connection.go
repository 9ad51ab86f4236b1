package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
	"github.com/lenonet/leno/registry/replica"
)

// connection is what the calls under one user share.
type connection struct {
	conf     Config
	names    names
	access   *accessCache
	token    string // of an API caller, added to the requests; "" for the client's own credentials and for none
	mirror   *replica.Mirror[*node]
	leases   *replica.Leases[*node, *node]
	versions *replica.Versions // of the network and of single leases
	settle   *atomic.Int64     // Config.Settle, a time.Duration

	// reading has an element while a call reads the network's configuration, and uses value and index.
	reading chan struct{}
	value   string // the configuration as it was read last
	index   uint64 // of value, 0 before the first
}

func newConnection(c Config, access *accessCache, settle *atomic.Int64) *connection {
	conn := &connection{conf: c, names: namesOf(c.AnnotationPrefix), access: access, settle: settle,
		reading: make(chan struct{}, 1), leases: &replica.Leases[*node, *node]{}, versions: &replica.Versions{}}
	// A dead connection is noticed after a ping is sent, and counts as lost.
	conn.mirror = replica.NewMirror(conn, idleTime, 2*keepAliveTime, c.Logger)
	return conn
}

// guest returns a connection for the calls of an API caller.
func (c *connection) guest(token string, shared *accessCache) *connection {
	g := newConnection(c.conf, shared, c.settle)
	g.token, g.mirror.Idle = token, 0
	return g
}

// request is one request to the API server.
type request struct {
	method string
	path   string // such as "/api/v1/nodes"
	query  url.Values
	patch  []byte // the body of a PATCH
}

// open sends a request and returns the body of a successful answer, which the caller must close.
func (c *connection) open(ctx context.Context, r request) (io.ReadCloser, error) {
	access, err := c.access.current()
	if err != nil {
		return nil, err
	}
	target := *access.base
	target.Path = strings.TrimSuffix(access.base.Path, "/") + r.path
	target.RawQuery = r.query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.method, target.String(), bytes.NewReader(r.patch))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if r.patch != nil {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := access.http.Do(req)
	if err != nil {
		return nil, classify(ctx, err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode <= 299 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusUnauthorized {
		return nil, access.unauthorized()
	}
	// Without this limit, the body may take as long as a watch lasts.
	limit := time.AfterFunc(requestTimeout, func() { _ = resp.Body.Close() })
	defer limit.Stop()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return nil, classify(ctx, err)
	}
	return nil, statusError(resp.StatusCode, text)
}

// call makes one request and decodes the answer.
func (c *connection) call(ctx context.Context, r request, answer any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout+transferTimeout, errNoAnswer)
	defer cancel()
	body, err := c.open(ctx, r)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(answer); err != nil {
		return classify(ctx, fmt.Errorf("read the answer: %w", err))
	}
	return nil
}

// Errors of single requests.
var (
	errNoAnswer = fmt.Errorf("%w: no answer in time", registry.ErrUnavailable)
	errNotFound = errors.New("not found")
	errRefused  = claims.ErrOutdated // the Node has changed since it was read
)

// statusError returns the error for an answer that is none of success. It may be that of a proxy in front of the API
// server, which does not know what exists.
func statusError(code int, body []byte) error {
	var status struct {
		Kind    string `json:"kind"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &status) != nil || status.Message == "" {
		status.Message = http.StatusText(code)
	}
	message := registry.Shorten(status.Message, registry.MaxShownReason)
	var kind error
	switch {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		kind = registry.ErrDenied
	case code == http.StatusNotFound && status.Kind == "Status" && status.Reason == "NotFound":
		kind = errNotFound
	case code == http.StatusNotFound:
		kind = fmt.Errorf("%w: the answer 404 is not that of the API server", registry.ErrUnavailable)
	case code == http.StatusConflict:
		kind = errRefused
	case code == http.StatusGone:
		kind = replica.ErrOutdated
	case code == http.StatusTooManyRequests, code >= 500:
		kind = registry.ErrUnavailable
	default:
		return fmt.Errorf("the API server answered %d: %s", code, message)
	}
	return fmt.Errorf("%w: %s", kind, message)
}

// classify returns the error of a request that got no whole answer: why its context has ended, or an error of the
// store.
func classify(ctx context.Context, err error) error {
	if ended := context.Cause(ctx); ended != nil {
		return ended
	}
	return fmt.Errorf("%w: %w", registry.ErrUnavailable, err)
}
