//go:build !linux

package transport

import (
	"syscall"
	"time"
)

// limitUnacknowledged returns nil: the system's default applies.
func limitUnacknowledged(time.Duration) func(network, address string, conn syscall.RawConn) error {
	return nil
}
