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
	log  hclog.Logger
	most int // of one listener

	mu     sync.Mutex
	open   int
	silent map[net.Conn]bool // that have not sent anything yet
	said   time.Time
}

// observe implements http.Server.ConnState. It logs, once a minute at most, that as many connections are open as one
// listener accepts: others wait until a client closes one.
func (c *connections) observe(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.silent, conn)
	switch state {
	case http.StateNew:
		c.silent[conn] = true
		if c.open++; c.open >= c.most && time.Since(c.said) > time.Minute {
			c.said = time.Now()
			c.log.Warn("too many connections to the API, others have to wait", "open", c.open)
		}
	case http.StateClosed, http.StateHijacked:
		c.open--
	}
}

// closeSilent closes the connections over which nothing was sent, which would delay the server's end.
func (c *connections) closeSilent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.silent {
		_ = conn.Close()
	}
}
