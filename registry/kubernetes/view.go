package kubernetes

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/replica"
)

// keyOf returns the key of the record in a Node.
func keyOf(name string) string { return "nodes/" + name }

// reader implements replica.LeaseReader.
type reader struct {
	names   names
	network registry.Network
}

// Sources implements replica.LeaseReader.
func (r reader) Sources(t *tree) (out []*node) {
	for _, n := range t.Records {
		if n.hasLease(r.names) {
			out = append(out, n)
		}
	}
	return out
}

// Parse implements replica.LeaseReader.
func (r reader) Parse(n *node) *belief.Record {
	out := &belief.Record{Key: n.Key(), Value: fmt.Appendf(nil, "%q %q", n.podCIDRs, n.annotations)}
	out.Lease, _, out.Err = n.lease(r.network, r.names)
	if out.Err != nil {
		out.Lease.Session, out.Lease.CreateIndex, out.Lease.ModifyIndex = n.uid, n.created, n.modified
	}
	return out
}

// Complete implements replica.LeaseReader.
func (r reader) Complete(_ *tree, l *belief.List, _ *belief.Belief) error {
	for _, r := range disown(slices.Collect(maps.Values(l.Records))) {
		l.Records[r.Key] = r
	}
	return nil
}

// disown sorts records by the age of their Nodes, and makes those unusable whose subnets an older Node has, too.
func disown(records []*belief.Record) []*belief.Record {
	slices.SortFunc(records, func(a, b *belief.Record) int {
		return cmp.Or(cmp.Compare(a.Lease.CreateIndex, b.Lease.CreateIndex), strings.Compare(a.Key, b.Key))
	})
	owner := map[netip.Prefix]*belief.Record{}
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

// reader returns what finds the leases of the network, and how long missing ones are kept.
func (c *connection) reader(n registry.Network) (reader, belief.Options) {
	return reader{c.names, n}, belief.Options{Settle: time.Duration(c.settle.Load())}
}

var _ replica.LeaseReader[*node, *node] = reader{}
