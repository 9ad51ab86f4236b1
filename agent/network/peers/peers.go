package peers

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Of returns the peers of the host that holds own, from the leases of a network, sorted by slot. This host's own lease
// is never a peer, whatever its record says. All other leases are peers until their record is removed: a lapsed one,
// because its host may well be alive, and one of two of the same host, because anyone may have written the other.
// seniority ranks the leases; without it, CreateIndex does.
func Of(leases []registry.Lease, own registry.Lease, seniority map[netip.Prefix]uint64) []backend.Peer {
	out := make([]backend.Peer, 0, len(leases))
	for _, l := range slices.SortedFunc(slices.Values(leases), bySlot) {
		if l.NodeID == own.NodeID || l.Subnet() == own.Subnet() {
			continue
		}
		rank, ok := seniority[l.Subnet()]
		if !ok {
			rank = l.CreateIndex
		}
		out = append(out, backend.Peer{
			Node:       l.Node,
			Subnets:    l.Subnets,
			PublicIPs:  l.PublicIPs,
			MTU:        l.MTU,
			Backend:    l.Backend.Type,
			Attributes: l.Backend.Options(),
			Precedence: rank,
		})
	}
	return out
}

func bySlot(a, b registry.Lease) int { return cmp.Compare(a.Slot, b.Slot) }

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
