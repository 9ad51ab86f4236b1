package agent

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// connections bounds those of a server. A new one is always let in: whoever opens
// many and says nothing must not lock others out, so the one that has had no
// request for longest is closed in its place. Safe for concurrent use.
type connections struct {
	most int
	log  hclog.Logger

	mu    sync.Mutex
	open  map[net.Conn]queued
	count uint64
	over  bool      // the server stops
	told  time.Time // when a line was written about it
}

// queued is a connection's place among those without a request, 0 while it has
// one.
type queued uint64

func newConnections(most int, log hclog.Logger) *connections {
	return &connections{most: most, log: log, open: map[net.Conn]queued{}}
}

// changed is the server's ConnState.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew, http.StateIdle:
		c.count++
		c.open[conn] = queued(c.count)
		switch {
		case c.over:
			cutOff(conn)
		case state == http.StateNew && len(c.open) > c.most:
			c.dropLocked()
		}
	case http.StateActive:
		c.open[conn] = 0
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
	}
}

// dropLocked closes the connection that has waited for longest.
func (c *connections) dropLocked() {
	var oldest net.Conn
	for conn, since := range c.open {
		if since > 0 && (oldest == nil || since < c.open[oldest]) {
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

// end closes all that have no request, now and from now on: a server that stops
// waits for requests, not for those who might make one.
func (c *connections) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for conn, since := range c.open {
		if since > 0 {
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
