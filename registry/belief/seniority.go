package belief

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/registry"
)

// Seniority ranks leases by when this host first saw what identifies their hosts. Of two leases with the same key or
// MAC address, the one that had it first keeps it, so no host can take it from another by writing its own record again,
// and none loses it by getting another name, address or port.
type Seniority struct {
	seen    map[netip.Prefix]registry.Lease // as they were when they were ranked
	rank    map[netip.Prefix]uint64         // is published, so it is never changed
	highest uint64
}

// NewSeniority returns the seniority of leases that an earlier process ranked.
func NewSeniority(leases []registry.Lease, rank map[netip.Prefix]uint64) *Seniority {
	s := &Seniority{seen: map[netip.Prefix]registry.Lease{}, rank: rank}
	for _, l := range leases {
		if r, ok := rank[l.Subnet()]; ok {
			s.seen[l.Subnet()], s.highest = l, max(s.highest, r)
		}
	}
	return s
}

// Update returns the ranks of the leases, by subnet. A lease that is new, or identifies its host in another way, ranks
// behind all that were known before. Leases that are seen together for the first time rank by CreateIndex.
func (s *Seniority) Update(leases []registry.Lease) map[netip.Prefix]uint64 {
	next := &Seniority{
		seen:    make(map[netip.Prefix]registry.Lease, len(leases)),
		rank:    make(map[netip.Prefix]uint64, len(leases)),
		highest: s.highest,
	}
	var added []registry.Lease
	for _, l := range leases {
		subnet := l.Subnet()
		next.seen[subnet] = l
		if before, ok := s.seen[subnet]; ok && identifiesTheSame(before, l) {
			next.rank[subnet] = s.rank[subnet]
		} else {
			added = append(added, l)
		}
	}
	slices.SortFunc(added, func(a, b registry.Lease) int {
		return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), a.Subnet().Addr().Compare(b.Subnet().Addr()))
	})
	for _, l := range added {
		next.highest = max(l.CreateIndex, next.highest+1)
		next.rank[l.Subnet()] = next.highest
	}
	*s = *next
	return s.rank
}

// identifiesTheSame reports whether two leases on one slot identify the same host in the same way. The texts are
// compared as they are, because a key has several spellings: a new one counts as another key.
func identifiesTheSame(a, b registry.Lease) bool {
	return a.NodeID == b.NodeID && (bytes.Equal(a.Backend.Object, b.Backend.Object) ||
		maps.EqualFunc(identity(a), identity(b), slices.Equal))
}

// identity returns the members of a lease's backend object without those that say where its host is reached.
func identity(l registry.Lease) map[string]json.RawMessage {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(l.Backend.Object, &members) // is an object
	for _, name := range []string{"listen_port", "public_port", "local_ips"} {
		delete(members, name)
	}
	return members
}
