package belief

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/registry"
)

// TestSeniority: of records with the same key, the one that had it first keeps it, whichever record is older, and
// whatever else its host changes.
func TestSeniority(t *testing.T) {
	keyed := func(key string) registry.Backend {
		return registry.Backend{Type: "wireguard",
			Object: fmt.Appendf(nil, `{"type":"wireguard","public_key":%q,"listen_port":51820}`, key)}
	}
	lease := func(node string, slot, created uint64) registry.Lease {
		return registry.Lease{
			Slot:        slot,
			Subnets:     []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(slot), 0}), 24)},
			Node:        node,
			NodeID:      "id-" + node,
			PublicIPs:   []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(slot)})},
			Backend:     keyed("key-of-" + node),
			Session:     "s" + node,
			CreateIndex: created,
			ModifyIndex: created,
		}
	}
	oldest, victim, newer := lease("a", 1, 10), lease("b", 2, 20), lease("c", 3, 30)
	thief := oldest // has another key now, in the oldest record
	thief.Backend, thief.ModifyIndex = victim.Backend, 40
	copied := newer // has the key of another host from the start
	copied.Backend = victim.Backend
	respelled := thief // writes the key in another way
	respelled.Backend = keyed(" key-of-b")
	elsewhere, renamed, natted := victim, victim, victim // a DHCP server, its operator and a NAT have changed it
	elsewhere.PublicIPs = append(elsewhere.PublicIPs, netip.MustParseAddr("fd00:c0:2::2"))
	renamed.Node = "b2"
	natted.Backend.Object = []byte(`{"type":"wireguard","public_key":"key-of-b","listen_port":51820,"public_port":4500,` +
		`"local_ips":["192.168.1.2"]}`)
	renewed := victim // written again, with the same content
	renewed.Session, renewed.ModifyIndex = "other", 50
	recreated := lease("d", 4, 1) // in a store that was created again, with indexes from the start
	for _, tt := range []struct {
		name  string
		steps [][]registry.Lease
		want  string
	}{
		{"at first by CreateIndex", [][]registry.Lease{{newer, victim, oldest}}, "a b c"},
		{"in the order of appearance", [][]registry.Lease{{victim}, {newer, victim, oldest}}, "b a c"},
		{"another key ranks last", [][]registry.Lease{{oldest, victim, newer}, {thief, victim, newer}}, "b c a"},
		{"in another spelling, too", [][]registry.Lease{{oldest, victim, newer}, {respelled, victim, newer}}, "b c a"},
		{"another address changes nothing", [][]registry.Lease{{victim, copied}, {elsewhere, copied}}, "b c"},
		{"nor does another name", [][]registry.Lease{{victim, copied}, {renamed, copied}}, "b2 c"},
		{"nor does a NAT", [][]registry.Lease{{victim, copied}, {natted, copied}}, "b c"},
		{"for good", [][]registry.Lease{{oldest, victim, newer}, {thief, victim, newer}, {thief, renewed, newer}}, "b c a"},
		{"what is written again keeps its rank", [][]registry.Lease{{oldest, victim, newer}, {oldest, renewed, newer}}, "a b c"},
		{"what came back does not", [][]registry.Lease{{oldest, victim}, {victim}, {oldest, victim}}, "b a"},
		{"lower indexes do not help", [][]registry.Lease{{oldest, victim, newer}, {oldest, victim, newer, recreated}}, "a b c d"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := NewSeniority(nil, nil)
			var ranks map[netip.Prefix]uint64
			for _, leases := range tt.steps {
				ranks = s.Update(leases)
				s = NewSeniority(leases, ranks) // a restart changes nothing
			}
			last := slices.SortedFunc(slices.Values(tt.steps[len(tt.steps)-1]), func(a, b registry.Lease) int {
				return cmp.Compare(ranks[a.Subnet()], ranks[b.Subnet()])
			})
			var names []string
			for _, l := range last {
				names = append(names, l.Node)
			}
			if got := strings.Join(names, " "); got != tt.want {
				t.Errorf("got %s, want %s: %v", got, tt.want, ranks)
			}
		})
	}
}
