package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/config"
)

// limits are what clients may ask of the API's server. What is beyond them is
// refused with a reason where a reason can be sent; /healthz and /readyz answer
// all the same.
type limits struct {
	body        int64         // bytes of a request's
	header      int           // bytes of a request's line and header
	headerTime  time.Duration // for a request's header, and for TLS
	requestTime time.Duration // for a request, and as long again for its answer; not for who waits for news
	rest        time.Duration // for what is left of a request that was answered before it was read
	idle        time.Duration // that a connection stays open without a request
	connections int           // at once; more of them close the oldest that has no request being answered
	requests    int           // being answered at once; fewer than connections
	readers     int           // of those that wait for news; they are requests, too
}

func defaultLimits() limits {
	return limits{body: 1 << 20, header: 64 << 10, headerTime: 10 * time.Second, requestTime: 30 * time.Second,
		rest: time.Second, idle: 2 * time.Minute, connections: 2000, requests: 1500, readers: 1000}
}

// shutdownTimeout is how long requests under way may take when the agent stops.
const shutdownTimeout = 5 * time.Second

// socketMode lets the socket's owner and its group speak to the agent.
const socketMode = 0o660

// listen opens the API's address: host:port or unix:///path. A socket file left
// by a dead agent is replaced, one that answers is not.
func listen(address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, "unix://")
	if !isUnix {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("http.address: %w", err)
		}
		return l, nil
	}
	if conn, err := net.Dial("unix", path); err == nil {
		return nil, errors.Join(fmt.Errorf("http.address: %s: %w", path, unix.EADDRINUSE), conn.Close())
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != fs.ModeSocket {
			return nil, fmt.Errorf("http.address: %s is there and no socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("http.address: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("http.address: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("http.address: %w", err)
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, fmt.Errorf("http.address: %w", errors.Join(err, l.Close()))
	}
	return l, nil
}

// openListener opens the API's address with its certificates.
func (a *Agent) openListener(ctx context.Context, c config.HTTP) (net.Listener, error) {
	if err := a.certificates.load(ctx, c.TLS); err != nil {
		return nil, err
	}
	l, err := listen(c.Address)
	if err != nil {
		return nil, err
	}
	return a.certificates.secure(l), nil
}

// serve answers the API until ctx ends.
func (a *Agent) serve(ctx context.Context, l net.Listener) error {
	handler, err := a.handler()
	if err != nil {
		return err
	}
	connections := newConnections(a.limits.connections, a.log)
	server := &http.Server{
		Handler: handler, ConnState: connections.changed, ConnContext: connections.known, MaxHeaderBytes: a.limits.header,
		ReadHeaderTimeout: a.limits.headerTime, ReadTimeout: a.limits.requestTime,
		WriteTimeout: 2 * a.limits.requestTime, IdleTimeout: a.limits.idle,
		ErrorLog: a.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		a.board.close()
		a.o.Logs.Dismiss()
		connections.end()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if server.Shutdown(closing) != nil {
			_ = server.Close() // cuts off what still runs
		}
		stopped <- nil
	}()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("http server: %w", err)
	}
	return <-stopped
}
