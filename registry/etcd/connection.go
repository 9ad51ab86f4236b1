package etcd

import (
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
	"github.com/lenonet/leno/registry/replica"
)

// connection is what the calls under one user share.
type connection struct {
	*servers
	keys     layout
	logger   hclog.Logger
	mirror   *replica.Mirror[*record]
	sessions sessions
	views    *views
	lost     *claims.LostLeases
	lapses   *registry.LapseClock
	settle   *atomic.Int64 // Config.Settle, a time.Duration
	claims   atomic.Int32  // calls of Acquire in progress
}

func newConnection(to *servers, settle *atomic.Int64) *connection {
	conn := &connection{
		servers: to,
		keys:    layout{to.conf.Prefix, to.conf.Network},
		logger:  to.conf.Logger,
		views:   &views{},
		lost:    &claims.LostLeases{},
		lapses:  &registry.LapseClock{},
		settle:  settle,
	}
	conn.sessions.conn = conn
	conn.mirror = replica.NewMirror(conn, idleTime, keepAliveTime+keepAliveTimeout, conn.logger)
	return conn
}

// guest returns a connection for the calls of another user. It has nothing that must be closed: its requests use the
// agent's connections to the servers, and changes are followed only while one of its calls waits for them.
func (c *connection) guest(as user) *connection {
	g := newConnection(c.servers.guest(as), c.settle)
	g.mirror.Idle = 0
	return g
}

func (c *connection) close() error {
	c.mirror.Close()
	return c.servers.close()
}
