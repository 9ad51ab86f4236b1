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

// Of returns the peers of the host that holds own, from the leases of a network. This host's own lease is never a
// peer, whatever its record says. Lapsed leases stay peers until their record is removed, because their host may well
// be alive. seniority ranks the leases; without it, CreateIndex does.
func Of(leases []registry.Lease, own registry.Lease, seniority map[netip.Prefix]uint64) []backend.Peer {
	isOwn := func(l registry.Lease) bool { return l.NodeID == own.NodeID || l.Slot == own.Slot }
	current := Current(slices.DeleteFunc(slices.Clone(leases), isOwn))
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

// Current returns the leases without the former ones of their hosts, sorted by slot.
func Current(leases []registry.Lease) []registry.Lease {
	byHost := map[string][]registry.Lease{}
	for _, l := range leases {
		byHost[l.NodeID] = append(byHost[l.NodeID], l)
	}
	out := make([]registry.Lease, 0, len(leases))
	for _, all := range byHost {
		for _, l := range all {
			isFormer := func(m registry.Lease) bool { return m.Slot != l.Slot && replaces(m, l) }
			if len(all) == 1 || !slices.ContainsFunc(all, isFormer) {
				out = append(out, l)
			}
		}
	}
	slices.SortFunc(out, func(a, b registry.Lease) int { return cmp.Compare(a.Slot, b.Slot) })
	return out
}

// replaces reports whether l is a former lease of the host that has m, of two leases with one node id.
//
// A record speaks for the host that holds its session, not for the host that it names. So a held lease replaces another
// one that is held only if both are held by one session. Otherwise both count, and of what they contradict each other in,
// the senior one has it. A lapsed lease, and one that the store shows since it lost a later one, are former ones when a
// backend could not carry both, because they are of one machine.
func replaces(m, l registry.Lease) bool {
	if m.Session == l.Session && m.Held() && m.Session != registry.UnknownSession {
		return isLater(m, l)
	}
	if l.Held() && !m.Missing {
		return false
	}
	return registry.SameEndpoint(m, l) && isLater(m, l)
}

// isLater reports whether lease a is a later one of its host than lease b. A missing lease is, because a store that was
// set back shows earlier ones.
func isLater(a, b registry.Lease) bool {
	if a.Missing != b.Missing {
		return a.Missing
	}
	if a.Held() != b.Held() {
		return a.Held()
	}
	return cmp.Or(cmp.Compare(a.ModifyIndex, b.ModifyIndex), cmp.Compare(a.Slot, b.Slot)) > 0
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
