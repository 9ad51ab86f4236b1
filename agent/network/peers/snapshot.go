package peers

import (
	"cmp"
	"net/netip"
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

// isLeaseKey reports whether a key that ends in a subnet is that of a lease of the network: leno/leases/NETWORK/SUBNET
// in Consul, PREFIX/subnets/SUBNET in etcd.
func isLeaseKey(network, key string) bool {
	dir := path.Dir(key)
	return strings.HasSuffix(dir, "/leases/"+network) || path.Base(dir) == "subnets"
}

// keepKnown adds to a set of leases the previous leases whose records still exist but cannot be used. The host is not
// at fault if another client overwrote its record with invalid data, or a newer leno wrote it.
func keepKnown(network string, set registry.LeaseSet, before []registry.Lease) registry.LeaseSet {
	if len(set.Bad) == 0 {
		return set
	}
	known := map[netip.Prefix]registry.Lease{}
	for _, l := range before {
		known[l.Subnet()] = l
	}
	for _, l := range set.Leases { // in etcd, two keys can have the same first subnet
		delete(known, l.Subnet())
	}
	out := set
	out.Leases, out.Bad = slices.Clone(set.Leases), slices.Clone(set.Bad)
	for i, b := range out.Bad {
		subnet, err := b.Subnet()
		l, ok := known[subnet]
		if err != nil || !ok || !isLeaseKey(network, b.Key) {
			continue
		}
		out.Leases = append(out.Leases, l)
		out.Bad[i].Reason = b.Reason + "; the previous record stays in use"
	}
	slices.SortFunc(out.Leases, func(a, b registry.Lease) int { return cmp.Compare(a.Slot, b.Slot) })
	return out
}
