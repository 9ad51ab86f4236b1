package etcd

import (
	"context"
	"math"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// login adds the token of a user to requests. It replaces what etcd's client does: that one logs
// in for each stream, so for each renewal of a lease, which costs the server a password hash; and it sends the token
// that has expired along when it logs in again, which etcd 3.4 refuses, so it would try for ever.
type login struct {
	user     atomic.Pointer[user]    // of the next login
	last     atomic.Pointer[granted] // what is valid as far as is known, nil for nothing
	attempts singleflight.Group

	needsUser bool // requests without a token would have the rights of another client's certificate
}

var errNeedsUser = status.Error(codes.PermissionDenied, "the agent does not lend its client certificate: "+
	"give USER:PASSWORD of a user of etcd, with etcd's authentication enabled")

// granted is the token of a user, "" while the server has no authentication.
type granted struct {
	as    user
	token string
}

func newLogin(u user) *login {
	l := &login{}
	l.setUser(u)
	return l
}

// user is a user of etcd, zero for requests without authentication.
type user struct{ name, password string }

// newUser returns a user. As in etcd's client, a user without a password is none.
func newUser(name, password string) user {
	if name == "" || password == "" {
		return user{}
	}
	return user{name, password}
}

// setUser changes the user. A watch goes on under the one before until its stream ends.
func (l *login) setUser(u user) { l.user.Store(&u) }

func (l *login) wanted() user { return *l.user.Load() }

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
	return l.use(ctx, conn, func(string) bool { return true })
}

// replace logs in again, unless another caller has done so since the token was used.
func (l *login) replace(ctx context.Context, conn *grpc.ClientConn, used string) (string, error) {
	return l.use(ctx, conn, func(token string) bool { return token != used })
}

// use returns the token if isUsable returns true for it, and logs in otherwise. Callers share an attempt to log in:
// else each of them would wait for a server that does not answer.
func (l *login) use(
	ctx context.Context, conn *grpc.ClientConn, isUsable func(token string) bool,
) (token string, err error) {
	defer func() {
		if err == nil && token == "" && l.needsUser {
			err = errNeedsUser
		}
	}()
	as := l.wanted()
	if as == (user{}) {
		return "", nil
	}
	if last := l.last.Load(); last != nil && last.as == as && isUsable(last.token) {
		return last.token, nil
	}
	attempt := l.attempts.DoChan(as.name+"\x00"+as.password, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout) // its caller may give up
		defer cancel()
		request := &etcdserverpb.AuthenticateRequest{Name: as.name, Password: as.password}
		reply, err := etcdserverpb.NewAuthClient(conn).Authenticate(ctx, request)
		if err != nil && rpctypes.Error(err) != rpctypes.ErrAuthNotEnabled {
			l.last.Store(nil)
			return "", err
		}
		l.last.Store(&granted{as, reply.GetToken()})
		return reply.GetToken(), nil
	})
	select {
	case r := <-attempt:
		return r.Val.(string), r.Err
	case <-ctx.Done():
		return "", status.FromContextError(ctx.Err()).Err()
	}
}
