package peers

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Of returns the peers of the host that holds own, from the leases of a network. This host's own lease is never a
// peer, whatever its record says. If a host has several leases, only the one it uses counts: the missing one, otherwise
// the held one, otherwise the newest. The others only wait for their hold to end. Lapsed leases stay peers until their
// record is removed, because their host may well be alive.
func Of(leases []registry.Lease, own registry.Lease) []backend.Peer {
	current := leasesOfHosts(leases, func(l registry.Lease) bool { return l.NodeID != own.NodeID && l.Slot != own.Slot })
	out := make([]backend.Peer, 0, len(current))
	for _, l := range current {
		out = append(out, backend.Peer{
			Node:       l.Node,
			Subnets:    l.Subnets,
			PublicIPs:  l.PublicIPs,
			MTU:        l.MTU,
			Backend:    l.Backend.Type,
			Attributes: l.Backend.Options(),
			Precedence: precedence(l),
		})
	}
	slices.SortFunc(out, func(a, b backend.Peer) int {
		return a.Subnets[0].Addr().Compare(b.Subnets[0].Addr())
	})
	return out
}

// Current returns the lease of each host that counts; see Of. They are sorted by slot.
func Current(leases []registry.Lease) []registry.Lease {
	of := leasesOfHosts(leases, func(registry.Lease) bool { return true })
	return slices.SortedFunc(maps.Values(of), func(a, b registry.Lease) int { return cmp.Compare(a.Slot, b.Slot) })
}

// leasesOfHosts returns the current lease of each host, by node id, among the leases that wanted accepts.
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

// List returns the peers of the host that holds own, sorted by name, for the API. skipped are those that the backend
// left out. The traffic counters are missing: the caller adds them.
func List(leases []registry.Lease, own registry.Lease, skipped []backend.Skip) api.PeerList {
	bySubnet := map[netip.Prefix]registry.Lease{} // since two records of the same name may differ
	for _, l := range leases {
		bySubnet[l.Subnet()] = l
	}
	reasons := map[string]string{}
	for _, s := range skipped {
		reasons[s.Node] = s.Reason
	}
	out := api.PeerList{Peers: []api.Peer{}}
	for _, p := range Of(leases, own) {
		out.Peers = append(out.Peers, api.Peer{
			Node:      p.Node,
			Subnets:   p.Subnets,
			PublicIPs: p.PublicIPs,
			Backend:   p.Backend,
			Held:      bySubnet[p.Subnets[0]].Held(),
			Flannel:   bySubnet[p.Subnets[0]].Foreign,
			Skipped:   reasons[p.Node],
		})
	}
	slices.SortStableFunc(out.Peers, func(a, b api.Peer) int { return strings.Compare(a.Node, b.Node) })
	return out
}
