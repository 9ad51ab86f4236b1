package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// peersOf turns the leases of a network into the peers of the host that holds
// own. Our own lease is never a peer, whatever its record says. Of several
// leases of one host only the one it uses counts: the missing one, else the held
// one, else the newest; the others wait for their hold to end. Lapsed leases stay peers until
// their record goes: their host may well be alive.
func peersOf(leases []registry.Lease, own registry.Lease) []backend.Peer {
	current := leasesOfHosts(leases, func(l registry.Lease) bool { return l.NodeID != own.NodeID && l.Slot != own.Slot })
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

// leasesOfHosts is the one lease that counts of each host, by node id, of those that
// are wanted.
func leasesOfHosts(leases []registry.Lease, wanted func(registry.Lease) bool) map[string]registry.Lease {
	out := map[string]registry.Lease{}
	for _, l := range leases {
		if !wanted(l) {
			continue
		}
		if before, ok := out[l.NodeID]; !ok || fresher(l, before) {
			out[l.NodeID] = l
		}
	}
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

// fresher reports whether a says more than b, another lease of the same host, about
// where it is. A store that was set back shows what the host had before as held.
func fresher(a, b registry.Lease) bool {
	if a.Missing != b.Missing {
		return a.Missing
	}
	if a.Held() != b.Held() {
		return a.Held()
	}
	return cmp.Compare(a.ModifyIndex, b.ModifyIndex) > 0
}

// conflicts names live leases of other hosts that pass for this one, the first
// few of them; "" when there are none. Two hosts that took leases at the same
// moment did not see each other then.
func conflicts(leases []registry.Lease, own registry.Lease) string {
	const most = 3
	self := registry.Claim{Node: own.Node, NodeID: own.NodeID, PublicIPs: own.PublicIPs, Session: own.Session, Since: own.ModifyIndex}
	var out []string
	for _, l := range leases {
		if l.NodeID == own.NodeID && l.Slot == own.Slot {
			continue // our own record, which may be newer than own; it is watched by itself
		}
		if l.Missing {
			continue // it says nothing of whether its host lives
		}
		if err := registry.Duplicate(l, self); err != nil {
			out = append(out, err.Error())
		}
	}
	if len(out) > most {
		out = append(out[:most], fmt.Sprintf("and %d more", len(out)-most))
	}
	return strings.Join(out, "; ")
}
