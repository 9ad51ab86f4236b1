package peers

import (
	"fmt"
	"strings"

	"github.com/lenonet/leno/registry"
)

// conflicts describes the held leases of other hosts that have this host's name, id or address. It names the first
// three and counts the others, and returns "" if there are none. Such leases exist if two hosts claimed at the same
// moment and did not see each other.
func conflicts(leases []registry.Lease, own registry.Lease) string {
	const most = 3
	self := registry.Claim{
		Node:      own.Node,
		NodeID:    own.NodeID,
		PublicIPs: own.PublicIPs,
		Backend:   own.Backend,
		Session:   own.Session,
		Since:     own.ModifyIndex,
	}
	var out []string
	for _, l := range leases {
		if l.NodeID == own.NodeID && l.Slot == own.Slot {
			continue // our own record, which may be newer than own; the keeper of the lease watches it
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
