package httpapi

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// connections limits the connections of a server. A new connection is always accepted, because a client that opens many
// must not lock others out: instead, the connection that has gone without a running request for longest is closed.
// There always is one, since Limits.Requests is below Limits.Connections. (A listener that stops accepting at a limit,
// such as golang.org/x/net/netutil's, would lock everyone out until the idle timeout.) It is safe for concurrent use.
type connections struct {
	most int
	log  hclog.Logger

	mu     sync.Mutex
	open   map[net.Conn]*connState
	count  uint64
	closed bool      // the server stops
	warned time.Time // when the limit was logged last
}

// connState is what decides whether a connection may be closed in favour of another.
type connState struct {
	since uint64 // a higher value is later
	busy  bool   // net/http has a request of it, or the rest of one
	held  int    // running requests: it must not be closed
}

func newConnections(most int, log hclog.Logger) *connections {
	return &connections{most: most, log: log, open: map[net.Conn]*connState{}}
}

// changed is the server's ConnState.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == http.StateClosed || state == http.StateHijacked {
		delete(c.open, conn)
		return
	}
	s := c.open[conn]
	switch {
	case s != nil:
	case state == http.StateNew:
		s = &connState{}
		c.open[conn] = s
	default:
		return // it was closed in favour of another
	}
	s.busy = state == http.StateActive
	c.touchLocked(s)
	switch {
	case c.closed && !s.busy:
		closeNow(conn)
	case len(c.open) > c.most:
		c.closeOldestLocked()
	}
}

// touchLocked makes a connection the latest one.
func (c *connections) touchLocked(s *connState) {
	c.count++
	s.since = c.count
}

// closeOldestLocked closes the connection that has gone without a running request for longest.
func (c *connections) closeOldestLocked() {
	var oldest net.Conn
	for conn, s := range c.open {
		if s.held == 0 && (oldest == nil || s.since < c.open[oldest].since) {
			oldest = conn
		}
	}
	if now := time.Now(); now.Sub(c.warned) > time.Minute {
		c.warned = now
		c.log.Warn("too many connections to the API, closing those without a request; logged once a minute", "most", c.most)
	}
	delete(c.open, oldest) // not nil: there is the one that has just come
	closeNow(oldest)
}

// connectionKey is the key of a connection in the context of its requests.
type connectionKey struct{}

// context is the server's ConnContext. acquire finds a request's connection by it.
func (c *connections) context(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, func(requests int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if s := c.open[conn]; s != nil {
			s.held += requests
			c.touchLocked(s)
		}
	})
}

// acquire keeps the connection of a request from being closed in favour of another until release is called. What
// net/http does after the handler, such as waiting for the rest of an unread body, does not keep it.
func acquire(r *http.Request) (release func()) {
	change, ok := r.Context().Value(connectionKey{}).(func(int))
	if !ok { // a handler without a server, as in tests
		return func() {}
	}
	change(1)
	return func() { change(-1) }
}

// close closes the connections without a request, now and from now on: a server that stops waits for requests, not for
// clients that might send one.
func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for conn, s := range c.open {
		if !s.busy {
			closeNow(conn)
		}
	}
}

// closeNow closes a connection at once. The closing handshake of TLS would take time with a client that does not read.
func closeNow(conn net.Conn) {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	_ = conn.Close()
}
