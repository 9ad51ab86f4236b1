package kernel_test

import (
	"net/netip"
	"testing"

	"github.com/lenonet/leno/backend/kernel"
)

// TestFindIPv6: a device that is not there, as while it is renamed, does not make its network lose IPv6.
func TestFindIPv6(t *testing.T) {
	t.Parallel()
	ns, _ := host(t)
	pools := []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00:5::/48")}
	for _, tt := range []struct{ name, change, reason string }{
		{"with IPv6", "true", ""},
		{"renamed", "ip link set leno-t down; ip link set leno-t name other", ""},
		{"too small for IPv6", "ip link set other name leno-t mtu 1200", "device leno-t has no IPv6"},
		{"disabled", "ip link set leno-t mtu 1400; echo 1 > /proc/sys/net/ipv6/conf/leno-t/disable_ipv6",
			"IPv6 is disabled: sysctl net.ipv6.conf.leno-t.disable_ipv6 is 1"},
	} {
		ns.Sh(tt.change)
		reason := ""
		ns.Do(func() {
			for _, u := range kernel.FindIPv6("leno-t").Uncarried(pools) {
				reason += u.Reason
			}
		})
		if reason != tt.reason {
			t.Errorf("%s: %q, want %q", tt.name, reason, tt.reason)
		}
	}
}
