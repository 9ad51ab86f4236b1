package kubernetes

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/replica"
)

// views are what calls under one user have been told.
type views struct {
	answers replica.Answers // of WatchLeases

	mu       sync.Mutex
	network  registry.Network // of known
	known    map[*node]known
	versions map[string]*version // by what is watched
}

// known is the lease of a Node, or why it cannot be used.
type known struct {
	lease   registry.Lease
	foreign bool // flannel wrote it
	err     error
}

// version is the index that callers get for something, never reused for other content, whatever a restore does to the
// store's revision.
type version struct{ index, content uint64 }

var seed = maphash.MakeSeed()

// index returns the index of something with the given content. latest is the index of its last change.
func (v *views) index(what, content string, latest uint64) uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	now, ok := v.versions[what]
	if !ok {
		now = &version{}
		if v.versions == nil {
			v.versions = map[string]*version{}
		}
		v.versions[what] = now
	}
	if sum := maphash.String(seed, content); now.index == 0 || sum != now.content {
		now.index, now.content = max(latest, now.index+1), sum
	}
	return now.index
}

// parse returns the leases of all Nodes that have one. It parses each once.
func (v *views) parse(t *tree, n registry.Network, a names) map[*node]known {
	v.mu.Lock()
	defer v.mu.Unlock()
	reuse := slices.Equal(v.network.Plan, n.Plan) && v.network.Backend.Equal(n.Backend)
	now := map[*node]known{}
	add := func(nd *node) {
		if !nd.hasLease(a) {
			return
		}
		k, ok := v.known[nd]
		if !ok || !reuse {
			k.lease, k.foreign, k.err = nd.lease(n, a)
		}
		now[nd] = k
	}
	for _, nd := range t.nodes {
		add(nd)
	}
	for _, gone := range t.vanished {
		add(gone.node)
	}
	v.network, v.known = n, now
	return now
}

func badRecord(nd *node, reason string) registry.BadRecord {
	return registry.BadRecord{Key: "nodes/" + nd.name, Reason: reason}
}

// leases returns all leases when t is what the API server says, their index, and when the first missing one will be
// given up.
func (c *connection) leases(t *tree, n registry.Network) (set registry.LeaseSet, index uint64, again time.Time) {
	all := c.views.parse(t, n, c.names())
	set.SetBack = t.setBack
	stored := map[*node]registry.Lease{}
	for _, nd := range t.nodes {
		switch k, ok := all[nd]; {
		case !ok:
		case k.err != nil:
			set.Bad = append(set.Bad, badRecord(nd, k.err.Error()))
		default:
			stored[nd] = k.lease
		}
	}
	set.Bad = append(set.Bad, dropRepeated(stored)...)
	for _, l := range stored {
		set.Leases = append(set.Leases, l)
	}
	missing := map[string]registry.Lease{} // by node id
	for _, gone := range t.vanished {
		until := gone.since.Add(time.Duration(c.settle.Load()))
		k, ok := all[gone.node]
		if !ok || k.err != nil || !time.Now().Before(until) {
			continue
		}
		if again.IsZero() || until.Before(again) {
			again = until
		}
		k.lease.Missing = true
		replaces := func(l registry.Lease) bool {
			return l.Slot == k.lease.Slot || l.NodeID == k.lease.NodeID && l.ModifyIndex > k.lease.ModifyIndex
		}
		other, ok := missing[k.lease.NodeID]
		if !slices.ContainsFunc(set.Leases, replaces) && (!ok || other.ModifyIndex < k.lease.ModifyIndex) {
			missing[k.lease.NodeID] = k.lease
		}
	}
	for _, l := range missing {
		set.Leases = append(set.Leases, l)
	}
	slices.SortFunc(set.Leases, func(a, b registry.Lease) int {
		return cmp.Or(cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Node, b.Node))
	})
	slices.SortFunc(set.Bad, func(a, b registry.BadRecord) int { return cmp.Compare(a.Key, b.Key) })
	var content strings.Builder
	latest := uint64(1)
	for _, l := range set.Leases {
		latest = max(latest, l.ModifyIndex)
		fmt.Fprintf(&content, "%s %q %d %t\n", l.Session, l.Node, l.ModifyIndex, l.Missing)
	}
	for _, b := range set.Bad {
		fmt.Fprintf(&content, "%q %q\n", b.Key, b.Reason)
	}
	fmt.Fprint(&content, set.SetBack)
	return set, c.views.index("leases", content.String(), latest), again
}

// dropRepeated removes the leases whose subnets an older Node has, too, and returns them as unusable.
func dropRepeated(leases map[*node]registry.Lease) (bad []registry.BadRecord) {
	var nodes []*node
	for nd := range leases {
		nodes = append(nodes, nd)
	}
	slices.SortFunc(nodes, func(a, b *node) int {
		return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.name, b.name))
	})
	owner := map[string]*node{} // by subnet
	for _, nd := range nodes {
		var other *node
		for _, subnet := range leases[nd].Subnets {
			if o := owner[subnet.String()]; o != nil {
				other = o
			}
		}
		if other != nil {
			bad = append(bad, badRecord(nd, fmt.Sprintf("its podCIDRs %s are those of node %s, too", nd.podCIDRs, other.name)))
			delete(leases, nd)
			continue
		}
		for _, subnet := range leases[nd].Subnets {
			owner[subnet.String()] = nd
		}
	}
	return bad
}
