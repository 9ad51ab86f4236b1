package kernel

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestIndirectAnswers: an address that the kernel has no route to, also because it has no IPv6, is no failure.
func TestIndirectAnswers(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr("2001:db8::2")
	for _, tt := range []struct {
		answer error
		want   string
		err    error
	}{
		{unix.ENETUNREACH, "no route to 2001:db8::2", nil},
		{unix.EOPNOTSUPP, "no route to 2001:db8::2", nil}, // booted with ipv6.disable=1
		{unix.EAFNOSUPPORT, "no route to 2001:db8::2", nil},
		{unix.EACCES, "2001:db8::2 is barred by a route", nil},
		{unix.ENOBUFS, "", unix.ENOBUFS},
	} {
		if got, _, err := indirect(addr, 2, nil, tt.answer); got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%v: %q, %v, want %q, %v", tt.answer, got, err, tt.want, tt.err)
		}
	}
}
