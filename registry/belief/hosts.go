package belief

import (
	"net/netip"

	"github.com/lenonet/leno/registry"
)

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
