package agent

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// peersOf turns the leases of a network into the peers of the host that holds
// own. Our own lease is never a peer, whatever its record says. Of several
// leases of one host only the one it uses counts: the held one, else the
// newest; the others wait for their hold to end. Lapsed leases stay peers until
// their record goes: their host may well be alive.
func peersOf(leases []registry.Lease, own registry.Lease) []backend.Peer {
	current := map[string]registry.Lease{} // by node id
	for _, l := range leases {
		if l.NodeID == own.NodeID || l.Slot == own.Slot {
			continue
		}
		if before, ok := current[l.NodeID]; !ok || fresher(l, before) {
			current[l.NodeID] = l
		}
	}
	out := make([]backend.Peer, 0, len(current))
	for _, l := range current {
		out = append(out, backend.Peer{
			Node: l.Node, Subnets: l.Subnets, PublicIPs: l.PublicIPs,
			Backend: l.Backend.Type, Attributes: l.Backend.Options(), Precedence: precedence(l),
		})
	}
	slices.SortFunc(out, func(a, b backend.Peer) int {
		return a.Subnets[0].Addr().Compare(b.Subnets[0].Addr())
	})
	return out
}

// precedence puts what a living host says before what nobody vouches for, and
// the older record before the newer: whoever writes a record that contradicts a
// host's takes nothing from it.
func precedence(l registry.Lease) uint64 {
	const unheld = 1 << 63
	if l.Held() {
		return l.CreateIndex
	}
	return unheld | l.CreateIndex
}

func fresher(a, b registry.Lease) bool {
	if a.Held() != b.Held() {
		return a.Held()
	}
	return cmp.Compare(a.ModifyIndex, b.ModifyIndex) > 0
}

// conflicts names live leases of other hosts that carry our name or one of our
// public addresses, the first few of them; "" when there are none.
func conflicts(leases []registry.Lease, own registry.Lease) string {
	const most = 3
	var out []string
	for _, l := range leases {
		if !l.Held() || l.Session == own.Session || l.NodeID == own.NodeID {
			continue
		}
		if l.Node == own.Node {
			out = append(out, fmt.Sprintf("host at %s (node id %s, %s) has the same node name %q as this host at %s",
				l.PublicIPs[0], l.NodeID, l.Subnet(), l.Node, own.PublicIPs[0]))
		}
		if slices.ContainsFunc(l.PublicIPs, func(a netip.Addr) bool { return slices.Contains(own.PublicIPs, a) }) {
			out = append(out, fmt.Sprintf("host %q (%s) has the same public address %s as this host %q",
				l.Node, l.Subnet(), l.PublicIPs[0], own.Node))
		}
	}
	if len(out) > most {
		out = append(out[:most], fmt.Sprintf("and %d more", len(out)-most))
	}
	return strings.Join(out, "; ")
}
