package kubernetes

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/replica"
)

// views are what calls under one user have been told.
type views struct {
	answers  replica.Answers  // of WatchLeases
	versions replica.Versions // of the network and of single leases

	mu     sync.Mutex
	leases leaseView
}

// leaseView is what a client believes the leases to be.
type leaseView struct {
	network registry.Network // with whose plan and backend the records were parsed
	parsed  map[*node]*belief.Record
	belief  belief.Belief
	tree    *tree // the one that was compared last, nil for none
}

// keyOf returns the key of the record in a Node.
func keyOf(name string) string { return "nodes/" + name }

// leases returns all leases when t is what the API server says, their index, and when the first missing one will be
// given up.
func (c *connection) leases(t *tree, n registry.Network) (set registry.LeaseSet, index uint64, again time.Time) {
	c.views.mu.Lock()
	defer c.views.mu.Unlock()
	v := &c.views.leases
	if v.tree != nil && t.setBack == v.tree.setBack && t.revision < v.tree.revision {
		t = v.tree // another call has compared a later one
	}
	if t != v.tree || !v.isOf(n) || !v.belief.Due().IsZero() {
		if !v.isOf(n) {
			v.network, v.parsed = n, nil
		}
		v.belief.SetBackend(n.Backend.Type)
		v.belief.Accept(v.list(t, n, c.names()), time.Now(), belief.Options{Settle: time.Duration(c.settle.Load())})
		v.tree = t
	}
	return v.belief.Leases(), v.belief.Version(), v.belief.Due()
}

func (v *leaseView) isOf(n registry.Network) bool {
	return slices.Equal(v.network.Plan, n.Plan) && v.network.Carriage().Equal(n.Carriage())
}

// records returns what t says of all Nodes that have leases.
func (c *connection) records(t *tree, n registry.Network) map[string]*belief.Record {
	c.views.mu.Lock()
	defer c.views.mu.Unlock()
	return c.views.leases.records(t, n, c.names())
}

// records parses each Node once.
func (v *leaseView) records(t *tree, n registry.Network, a names) map[string]*belief.Record {
	out := map[string]*belief.Record{}
	isSame, next := v.isOf(n), map[*node]*belief.Record{}
	for _, nd := range t.nodes {
		if !nd.hasLease(a) {
			continue
		}
		r := v.parsed[nd]
		if r == nil || !isSame {
			r = nd.record(n, a)
		}
		next[nd], out[r.Key] = r, r
	}
	if isSame {
		v.parsed = next
	}
	return out
}

// list returns what t says of the leases of all Nodes.
func (v *leaseView) list(t *tree, n registry.Network, a names) belief.List {
	l := belief.List{
		Records: v.records(t, n, a),
		SetBack: v.tree != nil && t.setBack != v.tree.setBack,
		Removed: func(r *belief.Record) bool {
			_, missing := t.vanished[strings.TrimPrefix(r.Key, keyOf(""))]
			return !missing
		},
	}
	for _, r := range l.Records {
		l.Index = max(l.Index, r.Lease.ModifyIndex)
	}
	refuseRepeated(l.Records)
	return l
}

// record returns what the annotations of a Node with a lease say.
func (n *node) record(network registry.Network, a names) *belief.Record {
	r := &belief.Record{Key: keyOf(n.name), Value: fmt.Appendf(nil, "%q %q", n.podCIDRs, n.annotations)}
	r.Lease, _, r.Err = n.lease(network, a)
	r.Lease.Session, r.Lease.CreateIndex, r.Lease.ModifyIndex = n.uid, n.created, n.modified
	return r
}

// refuseRepeated makes those records unusable whose subnets an older Node has, too.
func refuseRepeated(records map[string]*belief.Record) {
	usable := slices.DeleteFunc(slices.Collect(maps.Values(records)), func(r *belief.Record) bool { return r.Err != nil })
	slices.SortFunc(usable, func(a, b *belief.Record) int {
		return cmp.Or(cmp.Compare(a.Lease.CreateIndex, b.Lease.CreateIndex), cmp.Compare(a.Key, b.Key))
	})
	owner := map[netip.Prefix]*belief.Record{}
	for _, r := range usable {
		i := slices.IndexFunc(r.Lease.Subnets, func(p netip.Prefix) bool { return owner[p] != nil })
		if i >= 0 {
			copied, p := *r, r.Lease.Subnets[i]
			copied.Err = registry.InvalidRecord(fmt.Sprintf("its subnet %s is that of %s, too", p, owner[p].Key))
			records[r.Key] = &copied
			continue
		}
		for _, p := range r.Lease.Subnets {
			owner[p] = r
		}
	}
}
