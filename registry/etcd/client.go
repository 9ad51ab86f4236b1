// Package etcd stores networks in etcd v3, in the layout of flannel: hosts that run flannel and hosts that run leno can
// share one network.
//
// The layout is described at type layout. A record has flannel's members and one more, "leno", with everything that
// flannel does not know; flannel ignores it. A record without it belongs to flannel: a network that its operator
// defined, or the lease of a host that runs flannel. Package flannel translates both.
//
// A client keeps a copy of all keys below the prefix, as of one revision, and follows the changes with one watch. Reads
// are linearizable, so no answer is stale; only the signs described at type tree make an answer uncertain.
package etcd

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/conns"
)

// Config configures a client.
type Config struct {
	Endpoints []string // URLs such as "http://127.0.0.1:2379", or host:port
	Prefix    string   // begins with a slash and has no other at its end; flannel's records are directly below
	Network   string   // the name of the network in flannel's own keys
	Username  string
	Password  string
	TLS       TLS           // for https endpoints
	Settle    time.Duration // how long records that the store has lost are kept for their hosts to write them again
	Logger    hclog.Logger
	// Dial opens a connection to an endpoint, host:port. The default is TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	open *conns.Set // the connections of all users
}

// Time limits.
const (
	requestTimeout = 5 * time.Second // the default of connection.timeout
	dialTimeout    = 5 * time.Second
	// A connection that carries nothing is checked this often, and given up if the server does not answer in time.
	keepAliveTime, keepAliveTimeout = 10 * time.Second, 5 * time.Second
	maxAnswer                       = 64 << 20 // bytes of all records below a prefix
	idleTime                        = time.Minute
)

// Client implements registry.Registry, registry.Prober and registry.Follower.
type Client struct {
	conf   Config
	own    *connection
	others *otherUsers
}

var (
	_ registry.Registry = (*Client)(nil)
	_ registry.Prober   = (*Client)(nil)
	_ registry.Follower = (*Client)(nil)
)

// New returns a client. It connects when it is used first, so errors of the connection are those of the calls.
func New(c Config) *Client {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	c.open = &conns.Set{}
	settle := &atomic.Int64{}
	settle.Store(int64(c.Settle))
	return &Client{conf: c, own: newConnection(c, settle), others: &otherUsers{evicted: map[*connection]*time.Timer{}}}
}

// Close ends the client's connections. Calls in progress fail.
func (c *Client) Close() error { return errors.Join(c.own.close(), c.others.close()) }

// SetSettle changes Config.Settle.
func (c *Client) SetSettle(d time.Duration) { c.own.settle.Store(int64(d)) }

// Probe implements registry.Prober.
func (c *Client) Probe(ctx context.Context) error {
	_, err := c.own.get(ctx, c.own.keys.definition(c.own.keys.network))
	return wrap(err, "probe")
}

// PrepareUser returns a function that makes later requests use another user. Without a name, they do not authenticate.
func (c *Client) PrepareUser(_ context.Context, name, password string) (take func(), err error) {
	return func() { c.own.login.setUser(newUser(name, password)) }, nil
}

// maxUsers limits how many users other than the agent's own have a connection at a time.
const maxUsers = 8

// otherUsers are the connections of the users of API callers.
type otherUsers struct {
	mu   sync.Mutex
	open []*connection // the one used last comes last
	// evicted are not in open any more, and are closed by the timers.
	evicted map[*connection]*time.Timer
	closed  bool
}

func (o *otherUsers) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var errs []error
	for c, timer := range o.evicted {
		timer.Stop()
		errs = append(errs, c.close())
	}
	for _, c := range o.open {
		errs = append(errs, c.close())
	}
	o.open, o.evicted, o.closed = nil, nil, true
	return errors.Join(errs...)
}

// evictOldest closes the connection that was used least recently, as soon as its calls in progress have ended. The
// caller has locked mu.
func (o *otherUsers) evictOldest() {
	oldest := o.open[0]
	o.open = slices.Delete(o.open, 0, 1)
	o.evicted[oldest] = time.AfterFunc(2*idleTime, func() {
		o.mu.Lock()
		delete(o.evicted, oldest)
		o.mu.Unlock()
		_ = oldest.close()
	})
}

// Reconnect implements registry.Registry.
func (c *Client) Reconnect() {
	if n, err := c.conf.open.CloseStale(); err != nil || n > 0 {
		c.conf.Logger.Debug("connections from addresses that this host lost were closed", "connections", n, "error", err)
	}
}

// As implements registry.Registry. A token is "USER:PASSWORD". A store without authentication ignores it. The result is
// for one request of an API caller: if the user is the agent's own, it shares the agent's connection, and PrepareUser
// changes the user of both.
func (c *Client) As(token string) registry.Registry {
	conf := c.conf
	conf.Username, conf.Password, _ = strings.Cut(token, ":")
	as := newUser(conf.Username, conf.Password)
	if c.own.login.wanted() == as {
		return c
	}
	o := c.others
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, open := range o.open {
		if open.login.wanted() == as {
			o.open = append(slices.Delete(o.open, i, i+1), open)
			return &Client{conf: c.conf, own: open, others: o}
		}
	}
	own := newConnection(conf, c.own.settle)
	if o.closed {
		own.closed = true
	} else if o.open = append(o.open, own); len(o.open) > maxUsers {
		o.evictOldest()
	}
	return &Client{conf: c.conf, own: own, others: o}
}
