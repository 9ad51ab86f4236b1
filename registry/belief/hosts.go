package belief

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/registry"
)

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
// A record speaks for the host that holds its session, not for the host that it names. So a held lease replaces
// another one that is held only if both are held by one session. Otherwise both count, and of what they contradict
// each other in, the senior one has it. A lapsed lease, and one that the store shows since it lost a later one, are
// former ones when a backend could not carry both, because they are of one machine.
func replaces(m, l registry.Lease) bool {
	if m.Session == l.Session && m.Held() && m.Session != registry.UnknownSession {
		return IsLater(m, l)
	}
	if l.Held() && !m.Missing {
		return false
	}
	return registry.SameEndpoint(m, l) && IsLater(m, l)
}

// IsLater reports whether lease a is a later one of its host than lease b. A missing lease is, because a store that was
// set back shows earlier ones.
func IsLater(a, b registry.Lease) bool {
	if a.Missing != b.Missing {
		return a.Missing
	}
	if a.Held() != b.Held() {
		return a.Held()
	}
	return cmp.Or(cmp.Compare(a.ModifyIndex, b.ModifyIndex), cmp.Compare(a.Slot, b.Slot)) > 0
}

// Restorable returns the leases of other hosts than the one with a node id that the store has lost and that must be
// restored, so that their subnets stay theirs: those of hosts that are away, or that run flannel and do not write them
// again for a day. A host that held its lease gets until the next look to write it again itself: before are the subnets
// whose leases the last look found lost, and lost are those of this one. A lease stays alone while the store shows an
// earlier one of its host as held, which would count before one that has lapsed.
func Restorable(
	leases []registry.Lease, nodeID string, before map[netip.Prefix]bool,
) (away []registry.Lease, lost map[netip.Prefix]bool) {
	lost = map[netip.Prefix]bool{}
	held := map[string]bool{} // by node id
	for _, l := range leases {
		held[l.NodeID] = held[l.NodeID] || l.Held() && !l.Missing
	}
	for _, l := range leases {
		if !l.Lost || l.NodeID == nodeID {
			continue
		}
		lost[l.Subnet()] = true
		if !held[l.NodeID] && (!l.Held() || before[l.Subnet()]) {
			away = append(away, l)
		}
	}
	return away, lost
}
