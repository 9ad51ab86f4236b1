package kernel_test

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
)

// TestLinkStatistics checks that a device counts what it carries, and that all counters are 0 for a
// device of another kind and for a missing one.
func TestLinkStatistics(t *testing.T) {
	t.Parallel()
	ns, _ := host(t)
	read := func(name string) (s backend.Counters) {
		ns.Do(func() {
			var err error
			if s, err = kernel.LinkStatistics(name, "vxlan"); err != nil {
				t.Fatal(err)
			}
		})
		return s
	}
	before := read("leno-t")
	if diff := cmp.Diff(kernel.LinkDrops(), slices.Sorted(maps.Keys(before.Drops))); diff != "" {
		t.Error(diff)
	}
	ns.Sh(`ip neigh replace 10.5.2.0 lladdr 0a:00:00:00:00:02 dev leno-t nud permanent
bridge fdb replace 0a:00:00:00:00:02 dev leno-t dst 192.0.2.2
ip route add 10.5.2.0/24 via 10.5.2.0 dev leno-t onlink src 192.0.2.1
ping -c 3 -i 0.02 -W 1 10.5.2.1 || true`)
	after := read("leno-t")
	if packets, bytes := after.TxPackets-before.TxPackets, after.TxBytes-before.TxBytes; packets < 3 || bytes < 3*84 {
		t.Errorf("%d packets, %d bytes sent", packets, bytes)
	}
	for _, name := range []string{"eth0", "nothing"} {
		if got := read(name); !reflect.DeepEqual(got, backend.Counters{}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
