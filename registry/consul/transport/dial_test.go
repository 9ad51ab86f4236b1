package transport

import (
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDeadPeersAreNoticed checks the socket options. TestHostCutOff of e2e, where packets can be dropped, checks their
// effect.
func TestDeadPeersAreNoticed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := newDialer().DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for option, want := range map[int]int{unix.TCP_USER_TIMEOUT: 10000, unix.TCP_KEEPIDLE: 4, unix.TCP_KEEPINTVL: 2, unix.TCP_KEEPCNT: 3} {
		if e := raw.Control(func(fd uintptr) {
			if got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); err != nil || got != want {
				t.Errorf("TCP option %d is %d, %v, want %d", option, got, err, want)
			}
		}); e != nil {
			t.Fatal(e)
		}
	}

	path := filepath.Join(t.TempDir(), "s")
	u, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	other, err := newDialer().DialContext(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = other.Close()
}
