package peers

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/registry"
)

// A Snapshot holds all leases of a network, this host's own included, as they were read at one time.
type Snapshot struct {
	Set   registry.LeaseSet
	Index uint64
	Read  time.Time // zero for leases that an earlier process knew
}

// isSame reports whether two snapshots are of the same reading.
func (s Snapshot) isSame(o Snapshot) bool { return s.Read.Equal(o.Read) && s.Index == o.Index }

// Aged returns a copy of the snapshot in which the time since it was read counts as time that leases have been lapsed.
func (s Snapshot) Aged() Snapshot {
	s.Set.Leases = slices.Clone(s.Set.Leases)
	for i := range s.Set.Leases {
		if l := &s.Set.Leases[i]; !l.Held() {
			l.Lapsed += time.Since(s.Read)
		}
	}
	return s
}

// keepKnown adds to a set of leases the previous leases whose records still exist but cannot be used. The host is not
// at fault if another client overwrote its record with invalid data, or a newer leno wrote it.
func keepKnown(network string, set registry.LeaseSet, before []registry.Lease) registry.LeaseSet {
	if len(set.Bad) == 0 {
		return set
	}
	known := map[string]registry.Lease{}
	for _, l := range before {
		known[registry.SubnetKey(l.Subnet())] = l
	}
	out := set
	out.Leases, out.Bad = slices.Clone(set.Leases), slices.Clone(set.Bad)
	for i, b := range out.Bad {
		l, ok := known[path.Base(b.Key)]
		if !ok || !strings.HasSuffix(b.Key, "/leases/"+network+"/"+path.Base(b.Key)) {
			continue
		}
		out.Leases = append(out.Leases, l)
		out.Bad[i].Reason = b.Reason + "; what stood there before stays in use"
	}
	slices.SortFunc(out.Leases, func(a, b registry.Lease) int { return cmp.Compare(a.Slot, b.Slot) })
	return out
}
