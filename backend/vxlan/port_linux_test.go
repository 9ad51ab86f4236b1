package vxlan

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
)

// TestPortOfDevice checks that the error names another program's device that has the port, and that the network works
// once the device is gone.
func TestPortOfDevice(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ns.Sh("ip link add cilium_vxlan type vxlan external dstport 8472; ip link set cilium_vxlan up")
	b := h.open("test", "leno-test", "{}")
	var err error
	h.ns.Do(func() { _, err = b.Apply(t.Context(), h.state("eth0", "192.0.2.1")) })
	if !errors.Is(err, unix.EADDRINUSE) || !errors.Is(err, backend.ErrPortOfDevice) ||
		!strings.Contains(err.Error(), "udp port 8472 is used by the device cilium_vxlan") {
		t.Errorf("error %v", err)
	}
	h.ns.Sh("ip link del cilium_vxlan")
	h.apply(b, h.state("eth0", "192.0.2.1"))
}
