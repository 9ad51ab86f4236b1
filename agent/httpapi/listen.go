package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/files"
	"github.com/lenonet/leno/agent/retry"
)

// ShutdownTimeout is how long running requests may take when the server stops.
const ShutdownTimeout = 5 * time.Second

// socketMode lets the socket's owner and its group speak to the agent.
const socketMode = 0o660

// socketGroup is the group of sockets, if it exists and the agent is root.
const socketGroup = "leno"

// socketPause is the time between two attempts to open the socket for commands on this host.
const socketPause = 5 * time.Second

// listen opens an address such as "127.0.0.1:5366" or "unix:///run/leno.sock".
func listen(address string) (l net.Listener, err error) {
	if path, isUnix := strings.CutPrefix(address, "unix://"); isUnix {
		l, err = listenSocket(path)
	} else {
		l, err = net.Listen("tcp", address)
	}
	if err != nil {
		return nil, fmt.Errorf("http.address: %w", err)
	}
	return l, nil
}

// listenSocket opens a socket. The file of a dead agent is replaced, that of one that answers or is busy is not.
func listenSocket(path string) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s exists and is not a socket", path)
	default:
		if conn, err := net.Dial("unix", path); err == nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", path, unix.EADDRINUSE), conn.Close())
		} else if !errors.Is(err, unix.ECONNREFUSED) {
			return nil, fmt.Errorf("%s: %w: %w", path, unix.EADDRINUSE, err)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	giveToGroup(path)
	return l, nil
}

// serveSocket serves the API at the socket for commands on this host until the server stops. Commands use the API's
// address while this is not possible.
func (s *Server) serveSocket(ctx context.Context, server *http.Server) {
	log := s.log.With("path", s.o.Socket)
	for warned := false; ; warned = true {
		l, err := listenSocket(s.o.Socket)
		if err == nil {
			// A client that occupies all connections of the address leaves those of the socket to commands on this host.
			if err = server.Serve(netutil.LimitListener(l, s.o.Limits.Connections)); errors.Is(err, http.ErrServerClosed) {
				return
			}
		}
		switch {
		case warned:
		case errors.Is(err, unix.EADDRINUSE):
			log.Info("another agent serves http.socket: commands use http.address")
		default:
			log.Warn("http.socket cannot be used: commands use http.address", "error", err)
		}
		if retry.Sleep(ctx, socketPause) != nil {
			return
		}
	}
}

// giveToGroup lets the members of the group leno use a socket of an agent that runs as root. Without that group, only
// root can.
func giveToGroup(path string) {
	group, err := user.LookupGroup(socketGroup)
	if err != nil || os.Geteuid() != 0 {
		return
	}
	if id, err := strconv.Atoi(group.Gid); err == nil {
		_ = os.Chown(path, -1, id) // it stays root's
	}
}

// LoadTLS reads the certificates' files and puts them in force.
func (s *Server) LoadTLS(t config.TLS) error {
	ctx, cancel := context.WithTimeout(context.Background(), files.ReadTimeout)
	defer cancel()
	commit, err := s.PrepareTLS(ctx, t)
	if err == nil {
		commit()
	}
	return err
}

// Listen opens the API's address with the certificates that LoadTLS has read.
func (s *Server) Listen(address string) (net.Listener, error) {
	l, err := listen(address)
	if err != nil {
		return nil, err
	}
	return s.certificates.secure(netutil.LimitListener(l, s.o.Limits.Connections)), nil
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
	conns := &connections{log: s.log, limit: s.o.Limits.Connections, unused: map[net.Conn]bool{}}
	server := &http.Server{
		Handler:           handler,
		ConnState:         conns.observe,
		MaxHeaderBytes:    s.o.Limits.Header,
		ReadHeaderTimeout: s.o.Limits.HeaderTime,
		ReadTimeout:       s.o.Limits.RequestTime,
		WriteTimeout:      2 * s.o.Limits.RequestTime,
		IdleTimeout:       s.o.Limits.Idle,
		ErrorLog:          s.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		s.names.Learn(ctx, l.Addr(), s.certificates.current.Load() != nil)
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		s.cache.Close()
		s.o.Logs.Dismiss()
		conns.closeUnused()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), ShutdownTimeout)
		defer cancel()
		if server.Shutdown(closing) != nil {
			_ = server.Close() // ends the requests that still run
		}
		return nil
	})
	if s.o.Socket != "" && s.o.Socket != l.Addr().String() {
		g.Go(func() error {
			s.serveSocket(ctx, server)
			return nil
		})
	}
	g.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("http server: %w", err)
		}
		return nil
	})
	return g.Wait()
}
