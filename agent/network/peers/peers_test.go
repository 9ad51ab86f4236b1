package peers

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

func TestOf(t *testing.T) {
	own := agenttest.Lease("a", 1, "sa", 1)
	moved := agenttest.Lease("a", 9, "", 7) // our former subnet
	stranger := agenttest.Lease("x", 1, "sx", 9)
	missing := agenttest.Lease("b", 4, "", 7) // lost by a store that was set back to a time when b was elsewhere
	missing.Missing = true
	before := agenttest.Lease("b", 4, "", 7) // lost as well, and read by an earlier plan in which it had our slot
	before.Slot, before.Missing = own.Slot, true
	forged := agenttest.Lease("b", 5, "sx", 9) // by another host, in b's name and at its own address
	forged.PublicIPs = agenttest.Lease("x", 5, "sx", 9).PublicIPs
	unknown, copied := forged, forged
	unknown.Session = registry.UnknownSession
	copied.PublicIPs = agenttest.Lease("b", 2, "sb", 1).PublicIPs
	tests := []struct {
		name   string
		leases []registry.Lease
		want   []string
	}{
		{"none", nil, nil},
		{"our own lease is never a peer", []registry.Lease{own, moved}, nil},
		{"nor is the lease of another host on our subnet", []registry.Lease{stranger}, nil},
		{"one of another plan is", []registry.Lease{own, before}, []string{"b 10.5.4.0/24"}},
		{"others, sorted", []registry.Lease{agenttest.Lease("c", 3, "s", 1), own, agenttest.Lease("b", 2, "s", 1)},
			[]string{"b 10.5.2.0/24", "c 10.5.3.0/24"}},
		{"a lapsed lease stays", []registry.Lease{agenttest.Lease("b", 2, "", 1)}, []string{"b 10.5.2.0/24"}},
		{"a held one takes nothing from a lapsed one",
			[]registry.Lease{agenttest.Lease("b", 2, "", 9), agenttest.Lease("b", 4, "sx", 10)}, []string{"b 10.5.2.0/24", "b 10.5.4.0/24"}},
		{"nor a newer one under the same session", []registry.Lease{agenttest.Lease("b", 2, "s", 1), agenttest.Lease("b", 4, "s", 2)},
			[]string{"b 10.5.2.0/24", "b 10.5.4.0/24"}},
		{"nor one of another session", []registry.Lease{agenttest.Lease("b", 2, "sb", 1), forged},
			[]string{"b 10.5.2.0/24", "b 10.5.5.0/24"}},
		{"nor one with the same address", []registry.Lease{agenttest.Lease("b", 2, "sb", 1), copied},
			[]string{"b 10.5.2.0/24", "b 10.5.5.0/24"}},
		{"nor one whose session is not known", []registry.Lease{agenttest.Lease("b", 2, registry.UnknownSession, 1), unknown},
			[]string{"b 10.5.2.0/24", "b 10.5.5.0/24"}},
		{"nor one at another address from a lapsed one", []registry.Lease{agenttest.Lease("b", 2, "", 1), forged},
			[]string{"b 10.5.2.0/24", "b 10.5.5.0/24"}},
		{"nor a missing one from an earlier one that is back", []registry.Lease{agenttest.Lease("b", 2, "s", 3), missing},
			[]string{"b 10.5.2.0/24", "b 10.5.4.0/24"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, p := range Of(tt.leases, own, nil) {
				got = append(got, fmt.Sprintf("%s %s", p.Node, p.Subnets[0]))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestPrecedence: the senior lease comes first, held or not.
func TestPrecedence(t *testing.T) {
	own, lapsed, held := agenttest.Lease("a", 1, "sa", 1), agenttest.Lease("b", 2, "", 9), agenttest.Lease("b", 3, "sx", 9)
	lapsed.CreateIndex, held.CreateIndex = 5, 10
	peers := Of([]registry.Lease{lapsed, held}, own, nil)
	if peers[0].Precedence >= peers[1].Precedence {
		t.Errorf("lapsed %d, held %d", peers[0].Precedence, peers[1].Precedence)
	}
	peers = Of([]registry.Lease{lapsed, held}, own, map[netip.Prefix]uint64{lapsed.Subnet(): 30})
	if peers[0].Precedence <= peers[1].Precedence {
		t.Errorf("with ranks: lapsed %d, held %d", peers[0].Precedence, peers[1].Precedence)
	}
}

// TestList: peers are sorted by name, which is what people look for. Two records under one name are two peers, one of
// which may have fallen silent.
func TestList(t *testing.T) {
	own, lapsed := agenttest.Lease("a", 1, "sa", 1), agenttest.Lease("b", 3, "", 1)
	lapsed.NodeID = "id-of-before"
	b, c, d := agenttest.Lease("b", 2, "sb", 1), agenttest.Lease("c", 4, "sc", 1), agenttest.Lease("d", 5, "sd", 1)
	c.Foreign = true
	leases := []registry.Lease{own, d, c, b, lapsed}
	var got []string
	for _, p := range List(leases, own, []backend.Skip{{Node: "d", Reason: "another backend"}}).Peers {
		got = append(got, fmt.Sprint(p.Node, " ", p.Subnets[0], " ", p.Held, " ", p.Flannel, " ", p.Skipped))
	}
	want := []string{
		"b 10.5.2.0/24 true false ",
		"b 10.5.3.0/24 false false ",
		"c 10.5.4.0/24 true true ",
		"d 10.5.5.0/24 true false another backend",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if none := List(nil, own, nil).Peers; none == nil || len(none) != 0 {
		t.Errorf("%#v, want an empty list", none)
	}
}
