package transport

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged returns a net.Dialer.Control that makes the kernel close a TCP connection when sent data is not
// acknowledged within limit; the default is about 15 minutes.
func limitUnacknowledged(limit time.Duration) func(network, address string, conn syscall.RawConn) error {
	return func(network, address string, conn syscall.RawConn) error {
		if !strings.HasPrefix(network, "tcp") {
			return nil
		}
		var err error
		if e := conn.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
		}); e != nil || err != nil {
			return fmt.Errorf("set TCP_USER_TIMEOUT for %s: %w", address, errors.Join(e, err))
		}
		return nil
	}
}
