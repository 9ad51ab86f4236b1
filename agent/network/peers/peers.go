// Package peers knows the other hosts of one network.
package peers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Of returns the peers of the host that holds own, from the leases of a network. This host's own lease is never a
// peer, whatever its record says. If a host has several leases, only the one it uses counts: the missing one, otherwise
// the held one, otherwise the newest. The others only wait for their hold to end. Lapsed leases stay peers until their
// record is removed, because their host may well be alive.
func Of(leases []registry.Lease, own registry.Lease) []backend.Peer {
	current := OfHosts(leases, func(l registry.Lease) bool { return l.NodeID != own.NodeID && l.Slot != own.Slot })
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

// OfHosts returns the current lease of each host, by node id, among the leases that wanted accepts.
func OfHosts(leases []registry.Lease, wanted func(registry.Lease) bool) map[string]registry.Lease {
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

// precedence returns the rank of a lease, where the lowest wins: held leases come before lapsed ones, and older records
// before newer ones. A record that contradicts an older one of a live host therefore takes nothing from that host.
func precedence(l registry.Lease) uint64 {
	const unheld = 1 << 63
	if l.Held() {
		return l.CreateIndex
	}
	return unheld | l.CreateIndex
}

// fresher reports whether lease a is a better source than lease b of the same host for where the host is. A missing
// lease comes first, because a store that was set back shows an earlier lease of the host as held.
func fresher(a, b registry.Lease) bool {
	if a.Missing != b.Missing {
		return a.Missing
	}
	if a.Held() != b.Held() {
		return a.Held()
	}
	return cmp.Compare(a.ModifyIndex, b.ModifyIndex) > 0
}

// Conflicts describes the held leases of other hosts that have this host's name, id or address. It names the first
// three and counts the others, and returns "" if there are none. Such leases exist if two hosts claimed at the same
// moment and did not see each other.
func Conflicts(leases []registry.Lease, own registry.Lease) string {
	const most = 3
	self := registry.Claim{Node: own.Node, NodeID: own.NodeID, PublicIPs: own.PublicIPs, Session: own.Session, Since: own.ModifyIndex}
	var out []string
	for _, l := range leases {
		if l.NodeID == own.NodeID && l.Slot == own.Slot {
			continue // our own record, which may be newer than own; watchOwn watches it
		}
		if l.Missing {
			continue // it does not show whether its host is alive
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
