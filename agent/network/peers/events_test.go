package peers

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

func messages(list []api.Event) (out []string) {
	for _, v := range list {
		out = append(out, v.Message)
	}
	return out
}

func TestPeerEvents(t *testing.T) {
	lease := func(node string, slot int, change func(*registry.Lease)) registry.Lease {
		l := registry.Lease{
			Slot:      uint64(slot),
			Subnets:   []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(slot), 0}), 24)},
			Node:      node,
			NodeID:    "id-" + node,
			PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(slot)})},
			Session:   "s",
		}
		if change != nil {
			change(&l)
		}
		return l
	}
	lapsed := func(l *registry.Lease) { l.Session = "" }
	moved := func(l *registry.Lease) { l.PublicIPs = []netip.Addr{netip.MustParseAddr("192.0.2.99")} }
	var many []registry.Lease
	for i := range 200 {
		many = append(many, lease(fmt.Sprintf("h%03d", i), i+1, nil))
	}
	changed := func(leases []registry.Lease, change func(*registry.Lease)) []registry.Lease {
		leases = slices.Clone(leases)
		for i := range leases {
			change(&leases[i])
		}
		return leases
	}
	for _, tt := range []struct {
		name        string
		before, now []registry.Lease
		want        []string
	}{
		{"nothing", many, many, nil},
		{"our own is no peer", nil, []registry.Lease{lease("own", 1, nil)}, nil},
		{"one more", nil, []registry.Lease{lease("b", 2, nil)}, []string{"b appeared with 10.5.2.0/24 at 192.0.2.2"}},
		{"one less", []registry.Lease{lease("b", 2, nil)}, nil, []string{"b left, it had 10.5.2.0/24"}},
		{"lapsed", []registry.Lease{lease("b", 2, nil)}, []registry.Lease{lease("b", 2, lapsed)},
			[]string{"the lease of b on 10.5.2.0/24 lapsed, its routes stay"}},
		{"returned elsewhere", []registry.Lease{lease("b", 2, lapsed)}, []registry.Lease{lease("b", 2, moved)},
			[]string{"b holds 10.5.2.0/24 again", "b moved from 192.0.2.2 to 192.0.2.99"}},
		{"another subnet", []registry.Lease{lease("b", 2, nil)}, []registry.Lease{lease("b", 3, nil)},
			[]string{"b moved from 192.0.2.2 to 192.0.2.3", "b has 10.5.3.0/24 now, it had 10.5.2.0/24"}},
		{"another record of it", []registry.Lease{lease("b", 2, nil)}, []registry.Lease{lease("b", 2, nil), lease("b", 3, moved)}, nil},
		{"many lapsed", many[:9], changed(many[:9], lapsed),
			[]string{"9 hosts let their leases lapse, their routes stay: " +
				"h000, h001, h002, h003, h004, h005, h006, h007 and 1 more"}},
		{"many at once", nil, many,
			[]string{"200 hosts appeared: h000, h001, h002, h003, h004, h005, h006, h007 and 192 more"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := messages(peerEvents(tt.before, tt.now, "id-own")); !slices.Equal(got, tt.want) {
				t.Errorf("got %q", got)
			}
		})
	}
}
