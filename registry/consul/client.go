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
	"context"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// Client is the registry in one Consul datacenter. All methods are safe for concurrent use.
//
// It consists of parts that each implement the methods of one subject. The parts make their requests with the same kv.
type Client struct {
	networkStore     // registry.Networks, except Holders
	sessionStore     // Holders
	reservationStore // registry.Reservations
	leaseStore       // registry.Leases and registry.Follower
	consulAgent      // the catalogue, and the name of this host
	rightsChecker    // what the token allows
	recordFinder     // the records of one host, for a clean-up

	kv     *kv // requests under this client's token
	shared *shared
}

// shared is what a client and the clients made from it by As know in common.
type shared struct {
	conn      connection
	networks  networkList
	lost      registry.LostLeases
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
		conn:      conn,
		followers: followers{layout: keys, idle: conf.idle, byNetwork: map[string]*usedFollower{}},
	}
	s.followers.settle.Store(int64(conf.Settle))
	return s.client(&kv{
		api:    client,
		keys:   keys,
		conf:   &conf,
		logger: conf.Logger,
		doubts: &doubts{},
		listed: &atomic.Int64{},
		token:  conn.token,
	}), nil
}

// client returns a client that makes its requests with kv.
func (s *shared) client(kv *kv) *Client {
	c := &Client{kv: kv, shared: s}
	c.networkStore = networkStore{kv: kv, last: &s.networks}
	c.reservationStore = reservationStore{kv: kv, networks: c.networkStore}
	c.sessionStore = sessionStore{kv: kv}
	c.leaseStore = leaseStore{
		kv:           kv,
		sessions:     c.sessionStore,
		networks:     c.networkStore,
		reservations: c.reservationStore,
		lost:         &s.lost,
		followers:    &s.followers,
	}
	c.consulAgent = consulAgent{kv: kv, host: s.conn.host}
	c.rightsChecker = rightsChecker{kv: kv, agent: c.consulAgent, conn: s.conn}
	c.recordFinder = recordFinder{kv: kv, sessions: c.sessionStore}
	return c
}

// As implements registry.Registry. Both clients share connections and what they know about the watched trees.
func (c *Client) As(secret string) registry.Registry {
	if secret == "" {
		secret = anonymousToken
	}
	return c.shared.client(c.kv.as(&token{value: secret}))
}

// Probe implements registry.Prober with a consistent read of one small key, for which the token needs the right to read
// the networks. The read is consistent because a newly elected leader answers other reads before it has applied its
// log, with old records or none, so a returning host would not find its records and sessions. The read costs the leader
// one heartbeat to the other servers and no disk access, and changes no index.
func (c *Client) Probe(ctx context.Context) error {
	if _, _, err := c.kv.get(ctx, c.kv.keys.networks()+markerName, read{consistent: true}); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

// PrepareToken prepares the use of another token, or of the current content of its file; if both are empty, it uses the
// token of the environment. take switches all later calls to it. On an error the client keeps its token.
func (c *Client) PrepareToken(value, file string) (take func(), err error) {
	conf := Config{Token: value, TokenFile: file}
	value, file = conf.source(api.DefaultConfigWithLogger(c.kv.logger))
	if file != "" {
		if value, err = readToken(file); err != nil {
			return nil, err
		}
	}
	return func() {
		if c.kv.token.set(value, file) {
			c.kv.logger.Info("consul token changed")
		}
	}, nil
}

// Close closes idle connections. It does not end calls in progress; their contexts do. The client stays usable.
func (c *Client) Close() error {
	c.shared.conn.base.CloseIdleConnections()
	return nil
}
