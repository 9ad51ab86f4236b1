package peers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

func TestKeepKnown(t *testing.T) {
	b, c := agenttest.Lease("b", 2, "s", 1), agenttest.Lease("c", 3, "s", 2)
	key := func(network, name string) string { return "x/leno/leases/" + network + "/" + name }
	second := registry.SubnetKey(b.Subnet())
	for _, tt := range []struct {
		name   string
		leases []registry.Lease
		bad    string
		want   string
	}{
		{"nothing bad", []registry.Lease{c}, "", "3"},
		{"its record", []registry.Lease{c}, key("n", second), "2 3"},
		{"a record that was never good", []registry.Lease{c}, key("n", "10.5.9.0-24"), "3"},
		{"another network's", []registry.Lease{c}, key("m", second), "3"},
		{"below its record", []registry.Lease{c}, key("n", second+"/x"), "3"},
		{"deeper down", []registry.Lease{c}, key("n", "x/"+second), "3"},
		{"no folder at all", []registry.Lease{c}, second, "3"},
		{"its record in etcd", []registry.Lease{c}, "/coreos.com/network/subnets/" + second, "2 3"},
		{"both families", []registry.Lease{c}, "/x/leno/networks/n/subnets/" + second + "&fd00:5:0:2::-64", "2 3"},
		{"deeper down in etcd", []registry.Lease{c}, "/coreos.com/network/subnets/x/" + second, "3"},
		{"beside its record", []registry.Lease{b, c}, "/coreos.com/network/subnets/" + second + "&fd00:5:0:9::-64", "2 3"},
	} {
		set := registry.LeaseSet{Leases: tt.leases, SetBack: 7}
		if tt.bad != "" {
			set.Bad = []registry.BadRecord{{Key: tt.bad, Reason: "nonsense"}}
		}
		got := keepKnown("n", set, []registry.Lease{b, c})
		if s := strings.Trim(fmt.Sprint(slotsOf(got.Leases)), "[]"); s != tt.want {
			t.Errorf("%s: slots %s, want %s", tt.name, s, tt.want)
		}
		if got.SetBack != 7 {
			t.Errorf("%s: set back %d times, 7 before", tt.name, got.SetBack)
		}
		kept := len(got.Leases) > len(tt.leases)
		if len(got.Bad) > 0 && strings.HasSuffix(got.Bad[0].Reason, "stays in use") != kept {
			t.Errorf("%s: %q", tt.name, got.Bad[0].Reason)
		}
		if len(set.Bad) > 0 && set.Bad[0].Reason != "nonsense" {
			t.Errorf("%s: the store's answer was changed", tt.name)
		}
	}
}

func slotsOf(leases []registry.Lease) (out []uint64) {
	for _, l := range leases {
		out = append(out, l.Slot)
	}
	return out
}
