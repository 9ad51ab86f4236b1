package peers

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/registry"
)

// testLease returns the lease of a host on a slot, such as 10.5.2.0/24 for slot 2.
func testLease(host string, slot uint64, session string, index uint64) registry.Lease {
	b, err := registry.NewBackend("alloc", nil)
	if err != nil {
		panic(err)
	}
	return registry.Lease{
		Network: "n", Slot: slot, Subnets: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", slot))},
		Node: host, NodeID: "id-" + host, PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2." + fmt.Sprint(host[0]))},
		MTU: 1450, Backend: b, Session: session, ModifyIndex: index,
	}
}

func TestPeersOf(t *testing.T) {
	own := testLease("a", 1, "sa", 1)
	moved := testLease("a", 9, "", 7) // our former subnet
	stranger := testLease("x", 1, "sx", 9)
	missing := testLease("b", 4, "", 7) // lost by a store that was set back to a time when b was elsewhere
	missing.Missing = true
	tests := []struct {
		name   string
		leases []registry.Lease
		want   []string
	}{
		{"none", nil, nil},
		{"our own lease is never a peer", []registry.Lease{own, moved}, nil},
		{"nor is the lease of another host on our slot", []registry.Lease{stranger}, nil},
		{"others, sorted", []registry.Lease{testLease("c", 3, "s", 1), own, testLease("b", 2, "s", 1)}, []string{"b 10.5.2.0/24", "c 10.5.3.0/24"}},
		{"a lapsed lease stays", []registry.Lease{testLease("b", 2, "", 1)}, []string{"b 10.5.2.0/24"}},
		{"the held one of a host's leases counts", []registry.Lease{testLease("b", 2, "", 9), testLease("b", 4, "s", 1)}, []string{"b 10.5.4.0/24"}},
		{"the missing one counts before a held one", []registry.Lease{testLease("b", 2, "s", 3), missing}, []string{"b 10.5.4.0/24"}},
		{"and before one that lapsed later", []registry.Lease{testLease("b", 2, "", 9), missing}, []string{"b 10.5.4.0/24"}},
		{"else the newest", []registry.Lease{testLease("b", 2, "", 9), testLease("b", 4, "", 1)}, []string{"b 10.5.2.0/24"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, p := range Of(tt.leases, own) {
				got = append(got, fmt.Sprintf("%s %s", p.Node, p.Subnets[0]))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPrecedence(t *testing.T) {
	held, older, lapsed := testLease("b", 2, "s", 1), testLease("c", 3, "s", 1), testLease("d", 4, "", 1)
	held.CreateIndex, older.CreateIndex, lapsed.CreateIndex = 20, 10, 5
	if !(precedence(older) < precedence(held) && precedence(held) < precedence(lapsed)) {
		t.Errorf("held %d, older %d, lapsed %d", precedence(held), precedence(older), precedence(lapsed))
	}
}

func TestConflicts(t *testing.T) {
	own := testLease("a", 1, "sa", 1)
	sameName := testLease("b", 2, "sb", 1)
	sameName.Node = "a"
	sameIP := testLease("c", 3, "sc", 1)
	sameIP.PublicIPs = own.PublicIPs
	gone := sameIP
	gone.Session = ""
	missing := sameIP
	missing.Missing = true
	copied := testLease("d", 4, "sd", 2)
	copied.NodeID = own.NodeID
	before := copied // our own from before a restore, under our former name and address
	before.ModifyIndex = 0
	moved := own // our own, seen before the claim was answered
	moved.ModifyIndex, moved.Session, moved.PublicIPs = 2, registry.UnknownSession, sameName.PublicIPs
	tests := []struct {
		name  string
		lease registry.Lease
		want  []string // words of the text; none if there is no conflict
	}{
		{"our own at another address", moved, nil},
		{"our own", own, nil},
		{"another host", testLease("b", 2, "sb", 1), nil},
		{"same name", sameName, []string{`"a"`, "192.0.2.98", "192.0.2.97", "id-b"}},
		{"same address", sameIP, []string{`"c"`, `"a"`, "192.0.2.97"}},
		{"same address but lapsed", gone, nil},
		{"same address, and the store has lost its record", missing, nil},
		{"same node id", copied, []string{`"d"`, "192.0.2.100", `"a"`, "192.0.2.97", "copied"}},
		{"our own from before a restore", before, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Conflicts([]registry.Lease{tt.lease}, own)
			if (got != "") != (tt.want != nil) {
				t.Fatalf("got %q", got)
			}
			for _, word := range tt.want {
				if !strings.Contains(got, word) {
					t.Errorf("%q does not name %s", got, word)
				}
			}
		})
	}
}
