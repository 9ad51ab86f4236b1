package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/replica"
)

// connectBackoff is how long to wait before another attempt to connect. GRPC's own backoff grows to two minutes.
var connectBackoff = backoff.Config{
	BaseDelay:  200 * time.Millisecond,
	Multiplier: 1.6,
	Jitter:     0.2,
	MaxDelay:   2 * time.Second,
}

// servers sends requests to the servers of etcd under one user.
type servers struct {
	host    *servers // of a guest: the agent's own, whose connections it uses; nil otherwise
	conf    Config
	login   *login
	timeout time.Duration // of one request

	guestReads chan struct{} // holds a value for each guest that is reading everything
	page       atomic.Int64  // how many keys the next page of a list has, 0 for maxPage
	wrote      atomic.Uint64 // the revision of the last transaction, unknown if its outcome is not known

	tlsFailed atomic.Pointer[error] // see connectionCredentials

	mu     sync.Mutex
	opened *clientv3.Client // nil before the first use
	closed bool
}

func newServers(c Config, as user) *servers {
	return &servers{
		conf:       c,
		login:      newLogin(as),
		timeout:    requestTimeout,
		guestReads: make(chan struct{}, maxGuestReads),
	}
}

// maxGuestReads limits how many guests read everything at a time, which takes as much memory as the store has records.
const maxGuestReads = 4

// guest returns the servers for another user.
func (s *servers) guest(as user) *servers {
	g := newServers(s.conf, as)
	g.login.needsUser = s.conf.TLS.CertFile != ""
	g.host, g.timeout = cmp.Or(s.host, s), s.timeout
	return g
}

// client returns etcd's client. Opening it takes no request.
func (s *servers) client(ctx context.Context) (*clientv3.Client, error) {
	if s.host != nil {
		return s.host.client(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, replica.ErrClosed
	}
	if s.opened != nil {
		return s.opened, nil
	}
	conf := clientv3.Config{
		Endpoints:            s.conf.Endpoints,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallRecvMsgSize:   maxPageSize,
		Logger:               zap.NewNop(),
		DialOptions: append(s.login.options(), grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           connectBackoff,
			MinConnectTimeout: dialTimeout,
		})),
	}
	if s.conf.Dial != nil {
		conf.DialOptions = append(conf.DialOptions, grpc.WithContextDialer(s.conf.Dial))
	}
	conf.DialOptions = append(conf.DialOptions, grpc.WithTransportCredentials(s.credentials()))
	if s.conf.secure() {
		if _, err := s.conf.TLS.load(); err != nil { // etcd's client would only say that there is no connection
			return nil, fmt.Errorf("%w: tls: %w", registry.ErrUnavailable, err)
		}
		if name := s.conf.TLS.ServerName; name != "" {
			conf.DialOptions = append(conf.DialOptions, grpc.WithAuthority(name))
		}
	}
	api, err := clientv3.New(conf)
	if err != nil {
		return nil, registry.Wrap(classify(ctx, err), "connect to etcd")
	}
	s.opened = api
	return api, nil
}

// secure reports whether connections use TLS.
func (c Config) secure() bool {
	return slices.ContainsFunc(c.Endpoints, func(endpoint string) bool {
		return strings.HasPrefix(endpoint, "https://")
	})
}

// close ends the connections. Requests in progress fail.
func (s *servers) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.opened == nil {
		return nil
	}
	api := s.opened
	s.opened = nil
	return api.Close()
}

// call makes one request, with a time limit. While no server can be connected, it fails at once: a caller that waits
// between attempts learns of the end of an outage, one that hangs in a request does not.
func (s *servers) call(ctx context.Context, request func(ctx context.Context, api *clientv3.Client) error) error {
	api, err := s.client(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(s.login.in(ctx), s.timeout)
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
		err = fmt.Errorf("%w: %w to %s", registry.ErrUnavailable, errNotConnected, strings.Join(s.conf.Endpoints, ", "))
		if reason := cmp.Or(s.host, s).tlsFailed.Load(); reason != nil {
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
func (s *servers) get(ctx context.Context, key string) (*record, error) {
	resp, err := s.do(ctx, clientv3.OpGet(key))
	if err != nil || len(resp.Get().Kvs) == 0 {
		return nil, registry.Wrap(err, "read %s", key)
	}
	return newRecord(resp.Get().Kvs[0]), nil
}

// do carries out one operation.
func (s *servers) do(ctx context.Context, op clientv3.Op) (resp clientv3.OpResponse, err error) {
	err = s.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		resp, err = api.Do(ctx, op)
		return err
	})
	return resp, err
}

// doIf carries out the operations if all conditions hold. The error is errRefused when they do not.
func (s *servers) doIf(ctx context.Context, conditions []clientv3.Cmp, ops ...clientv3.Op) (
	*clientv3.TxnResponse, error) {
	if len(ops) == 0 { // without a read, a server that lags behind would compare what it has
		ops = []clientv3.Op{clientv3.OpGet(string(conditions[0].Key), clientv3.WithCountOnly())}
	}
	resp, err := s.do(ctx, clientv3.OpTxn(conditions, ops, nil))
	if err == nil && !resp.Txn().Succeeded {
		err = errRefused
	}
	return resp.Txn(), err
}

// transact is doIf for operations that write. It returns the revision.
func (s *servers) transact(ctx context.Context, conditions []clientv3.Cmp, ops ...clientv3.Op) (uint64, error) {
	resp, err := s.doIf(ctx, conditions, ops...)
	if err != nil {
		if err != errRefused {
			s.noteWritten(unknown)
		}
		return 0, err
	}
	revision := uint64(resp.Header.Revision)
	s.noteWritten(revision)
	return revision, nil
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

// checkContinues returns ErrOutdated unless the store had the latest record of t at its revision. A store that was set
// back had not, also if it has continued beyond that. All keys are below root.
func (s *servers) checkContinues(ctx context.Context, root string, t *tree) error {
	latest := slices.MaxFunc(append([]*record{{key: root}}, t.Records...), func(a, b *record) int {
		return cmp.Compare(a.modified, b.modified)
	})
	page, err := s.readPage(ctx, latest.key, root, 0, t.Revision)
	isOther := err == nil && (len(page.Kvs) == 0 || uint64(page.Kvs[0].ModRevision) != latest.modified)
	if err == errOtherState || isOther && latest.modified > 0 && registry.BoundedKey(latest.key) == latest.key {
		err = replica.ErrOutdated
	}
	return err
}

// grant creates an etcd lease with an id that the server chooses.
func (s *servers) grant(ctx context.Context, ttl int64) (id clientv3.LeaseID, err error) {
	err = s.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		granted, err := api.Grant(ctx, ttl)
		if err == nil {
			id = granted.ID
		}
		return err
	})
	return id, err
}

// revoke ends an etcd lease; keys attached to it are deleted. It is no error if the lease has ended.
func (s *servers) revoke(ctx context.Context, id clientv3.LeaseID) error {
	if id == 0 {
		return nil
	}
	err := s.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		_, err := api.Revoke(ctx, id)
		return err
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

// unknown is the revision of a transaction whose outcome is not known.
const unknown = math.MaxUint64

// noteWritten makes connection.known return only what contains the transaction at a revision.
func (s *servers) noteWritten(revision uint64) {
	for {
		before := s.wrote.Load()
		if before >= revision || s.wrote.CompareAndSwap(before, revision) {
			return
		}
	}
}
