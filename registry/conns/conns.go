// Package conns finds those connections of a store's client that cannot work any more.
package conns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/hashicorp/go-hclog"
)

// A Set holds the open TCP connections of a client. Its zero value is empty. It is safe for concurrent use.
type Set struct {
	mu   sync.Mutex
	open []net.Conn
}

// Dial opens a connection, like net.Dialer.DialContext.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Wrap returns dial, except that it adds each connection to the set.
func (s *Set) Wrap(dial Dial) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			s.Add(conn)
		}
		return conn, err
	}
}

// Add adds a connection to the set, which forgets it some time after it was closed. Connections that are not TCP are
// not added.
func (s *Set) Add(conn net.Conn) {
	if _, ok := conn.LocalAddr().(*net.TCPAddr); !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = append(slices.DeleteFunc(s.open, isClosed), conn)
}

// Reconnect is CloseStale for a client that only logs the result.
func (s *Set) Reconnect(log hclog.Logger) {
	if n, err := s.CloseStale(); err != nil || n > 0 {
		log.Debug("connections from addresses that this host lost were closed", "connections", n, "error", err)
	}
}

// CloseStale closes the connections from addresses that this host no longer has, and returns how many they were.
// Nothing would ever arrive over them, which their users would notice only after a time limit.
func (s *Set) CloseStale() (int, error) {
	own, err := HostAddrs()
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	s.open = slices.DeleteFunc(s.open, func(conn net.Conn) bool {
		from := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().WithZone("")
		if from.IsLoopback() || slices.Contains(own, from) {
			return isClosed(conn)
		}
		n++
		_ = conn.Close() // nothing is left to be sent
		return true
	})
	return n, nil
}

// HostAddrs returns the addresses of this host, without zones.
func HostAddrs() (out []netip.Addr, err error) {
	own, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read the addresses of this host: %w", err)
	}
	for _, a := range own {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, prefix.Addr().Unmap())
		}
	}
	return out, nil
}

// isClosed reports whether a connection was closed on this side.
func isClosed(conn net.Conn) bool {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	return err != nil || raw.Control(func(uintptr) {}) != nil
}
