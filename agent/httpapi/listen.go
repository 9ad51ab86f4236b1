package httpapi

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
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/config"
)

// ShutdownTimeout is how long running requests may take when the server stops.
const ShutdownTimeout = 5 * time.Second

// socketMode lets the socket's owner and its group speak to the agent.
const socketMode = 0o660

// listen opens an address such as "127.0.0.1:5366" or "unix:///run/leno.sock". The socket file of a dead agent is
// replaced. One that answers is not.
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

// Listen opens the API's address with its certificates.
func (s *Server) Listen(ctx context.Context, c config.HTTP) (net.Listener, error) {
	if err := s.certificates.load(ctx, c.TLS); err != nil {
		return nil, err
	}
	l, err := listen(c.Address)
	if err != nil {
		return nil, err
	}
	return s.certificates.secure(l), nil
}

// PrepareTLS reads the certificates' files again and returns a function that puts them in force. A reload may change
// their content, but not their names.
func (s *Server) PrepareTLS(ctx context.Context, t config.TLS) (commit func(), err error) {
	read, err := readCertificates(ctx, t)
	if err != nil {
		return nil, err
	}
	return func() {
		if read != nil {
			s.certificates.current.Store(read)
		}
	}, nil
}

// Serve answers requests until ctx ends. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	handler, err := s.Handler()
	if err != nil {
		return err
	}
	connections := newConnections(s.o.Limits.Connections, s.log)
	server := &http.Server{
		Handler:           handler,
		ConnState:         connections.changed,
		ConnContext:       connections.context,
		MaxHeaderBytes:    s.o.Limits.Header,
		ReadHeaderTimeout: s.o.Limits.HeaderTime,
		ReadTimeout:       s.o.Limits.RequestTime,
		WriteTimeout:      2 * s.o.Limits.RequestTime,
		IdleTimeout:       s.o.Limits.Idle,
		ErrorLog:          s.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		s.names.learn(ctx, l.Addr(), s.certificates.current.Load() != nil)
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		s.cache.Close()
		s.o.Logs.Dismiss()
		connections.close()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), ShutdownTimeout)
		defer cancel()
		if server.Shutdown(closing) != nil {
			_ = server.Close() // ends the requests that still run
		}
		return nil
	})
	g.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("http server: %w", err)
		}
		return nil
	})
	return g.Wait()
}
