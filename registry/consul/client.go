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
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/registry"
)

// callTimeout limits a request that does not block. Without a quorum Consul answers 500 after 9 to 12 s, which is too
// long for a call that was in progress when the quorum came back.
const callTimeout = 6 * time.Second

// longestBody limits the time between the first and the last byte of the answer to a list.
const longestBody = time.Minute

// cleanupTimeout limits the cleanup after an error, which runs on its own context.
const cleanupTimeout = 3 * time.Second

// Client is the registry in one Consul datacenter. All methods are safe for concurrent use.
type Client struct {
	*shared
	token *token
}

// shared is the part of a client that the clients made by As have in common with it.
type shared struct {
	conf     Config
	conn     connection
	api      *api.Client
	logger   hclog.Logger
	layout   layout
	lost     registry.LostLeases
	doubts   doubts
	listed   atomic.Int64 // size of the last list, bytes
	networks networkList
	settle   atomic.Int64 // Config.Settle, a time.Duration

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
	s.settle.Store(int64(conf.Settle))
	return &Client{shared: s, token: conn.token}, nil
}

// SetSettle changes Config.Settle for records that are found missing from then on.
func (c *Client) SetSettle(d time.Duration) { c.settle.Store(int64(d)) }

// keepLostUntil returns when records that are missing now count as deleted.
func (s *shared) keepLostUntil(now time.Time) time.Time {
	return now.Add(time.Duration(s.settle.Load()))
}

// As implements registry.Registry. Both clients share connections and what they know about the watched trees.
func (c *Client) As(secret string) registry.Registry {
	if secret == "" {
		secret = anonymousToken
	}
	return &Client{shared: c.shared, token: &token{value: secret}}
}

// Close closes idle connections. It does not end calls in progress; their contexts do. The client stays usable.
func (c *Client) Close() error {
	c.conn.base.CloseIdleConnections()
	return nil
}

// markerName is the last component of a marker's key; no network or subnet has this name.
const markerName = "_"

// markerValue explains the key to people who find it.
const markerValue = "leno keeps this key so that an empty tree can be told from a lost one"

// layout builds keys.
type layout struct{ prefix string }

func (l layout) networks() string             { return l.prefix + "/networks/" }
func (l layout) network(name string) string   { return l.networks() + name }
func (l layout) leases(network string) string { return l.prefix + "/leases/" + network + "/" }
func (l layout) reservations(network string) string {
	return l.prefix + "/reservations/" + network + "/"
}

func (l layout) lease(network string, subnet netip.Prefix) string {
	return l.leases(network) + registry.SubnetKey(subnet)
}

func (l layout) reservation(network string, subnet netip.Prefix) string {
	return l.reservations(network) + registry.SubnetKey(subnet)
}

// read contains the options of one read; the zero value is a plain read from the leader.
type read struct {
	index      uint64        // block until the index is beyond this
	wait       time.Duration // for at most this long
	consistent bool          // the leader first confirms with a quorum that it still leads
	stale      bool          // any server may answer
}

// query returns the options of a request that reads, under this client's token.
func (c *Client) query(ctx context.Context, r read) (*api.QueryOptions, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, c.patience(r))
	return c.options(ctx, r), cancel
}

// patience returns how long Consul may take to begin an answer.
func (c *Client) patience(r read) time.Duration {
	if r.index > 0 {
		return c.conf.timeout + r.wait + r.wait/16
	}
	return c.conf.timeout
}

func (c *Client) options(ctx context.Context, r read) *api.QueryOptions {
	opts := &api.QueryOptions{RequireConsistent: r.consistent, AllowStale: r.stale, WaitIndex: r.index}
	if r.index > 0 {
		opts.WaitTime = r.wait
	}
	return opts.WithContext(context.WithValue(ctx, tokenKey{}, c.token))
}

// write returns the options of a request that writes, under this client's token.
func (c *Client) write(ctx context.Context) (*api.WriteOptions, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, tokenKey{}, c.token), c.conf.timeout)
	return (&api.WriteOptions{}).WithContext(ctx), cancel
}

// get reads one key; the pair is nil when there is none. Unlike a list, it fails with 403 when the token lacks the
// right.
func (c *Client) get(ctx context.Context, key string, r read) (*api.KVPair, uint64, error) {
	opts, cancel := c.query(ctx, r)
	defer cancel()
	pair, meta, err := c.api.KV().Get(key, opts)
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", key, classify(err))
	}
	if !meta.KnownLeader {
		return nil, 0, fmt.Errorf("read %s: %w", key, uncertain("consul knows no leader"))
	}
	return pair, meta.LastIndex, nil
}

// getSurely is get for keys that normally exist. A newly elected leader answers default reads before it has applied its
// log; after a restart of the whole cluster, it returns no records at all. Only a consistent read proves that a key
// does not exist.
func (c *Client) getSurely(ctx context.Context, key string, r read) (*api.KVPair, uint64, error) {
	pair, index, err := c.get(ctx, key, r)
	if err == nil && pair == nil {
		return c.get(ctx, key, read{consistent: true})
	}
	return pair, index, err
}

// list reads everything below a prefix. Records hidden from the token are an error. The caller must find out whether to
// believe an empty list.
func (c *Client) list(ctx context.Context, prefix string, r read) (api.KVPairs, uint64, error) {
	// Once a long answer has begun, it may take its time: an answer that is given up must be sent again as a whole.
	whole, giveUp := context.WithCancel(ctx)
	defer giveUp()
	limit := time.AfterFunc(c.patience(r), giveUp)
	defer limit.Stop()
	found := &pairs{size: int(c.listed.Load()), begun: func() { limit.Reset(longestBody) }}
	_, meta, err := c.api.KV().List(prefix, c.options(context.WithValue(whole, pairsKey{}, found), r))
	switch {
	case err != nil && whole.Err() != nil && !errors.Is(ctx.Err(), context.Canceled): // both limits may be over at once
		late := context.DeadlineExceeded
		return nil, 0, fmt.Errorf("list %s: %w: no answer in time: %w", prefix, registry.ErrUnavailable, late)
	case err != nil:
		return nil, 0, fmt.Errorf("list %s: %w", prefix, classify(err))
	case !meta.KnownLeader:
		return nil, 0, fmt.Errorf("list %s: %w", prefix, uncertain("consul knows no leader"))
	case meta.ResultsFilteredByACLs:
		return nil, 0, fmt.Errorf("list %s: %w", prefix, hidden(prefix))
	}
	c.listed.Store(int64(found.size))
	return found.list, meta.LastIndex, nil
}

// ensureMarker creates the marker of a tree if it is missing.
func (c *Client) ensureMarker(ctx context.Context, prefix string) (created bool, err error) {
	return c.ensureKey(ctx, prefix+markerName, markerValue)
}

// ensureKey creates a key if it is missing.
func (c *Client) ensureKey(ctx context.Context, key, value string) (created bool, err error) {
	opts, cancel := c.write(ctx)
	defer cancel()
	created, _, err = c.api.KV().CAS(&api.KVPair{Key: key, Value: []byte(value)}, opts)
	if err != nil {
		return false, fmt.Errorf("create %s: %w", key, classify(err))
	}
	return created, nil
}
