package wireguard

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// socketDir is where wg(8) and wgctrl look for devices in processes. It is the same for all network namespaces that
// share a file system.
const socketDir = "/var/run/wireguard"

// controlSocket lets wg(8) read and change a device in this process.
type controlSocket struct {
	path     string
	listener *net.UnixListener
	inode    uint64
	done     sync.WaitGroup
}

// serve answers programs that connect to a device's socket. handle is given each connection and closes it.
func serve(path string, handle func(net.Conn)) (*controlSocket, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	listener, err := listenAt(path)
	if err != nil {
		return nil, err
	}
	s := &controlSocket{path: path, listener: listener}
	if s.inode, err = inode(path); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	s.done.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go handle(conn) // ends when the program disconnects, or when it has read its answer
		}
	})
	return s, nil
}

// listenAt listens at a path where an ended process may have left its socket.
func listenAt(path string) (*net.UnixListener, error) {
	at := &net.UnixAddr{Name: path, Net: "unix"}
	listener, err := net.ListenUnix("unix", at)
	if errors.Is(err, unix.EADDRINUSE) {
		conn, dialErr := net.DialUnix("unix", nil, at)
		if dialErr == nil {
			return nil, errors.Join(fmt.Errorf("another process serves %s", path), conn.Close())
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		listener, err = net.ListenUnix("unix", at)
	}
	if err != nil {
		return nil, err
	}
	// Only programs that may write to it can connect, and with the usual umask that is its owner from the beginning.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

func inode(path string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return 0, fmt.Errorf("stat %s: %w", path, err)
	}
	return stat.Ino, nil
}

// reachable reports whether the path still leads to the socket.
func (s *controlSocket) reachable() bool {
	now, err := inode(s.path)
	return err == nil && now == s.inode
}

// Close removes the socket, unless another one has its path.
func (s *controlSocket) Close() error {
	s.listener.SetUnlinkOnClose(s.reachable())
	err := s.listener.Close()
	s.done.Wait()
	return err
}
