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
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
)

// closeTimeout limits how long Close takes.
const closeTimeout = 2 * time.Second

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
	lost      claims.LostLeases
	kept      sync.Map // see leaseStore
	followers followers

	registered sync.Map // see consulAgent
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
	conn.token.login = newLogin(conf, client)
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
		kept:         &s.kept,
		followers:    &s.followers,
	}
	c.consulAgent = consulAgent{kv: kv, conn: s.conn, host: s.conn.host, tokens: &s.registered}
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

// Reconnect implements registry.Registry.
func (c *Client) Reconnect() {
	if n, err := c.shared.conn.open.CloseStale(); err != nil || n > 0 {
		c.kv.logger.Debug("connections from addresses that this host lost were closed", "connections", n, "error", err)
	}
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

// PrepareToken prepares the use of another token, of the current content of its file, or of another login. take
// switches all later calls to it, and drop gives it up. On an error the client keeps its token. With another login than
// before, PrepareToken logs in; a Consul that cannot be reached is no error then.
func (c *Client) PrepareToken(ctx context.Context, to registry.Credentials) (take, drop func(), err error) {
	conf := Config{Token: to.Token, TokenFile: to.TokenFile, Login: to.Login}
	value, file := conf.source(api.DefaultConfigWithLogger(c.kv.logger))
	if file != "" {
		if value, err = readToken(file); err != nil {
			return nil, nil, err
		}
	}
	takeLogin, drop, err := c.kv.token.login.prepare(ctx, to.Login)
	if err != nil {
		return nil, nil, err
	}
	return func() {
		changed := c.kv.token.set(value, file)
		takeLogin()
		if changed && !to.Login.IsSet() {
			c.kv.logger.Info("consul token changed")
		}
	}, drop, nil
}

// RenewLogin logs in if that is due, and logs out tokens that have been replaced. It returns when it has to be called
// again, which is the zero time for never. On an error the client keeps its token, as long as that is valid, and
// RenewLogin has to be called again soon. Without a login in the configuration it does nothing.
func (c *Client) RenewLogin(ctx context.Context) (next time.Time, err error) {
	return c.kv.token.login.renew(ctx)
}

// AuthMethod returns the auth method with which the client logs in, "" if it has a token of another kind.
func (c *Client) AuthMethod() string { return c.kv.token.login.authMethod() }

// LoginChanged returns a channel that is closed when RenewLogin has to be called earlier than it said.
func (c *Client) LoginChanged() <-chan struct{} {
	l := c.kv.token.login
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Logout deletes the tokens that this client got by logging in, and ends its use. It returns when ctx ends at the
// latest.
func (c *Client) Logout(ctx context.Context) error { return c.kv.token.login.logoutAll(ctx) }

// Close logs out as far as that is possible within two seconds, and closes idle connections. It does not end calls in
// progress; their contexts do. A client that uses no login stays usable.
func (c *Client) Close() error {
	defer c.shared.conn.base.CloseIdleConnections()
	if !c.kv.token.hasLogin() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return c.Logout(ctx)
}
