package consul

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// boundUnacknowledged makes the kernel close a TCP connection when sent data is not acknowledged within deadAfter; the
// default is about 15 minutes.
func boundUnacknowledged(network, address string, conn syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var err error
	if e := conn.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadAfter.Milliseconds()))
	}); e != nil || err != nil {
		return fmt.Errorf("set TCP_USER_TIMEOUT for %s: %w", address, errors.Join(e, err))
	}
	return nil
}
