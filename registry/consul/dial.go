package consul

import (
	"net"
	"time"
)

const (
	// dialTimeout bounds one TCP connect; an address that drops packets is
	// unavailable, not slow.
	dialTimeout = 5 * time.Second
	// deadAfter bounds how long a connection stays in use whose other end is
	// gone without a word: cut off, or lost power. A blocking query would wait
	// on it for all of Config.Wait, and miss what changes after the return.
	deadAfter = 10 * time.Second
)

// newDialer opens connections that notice a dead peer within deadAfter: by
// keepalives while an answer is waited for, and by TCP_USER_TIMEOUT (tcp(7))
// while there is something to send, when Linux sends no keepalives.
func newDialer() *net.Dialer {
	const probe = 2 * time.Second
	return &net.Dialer{
		Timeout:         dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: deadAfter - 3*probe, Interval: probe, Count: 3},
		Control:         boundUnacknowledged,
	}
}
