package peers

import (
	"fmt"
	"strings"

	"github.com/lenonet/leno/registry"
)

// A Conflict says which other hosts are mistaken for this one.
type Conflict struct {
	Reason string // names the first three hosts and counts the others, "" for none
	// Older means that this host said all that it has in common with them before they did.
	Older bool
}

// conflicts describes the held leases of other hosts that have this host's name, id or address. Such leases exist if
// two hosts claimed at the same moment and did not see each other, or if someone wrote them.
func conflicts(leases []registry.Lease, own registry.Lease) Conflict {
	const most = 3
	self := registry.Claim{
		Node:      own.Node,
		NodeID:    own.NodeID,
		PublicIPs: own.PublicIPs,
		Backend:   own.Backend,
		Session:   own.Session,
		Since:     own.ModifyIndex,
	}
	var found []string
	isOlder := true
	for _, l := range leases {
		if l.NodeID == own.NodeID && l.Slot == own.Slot {
			continue // our own record, which may be newer than own; the keeper of the lease watches it
		}
		if l.Missing {
			continue // it does not show whether its host is alive
		}
		reason := ""
		if err := registry.Duplicate(l, self); err != nil {
			reason = err.Error()
		} else if isForged(l, own) {
			reason = fmt.Sprintf("the record of %s names this host (%s, node id %s), and another host holds it: remove it with "+
				"`leno lease revoke %s %s`", l.Subnet(), l.Node, l.NodeID, own.Network, l.Subnet())
		}
		if reason != "" {
			found = append(found, reason)
			isOlder = isOlder && registry.IsLater(l, own)
		}
	}
	if len(found) > most {
		found = append(found[:most], fmt.Sprintf("and %d more", len(found)-most))
	}
	return Conflict{strings.Join(found, "; "), isOlder && len(found) > 0}
}

// isForged reports whether a lease with this host's id was written by another host, since this one wrote its own:
// another session holds it. A lease that was written earlier may have come back when the store was set back.
func isForged(l, own registry.Lease) bool {
	return l.NodeID == own.NodeID && l.Held() && l.Session != registry.UnknownSession && l.Session != own.Session &&
		l.ModifyIndex > own.ModifyIndex
}
