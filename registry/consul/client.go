// Package consul keeps the registry in Consul: records in its KV store, locked by sessions, written in transactions and
// watched with blocking queries.
//
// The package owns the key layout and everything that is specific to Consul: which answers can be trusted, what a lost
// right looks like, how a session ends. It knows nothing about backends, the agent, or the use of a lease. It never
// backs off: callers do.
//
// The keys, under the prefix of the configuration:
//
//	networks/_                       marker
//	networks/<network>               the network's record
//	leases/<network>/_               marker
//	leases/<network>/<subnet>        a lease's record, locked while held
//	reservations/<network>/<subnet>  a reservation's record
//	changes/<network>/...            recent changes of its leases, see package changelog
//
// A marker is a key that always exists. It distinguishes an empty tree from one that was emptied, restored or hidden,
// and gives the watched prefix an index of its own.
package consul

import (
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/registry"
)

// cleanupTimeout limits the cleanup after an error, which runs on its own context.
const cleanupTimeout = 3 * time.Second

// Client is the registry in one Consul datacenter. All methods are safe for concurrent use.
type Client struct {
	*shared
	kv *kv // requests under this client's token
}

// shared is the part of a client that the clients made by As have in common with it.
type shared struct {
	conf     Config
	conn     connection
	api      *api.Client
	logger   hclog.Logger
	layout   layout
	lost     registry.LostLeases
	networks networkList

	followers followers
}

var (
	_ registry.Registry  = (*Client)(nil)
	_ registry.Prober    = (*Client)(nil)
	_ registry.Follower  = (*Client)(nil)
	_ registry.NodeNamer = (*Client)(nil)
)

// New returns a client. It reads the TLS files but does not connect to Consul; the first call reads the token file.
func New(conf Config) (*Client, error) {
	conf = conf.withDefaults()
	conn, err := conf.connection()
	if err != nil {
		return nil, err
	}
	client, err := conn.client()
	if err != nil {
		return nil, err
	}
	keys := layout{conf.KVPrefix}
	s := &shared{
		conf:      conf,
		conn:      conn,
		api:       client,
		logger:    conf.Logger,
		layout:    keys,
		followers: followers{layout: keys, idle: conf.idle, byNetwork: map[string]*usedFollower{}},
	}
	s.followers.settle.Store(int64(conf.Settle))
	kv := &kv{
		api:    client,
		conf:   &s.conf,
		logger: conf.Logger,
		doubts: &doubts{},
		listed: &atomic.Int64{},
		token:  conn.token,
	}
	return &Client{shared: s, kv: kv}, nil
}

// SetSettle changes Config.Settle for records that are found missing from then on.
func (c *Client) SetSettle(d time.Duration) { c.followers.settle.Store(int64(d)) }

// As implements registry.Registry. Both clients share connections and what they know about the watched trees.
func (c *Client) As(secret string) registry.Registry {
	if secret == "" {
		secret = anonymousToken
	}
	return &Client{shared: c.shared, kv: c.kv.as(&token{value: secret})}
}

// Close closes idle connections. It does not end calls in progress; their contexts do. The client stays usable.
func (c *Client) Close() error {
	c.conn.base.CloseIdleConnections()
	return nil
}
