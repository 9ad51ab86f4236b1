package conns_test

import (
	"context"
	"net"
	"testing"

	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/registry/conns"
)

// TestCloseStale removes the address of two connections, of which one was closed before, and leaves that of two others.
func TestCloseStale(t *testing.T) {
	ns := nstest.New(t)
	ns.Sh("ip link set lo up; ip link add one type veth peer name two; ip link set one up; ip link set two up")
	ns.Sh("ip addr add 192.0.2.1/24 dev one; ip addr add 2001:db8::1/64 dev one nodad; ip addr add 192.0.2.2/32 dev one")
	var set conns.Set
	dial := set.Wrap(new(net.Dialer).DialContext)
	opened := map[string]net.Conn{}
	ns.Do(func() {
		listener, err := net.Listen("tcp", "[::]:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		_, port, err := net.SplitHostPort(listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		for _, address := range []string{"192.0.2.1", "192.0.2.2", "2001:db8::1", "127.0.0.1"} {
			if opened[address], err = dial(context.Background(), "tcp", net.JoinHostPort(address, port)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = opened[address].Close() })
		}
		closed, err := dial(context.Background(), "tcp", net.JoinHostPort("192.0.2.2", port))
		if err != nil {
			t.Fatal(err)
		}
		_ = closed.Close()
		closes(t, &set, 0)
	})
	ns.Sh("ip addr del 192.0.2.2/32 dev one; ip addr del 2001:db8::1/64 dev one")
	ns.Do(func() { closes(t, &set, 2); closes(t, &set, 0) })
	for address, conn := range opened {
		_, err := conn.Write([]byte("x"))
		if stays := address == "192.0.2.1" || address == "127.0.0.1"; stays != (err == nil) {
			t.Errorf("write to %s: %v", address, err)
		}
	}
}

// closes checks how many connections of a set are stale.
func closes(t *testing.T, set *conns.Set, want int) {
	t.Helper()
	if n, err := set.CloseStale(); err != nil || n != want {
		t.Errorf("%d connections were closed, %v; want %d", n, err, want)
	}
}
