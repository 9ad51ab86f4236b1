package vxlan

import (
	"errors"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestNoSuchKind checks that the kernel's answer to an unsupported kind of device is recognised.
// Test kernels have VXLAN, so it uses another kind.
func TestNoSuchKind(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "leno-n"
	var err error
	nstest.New(t).Do(func() {
		var handle *kernel.Handle
		if handle, err = kernel.Open(); err != nil {
			return
		}
		_, err = handle.AddLink(&netlink.GenericLink{LinkAttrs: attrs, LinkType: "lenonone"})
		err = errors.Join(err, handle.Close())
	})
	if !errors.Is(err, unix.EOPNOTSUPP) || !errors.Is(err, backend.ErrNoSuchKind) {
		t.Errorf("%v", err)
	}
}
