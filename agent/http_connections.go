package agent

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// connections bounds those of a server. A new one is always let in: whoever opens
// many must not lock others out, so one that has no request being answered is
// closed in its place, that which has been so for longest. Those that have one are
// fewer than all: limits.requests is below limits.connections. Safe for concurrent
// use.
type connections struct {
	most int
	log  hclog.Logger

	mu    sync.Mutex
	open  map[net.Conn]*seat
	count uint64
	over  bool      // the server stops
	told  time.Time // when a line was written about it
}

// seat is a connection's place among those that may be closed for another.
type seat struct {
	since uint64 // the higher, the later
	busy  bool   // net/http has a request of it, or what is left of one
	held  int    // requests being answered: it may not be closed
}

func newConnections(most int, log hclog.Logger) *connections {
	return &connections{most: most, log: log, open: map[net.Conn]*seat{}}
}

// changed is the server's ConnState.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == http.StateClosed || state == http.StateHijacked {
		delete(c.open, conn)
		return
	}
	p := c.open[conn]
	switch {
	case p != nil:
	case state == http.StateNew:
		p = &seat{}
		c.open[conn] = p
	default:
		return // it was closed for another
	}
	p.busy = state == http.StateActive
	c.lastLocked(p)
	switch {
	case c.over && !p.busy:
		cutOff(conn)
	case len(c.open) > c.most:
		c.dropLocked()
	}
}

// lastLocked gives a connection the place of who has just come.
func (c *connections) lastLocked(p *seat) {
	c.count++
	p.since = c.count
}

// dropLocked closes the connection that has been without a request for longest.
func (c *connections) dropLocked() {
	var oldest net.Conn
	for conn, p := range c.open {
		if p.held == 0 && (oldest == nil || p.since < c.open[oldest].since) {
			oldest = conn
		}
	}
	if now := time.Now(); now.Sub(c.told) > time.Minute {
		c.told = now
		c.log.Warn("too many connections to the API, those without a request are closed, told once a minute", "most", c.most)
	}
	delete(c.open, oldest) // there is one: that which has just come
	cutOff(oldest)
}

// connectionKey is under what a request's context has its connection.
type connectionKey struct{}

// known is the server's ConnContext: hold finds the connection of a request by it.
func (c *connections) known(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, func(requests int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if p := c.open[conn]; p != nil {
			p.held += requests
			c.lastLocked(p)
		}
	})
}

// hold keeps the connection of a request from being closed for another until the
// request has been answered. What net/http does afterwards, such as to wait for
// the rest of a body that nobody read, holds it no more.
func hold(r *http.Request) (release func()) {
	change, ok := r.Context().Value(connectionKey{}).(func(int))
	if !ok { // a handler called by itself, as in tests
		return func() {}
	}
	change(1)
	return func() { change(-1) }
}

// end closes all that have no request, now and from now on: a server that stops
// waits for requests, not for those who might make one.
func (c *connections) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for conn, p := range c.open {
		if !p.busy {
			cutOff(conn)
		}
	}
}

// cutOff closes a connection at once: with TLS, to take leave of a client that
// does not read takes time.
func cutOff(conn net.Conn) {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	_ = conn.Close()
}
