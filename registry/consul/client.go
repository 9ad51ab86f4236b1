// Package consul keeps the registry in Consul: records in its KV store, locked by sessions, written in transactions and
// watched with blocking queries.
//
// The package and those below it own the key layout and everything that is specific to Consul: which answers can be
// trusted, what a lost right looks like, how a session ends. They know nothing about backends, the agent, or the use of
// a lease. They never back off: callers do.
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
	"sync/atomic"
	"time"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
	"github.com/lenonet/leno/registry/consul/catalog"
	"github.com/lenonet/leno/registry/consul/keys"
	"github.com/lenonet/leno/registry/consul/rights"
	"github.com/lenonet/leno/registry/consul/sessions"
	"github.com/lenonet/leno/registry/consul/transport"
)

// closeTimeout limits how long Close takes.
const closeTimeout = 2 * time.Second

// Client is the registry in one Consul datacenter. All methods are safe for concurrent use.
//
// It consists of parts that each implement the methods of one subject. The parts make their requests with the same kv.
type Client struct {
	networkStore     // registry.Networks, except Holders
	reservationStore // registry.Reservations
	leaseStore       // registry.Leases
	catalog.Agent    // the services, the name of this host, and the members
	rights.Checker   // what the token allows
	*transport.Token // its replacement, and the login that it is from

	kv     *kv // requests under this client's token
	shared *shared
}

// shared is what a client and the clients made from it by As know in common.
type shared struct {
	last      networkList
	lost      *claims.LostLeases
	claims    atomic.Int64 // in progress
	followers followers
	services  sync.Map // the tokens under which this process has registered services, by service ID
}

// Abilities implements registry.Registry.
func (c *Client) Abilities() registry.Abilities {
	return registry.Abilities{
		Probe:        c.Probe,
		Followed:     c.Followed,
		Forget:       c.Forget,
		NodeName:     c.NodeName,
		Members:      c.Members,
		SetSettle:    c.SetSettle,
		PrepareToken: c.PrepareToken,
		Close:        c.Close,
		Logins:       c,
		Records:      c,
		Rights:       c,
		Catalog:      c,
	}
}

// New returns a client. It reads the TLS files but does not connect to Consul; the first call reads the token file.
func New(conf Config) (*Client, error) {
	conf = conf.withDefaults()
	requests, err := transport.New(conf.Config)
	if err != nil {
		return nil, err
	}
	layout := keys.Layout{Prefix: conf.KVPrefix}
	s := &shared{
		lost:      &claims.LostLeases{},
		followers: followers{layout: layout, idle: conf.Idle, byNetwork: map[string]*usedFollower{}},
	}
	s.followers.settle.Store(int64(conf.Settle))
	return s.client(&kv{Client: requests, keys: layout, conf: &conf, logger: conf.Logger}), nil
}

// client returns a client that makes its requests with kv.
func (s *shared) client(kv *kv) *Client {
	c := &Client{kv: kv, shared: s, Token: kv.Token}
	c.Agent = catalog.New(kv.Client, kv.logger, &s.services)
	c.networkStore = networkStore{kv: kv, last: &s.last}
	c.reservationStore = reservationStore{kv: kv, networks: c.networkStore}
	c.leaseStore = leaseStore{
		kv:           kv,
		sessions:     sessions.New(kv.Client, c.Agent, kv.keys.Prefix, kv.conf.Datacenter, kv.logger),
		networks:     c.networkStore,
		reservations: c.reservationStore,
		shared:       s,
	}
	c.Checker = rights.Checker{Client: kv.Client, Agent: c.Agent, Keys: kv.keys}
	return c
}

// Holders implements registry.Networks.
func (c *Client) Holders(ctx context.Context, network string) ([]registry.Holder, error) {
	holders, _, err := c.sessions.Holders(ctx, network)
	return holders, err
}

// As implements registry.Registry. Both clients share connections and what they know about the watched trees.
func (c *Client) As(secret string) registry.Registry {
	kv := *c.kv
	kv.Client = kv.As(secret)
	return c.shared.client(&kv)
}

// Reconnect implements registry.Registry.
func (c *Client) Reconnect() { c.kv.Reconnect(c.kv.logger) }

// Probe makes a consistent read of one small key, for which the token needs the right to read the networks. The read is
// consistent because a newly elected leader answers other reads before it has applied its log, with old records or
// none, so a returning host would not find its records and sessions. The read costs the leader one heartbeat to the
// other servers and no disk access, and changes no index.
func (c *Client) Probe(ctx context.Context) error {
	if _, _, err := c.kv.Get(ctx, c.kv.keys.Networks()+keys.Marker, transport.Read{Consistent: true}); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

// Close logs out as far as that is possible within two seconds, and closes idle connections. It does not end calls in
// progress; their contexts do. A client that uses no login stays usable.
func (c *Client) Close() error {
	defer c.kv.CloseIdle()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return c.Logout(ctx)
}
