package consul

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// maxReason bounds why a record was skipped, in bytes: the text may quote it.
const maxReason = 300

// WatchLeases implements registry.Leases. The index is Consul's of the list,
// or a higher one where Consul's went back or records were given up without a
// change in Consul; it never goes back within one client.
//
// After the tree was made anew or restored, leases that are missing from it are
// returned as they were known for Config.Settle, unless their host has written
// another one by then: one it had before, which a restore brought back, says
// less than what was known.
func (c *Client) WatchLeases(ctx context.Context, n registry.Network, after uint64) (registry.LeaseSet, uint64, error) {
	if err := registry.CheckNetworkName(n.Name); err != nil {
		return registry.LeaseSet{}, 0, fmt.Errorf("watch leases: %w", err)
	}
	prefix := c.layout.leases(n.Name)
	found, err := c.watch(ctx, c.tree(prefix), after)
	if err != nil {
		return registry.LeaseSet{}, 0, fmt.Errorf("watch leases of network %s: %w", n.Name, err)
	}
	var set registry.LeaseSet
	var kept []registry.Lease
	here := map[string]uint64{} // by node id, when it was written last
	for i, read := range c.tree(prefix).parsed.read(n, prefix, found.pairs) {
		pair, l := found.pairs[i], read.lease
		switch {
		case read.err != nil:
			set.Bad = append(set.Bad, badRecord(pair, read.err))
		case found.kept[pair.Key]:
			kept = append(kept, l)
		default:
			set.Leases = append(set.Leases, l)
			here[l.NodeID] = max(here[l.NodeID], l.ModifyIndex)
		}
	}
	for _, l := range kept {
		if l.ModifyIndex > here[l.NodeID] {
			set.Leases = append(set.Leases, l)
		}
	}
	slices.SortFunc(set.Leases, func(a, b registry.Lease) int { return cmp.Compare(a.Slot, b.Slot) })
	c.clock.Observe(n.Name, set.Leases, time.Now())
	return set, found.version, nil
}

// WatchNetworks implements registry.Networks. As with WatchLeases, the index
// never goes back within one client, and definitions missing from a tree that
// was made anew are kept for Config.Settle.
func (c *Client) WatchNetworks(ctx context.Context, after uint64) (registry.NetworkSet, uint64, error) {
	prefix := c.layout.networks()
	found, err := c.watch(ctx, c.tree(prefix), after)
	if err != nil {
		return registry.NetworkSet{}, 0, fmt.Errorf("watch networks: %w", err)
	}
	var set registry.NetworkSet
	for _, pair := range found.pairs {
		n, err := parseNetwork(strings.TrimPrefix(pair.Key, prefix), pair)
		if err != nil {
			set.Bad = append(set.Bad, badRecord(pair, err))
			continue
		}
		set.Networks = append(set.Networks, n)
	}
	slices.SortFunc(set.Networks, func(a, b registry.Network) int { return cmp.Compare(a.Name, b.Name) })
	return set, found.version, nil
}

func badRecord(pair *api.KVPair, err error) registry.BadRecord {
	reason := err.Error()
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "…"
	}
	return registry.BadRecord{Key: pair.Key, Reason: reason}
}
