// Package ports finds free ports for the servers of tests.
//
// Asking the kernel for a port and closing it again leaves a moment in which another process can take it, and a server
// that is killed and restarted leaves such a moment again. This package removes both chances. Its ports are outside the
// range from which the kernel chooses the ports of connections, and a process reserves them until it ends.
package ports

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	first = 12000 // above the ports that servers use by default
	last  = 65535
	// blockSize is the number of ports that a process reserves at once.
	blockSize = 40
)

var reserved struct {
	sync.Mutex
	next, end int // the rest of the block that was reserved last
	block     int // its number
}

// Free returns n different ports that are free on all addresses, for TCP and for UDP. No other call of Free returns
// them, in this process or in another one of the same network namespace, until this process ends.
func Free(n int) ([]int, error) {
	low, high, err := bounds()
	if err != nil {
		return nil, err
	}
	reserved.Lock()
	defer reserved.Unlock()
	var ports []int
	for len(ports) < n {
		if reserved.next == reserved.end {
			if err := reserve(low, high); err != nil {
				return nil, err
			}
		}
		if isFree(reserved.next) {
			ports = append(ports, reserved.next)
		}
		reserved.next++
	}
	return ports, nil
}

// bounds returns the ports that Free chooses from: those below the kernel's own range. On a machine where hardly any
// port is below, it returns all, and the kernel can give one to a connection first.
func bounds() (low, high int, err error) {
	const file = "/proc/sys/net/ipv4/ip_local_port_range"
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, 0, err
	}
	var kernel int
	if _, err := fmt.Sscan(string(text), &kernel); err != nil {
		return 0, 0, fmt.Errorf("%s: %q: %w", file, text, err)
	}
	if high = kernel - 1; high < first+100*blockSize {
		high = last
	}
	return first, high, nil
}

// reserve reserves the next block that no process has. Processes begin at different blocks, so that few are in vain.
func reserve(low, high int) error {
	// Before its first child, a process forks once to find out what the kernel can do, without the lock that isFree
	// waits for. This makes it do so now.
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Release()
	}
	blocks := (high - low + 1) / blockSize
	if reserved.end == 0 {
		reserved.block = os.Getpid()
	}
	for range blocks {
		reserved.block = (reserved.block + 1) % blocks
		start := low + reserved.block*blockSize
		switch err := lock(start); {
		case err == nil:
			reserved.next, reserved.end = start, start+blockSize
			return nil
		case !errors.Is(err, unix.EADDRINUSE):
			return fmt.Errorf("reserve ports from %d: %w", start, err)
		}
	}
	return fmt.Errorf("tests have reserved all ports from %d to %d", low, high)
}

// lock binds a socket to an abstract name, which nothing else can do until this process ends in any way. Such names
// belong to the network namespace, as ports do, and leave no file behind. The socket stays open, and child processes
// do not inherit it.
func lock(start int) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@leno-test-ports-%d", start)}); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	return nil
}

// isFree reports whether nothing on this machine uses the port, on any address.
func isFree(port int) bool {
	// A child process that is being forked has these sockets until it runs its program, which may be after Close.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	address := fmt.Sprintf(":%d", port)
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		return false
	}
	udp, err := net.ListenPacket("udp", address)
	if err != nil {
		_ = tcp.Close()
		return false
	}
	return errors.Join(tcp.Close(), udp.Close()) == nil
}
