//go:build !linux

package consul

import "syscall"

// boundUnacknowledged does nothing: the system's default applies.
func boundUnacknowledged(string, string, syscall.RawConn) error { return nil }
