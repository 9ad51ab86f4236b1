package transport

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// dialTimeout limits one TCP connect; an address that drops packets is unavailable, not slow.
	dialTimeout = 5 * time.Second
	// deadAfter limits how long a connection stays in use after the other end was cut off or lost power without closing
	// it. Otherwise a blocking query would wait on it for all of Config.Wait and miss changes after the connection is
	// restored.
	deadAfter = 10 * time.Second
)

// newDialer returns a dialer whose connections detect a dead peer within deadAfter: by keepalives while waiting for an
// answer, and by TCP_USER_TIMEOUT (tcp(7)) while there is unacknowledged data, when Linux sends no keepalives.
func newDialer() *net.Dialer {
	const probe = 2 * time.Second
	return &net.Dialer{
		Timeout:         dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: deadAfter - 3*probe, Interval: probe, Count: 3},
		Control:         limitUnacknowledged(deadAfter),
	}
}

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
