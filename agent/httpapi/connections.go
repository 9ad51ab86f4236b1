package httpapi

import (
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// connections are the open connections of a server.
type connections struct {
	log   hclog.Logger
	limit int // of one listener

	mu     sync.Mutex
	open   int
	unused map[net.Conn]bool // that have not sent anything yet
	warned time.Time
}

// observe implements http.Server.ConnState. It logs, once a minute at most, that as many connections are open as one
// listener accepts: others wait until a client closes one.
func (c *connections) observe(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unused, conn)
	switch state {
	case http.StateNew:
		c.unused[conn] = true
		if c.open++; c.open >= c.limit && time.Since(c.warned) > time.Minute {
			c.warned = time.Now()
			c.log.Warn("too many connections to the API, others have to wait", "open", c.open)
		}
	case http.StateClosed, http.StateHijacked:
		c.open--
	}
}

// closeUnused closes the connections over which nothing was sent, which would delay the server's end.
func (c *connections) closeUnused() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.unused {
		_ = conn.Close()
	}
}
