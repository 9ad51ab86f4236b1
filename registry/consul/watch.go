package consul

import (
	"context"
	"fmt"
	"time"

	"github.com/lenonet/leno/registry"
)

// WatchLeases implements registry.Leases. It follows the network's directory of recent changes, and reads all leases
// only when the directory does not tell what happened. The index is Consul's index of the last change, or a higher one
// where Consul's index went back or records were given up without a change in Consul. It never decreases within one
// client.
//
// Changes without an entry are seen late: a lapsed lease by this host's next audit, a manual change by the next audit
// of any host. With after 0 it reads all leases.
//
// After the tree was re-created or restored, leases that are missing from it are returned as last known for
// Config.Settle, unless their host has written another one by then.
func (ls leaseStore) WatchLeases(
	ctx context.Context, n registry.Network, after uint64,
) (registry.LeaseSet, uint64, error) {
	if err := registry.CheckNetworkName(n.Name); err != nil {
		return registry.LeaseSet{}, 0, fmt.Errorf("watch leases: %w", err)
	}
	f, done := ls.followers.use(n.Name)
	defer done()
	var set registry.LeaseSet
	var index uint64
	err := f.watch(ctx, ls.kv, n, after, func() { set, index = f.belief.Leases(), f.belief.Version() })
	if err != nil {
		return registry.LeaseSet{}, 0, fmt.Errorf("watch leases of network %s: %w", n.Name, err)
	}
	f.lapses.Observe(n.Name, set.Leases, time.Now())
	return set, index, nil
}

// Followed returns when Consul last confirmed the leases of a network.
func (ls leaseStore) Followed(network string) time.Time {
	f := ls.followers.find(network)
	if f == nil || f.confirmed.Load() == 0 {
		return time.Time{}
	}
	return time.Unix(0, f.confirmed.Load())
}

// Forget drops what is known of the leases of a network. Calls in progress continue with what they know.
func (ls leaseStore) Forget(network string) {
	ls.lost.Forget(network)
	ls.followers.drop(network)
}

// SetSettle changes Config.Settle for records that are found missing from then on.
func (ls leaseStore) SetSettle(d time.Duration) { ls.followers.settle.Store(int64(d)) }
