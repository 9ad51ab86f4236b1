package etcd

import (
	"context"
	"math"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// login adds the token of a user to requests. It replaces what etcd's client does: that one logs
// in for each stream, so for each renewal of a lease, which costs the server a password hash; and it sends the token
// that has expired along when it logs in again, which etcd 3.4 refuses, so it would try for ever.
type login struct {
	mu   sync.Mutex
	user user // of the next login

	asking chan struct{} // holds a value while the fields below are used
	as     user          // of token
	token  string        // "" before the first login, and while the server has no authentication
	known  bool          // token is valid as far as is known
	last   attempt       // to log in
}

func newLogin(u user) *login { return &login{user: u, asking: make(chan struct{}, 1)} }

// user is a user of etcd, zero for requests without authentication.
type user struct{ name, password string }

// newUser returns a user. As in etcd's client, a user without a password is none.
func newUser(name, password string) user {
	if name == "" || password == "" {
		return user{}
	}
	return user{name, password}
}

// setUser changes the user. A watch goes on under the one before until its connection is lost.
func (l *login) setUser(u user) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.user = u
}

func (l *login) wanted() user {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.user
}

// options returns what makes requests log in: as l, or as the login that their context has.
func (l *login) options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(l.unary), grpc.WithChainStreamInterceptor(l.stream)}
}

type loginKey struct{}

// in returns a context whose requests log in as l.
func (l *login) in(ctx context.Context) context.Context { return context.WithValue(ctx, loginKey{}, l) }

// of returns the login for requests with a context.
func (l *login) of(ctx context.Context) *login {
	if other, ok := ctx.Value(loginKey{}).(*login); ok {
		return other
	}
	return l
}

const (
	authenticateMethod = "/etcdserverpb.Auth/Authenticate"
	watchMethod        = "/etcdserverpb.Watch/Watch"
)

func (l *login) unary(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if method == authenticateMethod {
		return invoke(ctx, method, request, reply, conn, options...)
	}
	l = l.of(ctx)
	token, err := l.current(ctx, conn)
	if err != nil {
		return err
	}
	err = invoke(withToken(ctx, token), method, request, reply, conn, options...)
	if !needsLogin(err) {
		return err
	}
	if token, err = l.replace(ctx, conn, token); err != nil {
		return err
	}
	return invoke(withToken(ctx, token), method, request, reply, conn, options...)
}

func (l *login) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	l = l.of(ctx)
	token, err := l.current(ctx, conn)
	if err == nil && method == watchMethod { // its token is checked long after the stream was opened
		token, err = l.replace(ctx, conn, token)
	}
	if err != nil {
		return nil, err
	}
	// Etcd's client would try for ever to get an answer that is too large; what is watched arrives in fragments.
	return open(withToken(ctx, token), desc, conn, method, append(options, grpc.MaxCallRecvMsgSize(math.MaxInt32))...)
}

func withToken(ctx context.Context, token string) context.Context {
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token)
}

// needsLogin reports whether a request may succeed with another token.
func needsLogin(err error) bool {
	switch rpctypes.Error(err) {
	case rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision, rpctypes.ErrUserEmpty:
		return true
	}
	return false
}

// current returns the token, and logs in if there is none. Errors are those of gRPC.
func (l *login) current(ctx context.Context, conn *grpc.ClientConn) (string, error) {
	return l.use(ctx, conn, func() bool { return true })
}

// replace logs in again, unless another caller has done so since the token was used.
func (l *login) replace(ctx context.Context, conn *grpc.ClientConn, used string) (string, error) {
	return l.use(ctx, conn, func() bool { return l.token != used })
}

// use returns the token if isUsable returns true for it, and logs in otherwise.
func (l *login) use(ctx context.Context, conn *grpc.ClientConn, isUsable func() bool) (string, error) {
	since := time.Now()
	as := l.wanted()
	if as == (user{}) {
		return "", nil
	}
	select {
	case l.asking <- struct{}{}:
	case <-ctx.Done():
		return "", status.FromContextError(ctx.Err()).Err()
	}
	defer func() { <-l.asking }()
	switch {
	case l.as != as:
	case l.known && isUsable():
		return l.token, nil
	case l.last.isFor(since):
		return l.token, l.last.err
	}
	began := time.Now()
	l.as, l.token, l.known = as, "", false
	request := &etcdserverpb.AuthenticateRequest{Name: as.name, Password: as.password}
	reply, err := etcdserverpb.NewAuthClient(conn).Authenticate(ctx, request)
	switch {
	case rpctypes.Error(err) == rpctypes.ErrAuthNotEnabled:
		l.known, err = true, nil
	case err == nil:
		l.token, l.known = reply.Token, true
	}
	l.last = attempt{began, err, err != nil && ctx.Err() != nil}
	return l.token, err
}
