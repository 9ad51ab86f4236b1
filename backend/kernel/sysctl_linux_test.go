package kernel_test

import (
	"testing"

	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestSysctlName: sysctl(8) accepts the name, also of a device with a dot.
func TestSysctlName(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	ns.Sh("ip link add eth0.100 type bridge; sysctl -qw " + kernel.SysctlName("ipv4", "conf", "eth0.100", "rp_filter") + "=2")
	ns.Do(func() {
		if got, err := kernel.Sysctl("ipv4", "conf", "eth0.100", "rp_filter"); got != "2" {
			t.Errorf("rp_filter is %q, %v", got, err)
		}
	})
}
