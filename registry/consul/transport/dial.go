package transport

import (
	"net"
	"time"
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
