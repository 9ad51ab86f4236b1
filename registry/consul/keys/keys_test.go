package keys

import (
	"net/netip"
	"testing"
)

func TestLease(t *testing.T) {
	t.Parallel()
	if got := (Layout{"leno"}).Lease("default", netip.MustParsePrefix("10.5.34.0/24")); got != "leno/leases/default/10.5.34.0-24" {
		t.Errorf("lease key %s", got)
	}
}
