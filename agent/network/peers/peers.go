package peers

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
)

// Of returns the peers of the host that holds own, from the leases of a network. This host's own lease is never a
// peer, whatever its record says. Lapsed leases stay peers until their record is removed, because their host may well
// be alive. seniority ranks the leases; without it, CreateIndex does.
func Of(leases []registry.Lease, own registry.Lease, seniority map[netip.Prefix]uint64) []backend.Peer {
	isOwn := func(l registry.Lease) bool { return l.NodeID == own.NodeID || l.Slot == own.Slot }
	current := belief.Current(slices.DeleteFunc(slices.Clone(leases), isOwn))
	out := make([]backend.Peer, 0, len(current))
	for _, l := range current {
		out = append(out, backend.Peer{
			Node:       l.Node,
			Subnets:    l.Subnets,
			PublicIPs:  l.PublicIPs,
			MTU:        l.MTU,
			Backend:    l.Backend.Type,
			Attributes: l.Backend.Options(),
			Precedence: precedence(l, seniority),
		})
	}
	return out
}

// precedence returns the rank of a lease, where the lowest wins: held leases come before lapsed ones, and senior ones
// before others. A record that contradicts what a live host has said before takes nothing from that host.
func precedence(l registry.Lease, seniority map[netip.Prefix]uint64) uint64 {
	const unheld = 1 << 63
	rank, ok := seniority[l.Subnet()]
	if !ok {
		rank = l.CreateIndex
	}
	if l.Held() {
		return rank
	}
	return unheld | rank
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
	for _, p := range Of(leases, own, nil) {
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
