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

// WatchLeases implements registry.Leases: it follows the network's directory of
// recent changes, and reads all leases only when that cannot tell what happened.
// The index is Consul's of the last change, or a higher one where Consul's went
// back or records were given up without a change in Consul; it never goes back
// within one client.
//
// What writes no entry is seen late: that a lease lapsed by this host's next
// audit, a change by hand by the next audit of any host. after 0 reads all
// leases.
//
// After the tree was made anew or restored, leases that are missing from it are
// returned as they were known for Config.Settle, unless their host has written
// another one by then.
func (c *Client) WatchLeases(ctx context.Context, n registry.Network, after uint64) (registry.LeaseSet, uint64, error) {
	if err := registry.CheckNetworkName(n.Name); err != nil {
		return registry.LeaseSet{}, 0, fmt.Errorf("watch leases: %w", err)
	}
	t := c.leasesTree(n.Name)
	var set registry.LeaseSet
	var index uint64
	err := c.watch(ctx, t, after, func() { set, index = t.leases(n), t.version })
	if err != nil {
		return registry.LeaseSet{}, 0, fmt.Errorf("watch leases of network %s: %w", n.Name, err)
	}
	c.clock.Observe(n.Name, set.Leases, time.Now())
	return set, index, nil
}

// WatchNetworks implements registry.Networks. As with WatchLeases, the index
// never goes back within one client, and definitions missing from a tree that
// was made anew are kept for Config.Settle.
func (c *Client) WatchNetworks(ctx context.Context, after uint64) (registry.NetworkSet, uint64, error) {
	prefix := c.layout.networks()
	t := c.networksTree()
	var pairs []*api.KVPair
	var index uint64
	err := c.watch(ctx, t, after, func() { pairs, index = t.sorted(), t.version })
	if err != nil {
		return registry.NetworkSet{}, 0, fmt.Errorf("watch networks: %w", err)
	}
	var set registry.NetworkSet
	for _, pair := range pairs {
		n, err := parseNetwork(strings.TrimPrefix(pair.Key, prefix), pair)
		if err != nil {
			set.Bad = append(set.Bad, badRecord(pair.Key, err))
			continue
		}
		set.Networks = append(set.Networks, n)
	}
	slices.SortFunc(set.Networks, func(a, b registry.Network) int { return cmp.Compare(a.Name, b.Name) })
	return set, index, nil
}

func badRecord(key string, err error) registry.BadRecord {
	reason := err.Error()
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "…"
	}
	return registry.BadRecord{Key: key, Reason: reason}
}
