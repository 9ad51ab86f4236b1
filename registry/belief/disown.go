package belief

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/registry"
)

// Disown makes the records of a list unusable that have a subnet of an older one.
func (l *List) Disown() {
	for _, r := range Disown(slices.Collect(maps.Values(l.Records))) {
		l.Records[r.Key] = r
	}
}

// Disown sorts records by age, and makes those unusable that have a subnet of an older usable one, held or not: no one
// takes a subnet from a host by writing a record beside that of the host, even while the host is away.
func Disown(records []*Record) []*Record {
	slices.SortFunc(records, func(a, b *Record) int {
		return cmp.Or(cmp.Compare(a.Lease.CreateIndex, b.Lease.CreateIndex), strings.Compare(a.Key, b.Key))
	})
	owner := map[netip.Prefix]*Record{}
	for i, r := range records {
		if r.Err != nil {
			continue
		}
		k := slices.IndexFunc(r.Lease.Subnets, func(p netip.Prefix) bool { return owner[p] != nil })
		if k >= 0 {
			copied, p := *r, r.Lease.Subnets[k]
			copied.Err = registry.InvalidRecord(fmt.Sprintf("its subnet %s is that of %s, too", p, owner[p].Key))
			records[i] = &copied
			continue
		}
		for _, p := range r.Lease.Subnets {
			owner[p] = r
		}
	}
	return records
}
