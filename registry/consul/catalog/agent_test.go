package catalog

import (
	"net/netip"
	"testing"
)

func TestIsLocal(t *testing.T) {
	t.Parallel()
	own := []netip.Addr{netip.MustParseAddr("198.51.100.7")}
	for addr, want := range map[string]bool{"198.51.100.7": true, "::ffff:198.51.100.7": true, "198.51.100.8": false, "127.8.0.1": true, "::1": true, "0.0.0.0": true} {
		if got := isLocal(netip.MustParseAddr(addr), own); got != want {
			t.Errorf("%s is on this host: %v, want %v", addr, got, want)
		}
	}
}
