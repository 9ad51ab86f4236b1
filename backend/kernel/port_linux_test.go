package kernel_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestPortInUse checks that a device that has a UDP port is named, and only if it is up.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	ns.Sh(`ip link add cilium_vxlan type vxlan external dstport 8472
ip link add down type vxlan external dstport 8473
ip link set cilium_vxlan up`)
	for _, tt := range []struct {
		port      int
		own, want string
	}{
		{8472, "", "udp port 8472 is used by the device cilium_vxlan, of kind vxlan: address already in use"},
		{8472, "cilium_vxlan", "udp port 8472 is used by another program: address already in use"},
		{8473, "", "udp port 8473 is used by another program: address already in use"},
	} {
		var err error
		ns.Do(func() { err = kernel.PortInUse(tt.port, tt.own) })
		if err.Error() != tt.want || !errors.Is(err, unix.EADDRINUSE) ||
			errors.Is(err, backend.ErrPortOfDevice) != strings.Contains(tt.want, "device") {
			t.Errorf("port %d: %v, want %s", tt.port, err, tt.want)
		}
	}
}
