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
	"net"
	"strings"
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

	open *conns.Set
}

// Time limits.
const (
	requestTimeout = 5 * time.Second // the default of servers.timeout
	dialTimeout    = 5 * time.Second
	// A connection that carries nothing is checked this often, and given up if the server does not answer in time.
	keepAliveTime, keepAliveTimeout = 10 * time.Second, 5 * time.Second
	idleTime                        = time.Minute
)

// Client implements registry.Registry.
type Client struct {
	conf Config
	own  *connection
}

// Abilities implements registry.Registry.
func (c *Client) Abilities() registry.Abilities {
	return registry.Abilities{
		Probe:     c.Probe,
		Followed:  c.Followed,
		Forget:    c.Forget,
		SetSettle: func(d time.Duration) { c.own.settle.Store(int64(d)) },
		SetUser:   c.SetUser,
		Close:     c.Close,
		Records:   c,

		IsCertified: c.conf.TLS.CertFile != "",
	}
}

// New returns a client. It connects when it is used first, so errors of the connection are those of the calls.
func New(c Config) *Client {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	c.open = &conns.Set{}
	settle := &atomic.Int64{}
	settle.Store(int64(c.Settle))
	return &Client{conf: c, own: newConnection(newServers(c, newUser(c.Username, c.Password)), settle)}
}

// Close ends the client's connections. Calls in progress fail.
func (c *Client) Close() error { return c.own.close() }

// Probe reads the definition of flannel's network, which need not exist.
func (c *Client) Probe(ctx context.Context) error {
	_, err := c.own.get(ctx, c.own.keys.definition(c.own.keys.network))
	return registry.Wrap(err, "probe")
}

// SetUser makes later requests use another user. Without a name, they do not authenticate.
func (c *Client) SetUser(name, password string) { c.own.login.setUser(newUser(name, password)) }

// Reconnect implements registry.Registry.
func (c *Client) Reconnect() { c.conf.open.Reconnect(c.conf.Logger) }

// As implements registry.Registry. A token is "USER:PASSWORD". A store without authentication ignores it, unless the
// client has a certificate: then calls without a user that etcd has checked return ErrDenied. If the user is the
// agent's own, the result is the client itself. Any other user is a guest on the agent's connections: it logs in once
// and reads what it needs. Nothing is left of it afterwards, so callers may invent any number of users.
func (c *Client) As(token string) registry.Registry {
	name, password, _ := strings.Cut(token, ":")
	as := newUser(name, password)
	if c.own.login.wanted() == as && (as != user{} || c.conf.TLS.CertFile == "") {
		return c
	}
	return &Client{conf: c.conf, own: c.own.guest(as)}
}
