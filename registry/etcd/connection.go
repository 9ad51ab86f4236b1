package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
	"github.com/lenonet/leno/registry/replica"
)

// connectBackoff is how long to wait before another attempt to connect. GRPC's own backoff grows to two minutes.
var connectBackoff = backoff.Config{
	BaseDelay:  200 * time.Millisecond,
	Multiplier: 1.6,
	Jitter:     0.2,
	MaxDelay:   2 * time.Second,
}

// connection is what the calls under one user share.
type connection struct {
	host    *connection // of a guest: the agent's own, whose connections to the servers it uses; nil otherwise
	conf    Config
	keys    layout
	logger  hclog.Logger
	mirror  *replica.Mirror[*record]
	login   *login
	lost    *claims.LostLeases
	lapses  *registry.LapseClock
	views   *views
	settle  *atomic.Int64 // Config.Settle, a time.Duration
	timeout time.Duration // of one request

	tlsFailed atomic.Pointer[error] // see connectionCredentials

	guestReads chan struct{} // holds a value for each guest that is reading everything
	page       atomic.Int64  // how many keys the next page of a list has, 0 for maxPage

	claims atomic.Int32  // calls of Acquire in progress
	wrote  atomic.Uint64 // a revision that known must contain: that of the last transaction

	sessions sessions

	mu     sync.Mutex
	opened *clientv3.Client // nil before the first use
	closed bool
}

func newConnection(c Config, settle *atomic.Int64) *connection {
	conn := &connection{
		conf:    c,
		keys:    layout{c.Prefix, c.Network},
		logger:  c.Logger,
		login:   newLogin(newUser(c.Username, c.Password)),
		lost:    &claims.LostLeases{},
		lapses:  &registry.LapseClock{},
		views:   &views{},
		settle:  settle,
		timeout: requestTimeout,

		guestReads: make(chan struct{}, maxGuestReads),
	}
	conn.sessions.conn = conn
	conn.mirror = replica.NewMirror(conn, idleTime, keepAliveTime+keepAliveTimeout, c.Logger)
	return conn
}

// maxGuestReads limits how many guests read everything at a time, which takes as much memory as the store has records.
const maxGuestReads = 4

// guest returns a connection for the calls of another user. It has nothing that must be closed: its requests use the
// agent's connections to the servers, and changes are followed only while one of its calls waits for them.
func (c *connection) guest(as user) *connection {
	g := newConnection(c.conf, c.settle)
	g.host = c
	if c.host != nil {
		g.host = c.host
	}
	g.login, g.timeout, g.mirror.Idle = newLogin(as), c.timeout, 0
	return g
}

// client returns etcd's client. Opening it takes no request.
func (c *connection) client(ctx context.Context) (*clientv3.Client, error) {
	if c.host != nil {
		return c.host.client(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, replica.ErrClosed
	}
	if c.opened != nil {
		return c.opened, nil
	}
	conf := clientv3.Config{
		Endpoints:            c.conf.Endpoints,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallRecvMsgSize:   maxPageSize,
		Logger:               zap.NewNop(),
		DialOptions: append(c.login.options(), grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           connectBackoff,
			MinConnectTimeout: dialTimeout,
		})),
	}
	if c.conf.Dial != nil {
		conf.DialOptions = append(conf.DialOptions, grpc.WithContextDialer(c.conf.Dial))
	}
	conf.DialOptions = append(conf.DialOptions, grpc.WithTransportCredentials(c.credentials()))
	if c.conf.secure() {
		if _, err := c.conf.TLS.load(); err != nil { // etcd's client would only say that there is no connection
			return nil, fmt.Errorf("%w: tls: %w", registry.ErrUnavailable, err)
		}
		if name := c.conf.TLS.ServerName; name != "" {
			conf.DialOptions = append(conf.DialOptions, grpc.WithAuthority(name))
		}
	}
	api, err := clientv3.New(conf)
	if err != nil {
		return nil, registry.Wrap(classify(ctx, err), "connect to etcd")
	}
	c.opened = api
	return api, nil
}

