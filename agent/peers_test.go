package agent

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
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

// TestPeersOfOneName: two records under one name are two peers, one of which may have fallen silent.
func TestPeersOfOneName(t *testing.T) {
	run := newHost(t, memory.New(), "a").part()
	run.lease.Set(testLease("a", 1, "sa", 1))
	lapsed := testLease("b", 3, "", 1)
	lapsed.NodeID = "id-of-before"
	run.snapshot.Set(snapshot{set: registry.LeaseSet{Leases: []registry.Lease{testLease("b", 2, "s", 1), lapsed}}})
	var got []string
	for _, p := range run.peerList().Peers {
		got = append(got, fmt.Sprint(p.Node, " ", p.Subnets[0], " ", p.Held))
	}
	if diff := cmp.Diff([]string{"b 10.5.2.0/24 true", "b 10.5.3.0/24 false"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestPeerListIsSorted: peers are sorted by name, which is what people look for.
func TestPeerListIsSorted(t *testing.T) {
	run := newHost(t, memory.New(), "a").part()
	run.lease.Set(testLease("a", 1, "sa", 1))
	run.snapshot.Set(snapshot{set: registry.LeaseSet{Leases: []registry.Lease{
		testLease("d", 2, "sd", 1), testLease("c", 3, "sc", 1), testLease("b", 4, "sb", 1)}}})
	var got []string
	for _, p := range run.peerList().Peers {
		got = append(got, p.Node)
	}
	if diff := cmp.Diff([]string{"b", "c", "d"}, got); diff != "" {
		t.Error(diff)
	}
}
