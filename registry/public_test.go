package registry

import (
	"net/netip"
	"testing"
)

func TestIsPublic(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]bool{
		"10.0.0.0/8": false, "10.5.0.0/16": false, "100.100.0.0/16": false, "198.18.0.0/16": false, "192.0.2.0/24": false,
		"fd00:5::/48": false, "fc00::/7": false, "2001:db8::/32": false, "2a00:1234:5678::/48": false, "240.0.0.0/8": false,
		"8.8.0.0/16": true, "8.0.0.0/6": true, "192.0.0.0/8": true, "100.0.0.0/8": true, "0.0.0.0/0": true,
		"2000::/3": true, "2a00::/31": true, "::/0": true,
	} {
		if got := IsPublic(netip.MustParsePrefix(prefix)); got != want {
			t.Errorf("%s: %t", prefix, got)
		}
	}
}