// secure reports whether connections use TLS.
func (c Config) secure() bool {
	return c.TLS != TLS{} || slices.ContainsFunc(c.Endpoints, func(endpoint string) bool {
		return strings.HasPrefix(endpoint, "https://")
	})
}

func (c *connection) close() error {
	c.mirror.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.opened == nil {
		return nil
	}
	api := c.opened
	c.opened = nil
	return api.Close()
}

// call makes one request, with a time limit. While no server can be connected, it fails at once: a caller that waits
// between attempts learns of the end of an outage, one that hangs in a request does not.
func (c *connection) call(ctx context.Context, request func(ctx context.Context, api *clientv3.Client) error) error {
	api, err := c.client(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(c.login.in(ctx), c.timeout)
	defer cancel()
	connected, fail := context.WithCancelCause(limited)
	defer fail(nil)
	go func() {
		if hasFailed(connected, api.ActiveConnection()) {
			fail(errNotConnected)
		}
	}()
	err = request(connected, api)
	if err != nil && context.Cause(connected) == errNotConnected {
		err = fmt.Errorf("%w: %w to %s", registry.ErrUnavailable, errNotConnected, strings.Join(c.conf.Endpoints, ", "))
		if reason := cmp.Or(c.host, c).tlsFailed.Load(); reason != nil {
			err = fmt.Errorf("%w: tls: %w", err, *reason)
		}
		return err
	}
	return classify(ctx, err)
}

var errNotConnected = errors.New("no connection")

// hasFailed blocks until all servers have refused a connection, which it reports, or until ctx ends.
func hasFailed(ctx context.Context, conn *grpc.ClientConn) bool {
	for {
		state := conn.GetState()
		if state == connectivity.TransientFailure {
			return true
		}
		if !conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
}

// get reads one record; nil when there is none.
func (c *connection) get(ctx context.Context, key string) (*record, error) {
	var r *record
	err := c.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		resp, err := api.Get(ctx, key)
		if err == nil && len(resp.Kvs) > 0 {
			r = newRecord(resp.Kvs[0])
		}
		return err
	})
	return r, registry.Wrap(err, "read %s", key)
}

// transact carries out the operations if all conditions hold, and returns the revision. The error is errRefused when
// they do not.
func (c *connection) transact(ctx context.Context, conditions []clientv3.Cmp, ops ...clientv3.Op) (revision uint64, err error) {
	err = c.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		resp, err := api.Txn(ctx).If(conditions...).Then(ops...).Commit()
		switch {
		case err != nil:
			return err
		case !resp.Succeeded:
			return errRefused
		}
		revision = uint64(resp.Header.Revision)
		return nil
	})
	switch {
	case err == nil:
		c.noteWritten(revision)
	case err != errRefused:
		c.noteWritten(unknown)
	}
	return revision, err
}

// unchanged is the condition that a key has the given version; version 0 means that it does not exist.
func unchanged(key string, version uint64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", int64(version))
}

// notWrittenSince is the condition that no key below a prefix was written after a revision. It says nothing about keys
// that were deleted.
func notWrittenSince(prefix string, revision uint64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(prefix), "<", int64(revision)+1).WithPrefix()
}

// grant creates an etcd lease with an id that the server chooses.
func (c *connection) grant(ctx context.Context, ttl int64) (id clientv3.LeaseID, err error) {
	err = c.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		granted, err := api.Grant(ctx, ttl)
		if err == nil {
			id = granted.ID
		}
		return err
	})
	return id, err
}

// revoke ends an etcd lease; keys attached to it are deleted. It is no error if the lease has ended.
func (c *connection) revoke(ctx context.Context, id clientv3.LeaseID) error {
	if id == 0 {
		return nil
	}
	err := c.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		_, err := api.Revoke(ctx, id)
		return err
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}
