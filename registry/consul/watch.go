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

// Followed implements registry.Follower.
func (c *Client) Followed(network string) time.Time {
	if at := c.leasesTree(network).seen.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
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

// watch blocks until the tree's version differs from after, and calls use
// within the turn. after 0 reads the tree anew.
func (c *Client) watch(ctx context.Context, t *tree, after uint64, use func()) error {
	recovering := false
	for looked := false; ; looked = true {
		if err := t.begin(ctx); err != nil {
			return err
		}
		if !looked {
			recovering = t.failed.Load() && t.dir != nil
		}
		var err error
		anew := after == 0 || t.version == 0
		if anew {
			err = c.relist(ctx, t, 0)
		}
		if err == nil && (anew || t.version != after || (looked && recovering)) {
			if after > 0 {
				t.failed.Store(false) // a reading for somebody else tells the watcher nothing
			}
			use()
			t.end()
			return nil
		}
		t.end()
		if err == nil {
			err = c.next(ctx, t)
		}
		if err != nil && ctx.Err() == nil {
			// The next call looks at once, and tells even of no change.
			c.doubts.add(t.prefix)
			t.failed.Store(true)
		}
		if err != nil {
			return err
		}
	}
}

// next blocks until the tree was looked at again for some reason.
func (c *Client) next(ctx context.Context, t *tree) error {
	if t.dir != nil {
		return c.follow(ctx, t)
	}
	if err := t.begin(ctx); err != nil {
		return err
	}
	wait, marked, settled := t.wait, t.marker != 0, t.settled()
	t.end()
	notified, err := c.notify(ctx, t, wait, marked, settled)
	if err != nil {
		return err
	}
	if err := t.begin(ctx); err != nil {
		return err
	}
	defer t.end()
	return c.relist(ctx, t, notified)
}

// notify blocks until the tree needs another look, and then for a random time
// in which more changes may come. It asks for the names directly below the
// prefix without its slash: about 30 bytes however large the tree is.
func (c *Client) notify(ctx context.Context, t *tree, wait uint64, marked bool, settled time.Time) (uint64, error) {
	for {
		r := read{index: wait, wait: c.conf.Wait}
		if !settled.IsZero() {
			r.wait = min(r.wait, max(time.Until(settled), time.Millisecond))
		}
		if c.doubts.about(t.prefix) {
			r = read{}
		}
		start := time.Now()
		index, there, err := c.names(ctx, t.prefix, r)
		if err != nil {
			c.doubts.add(t.prefix)
			if hung(ctx, r, err) {
				continue
			}
			return 0, err
		}
		c.doubts.clear(t.prefix)
		switch {
		case !settled.IsZero() && !time.Now().Before(settled):
			return index, nil
		case index != wait || (marked && !there):
			return index, pause(ctx, jitter(c.conf.Coalesce))
		}
		if err := c.noNews(ctx, t.prefix, r, start); err != nil {
			return 0, err
		}
	}
}

// names reads the index of a tree and whether there is anything in it.
func (c *Client) names(ctx context.Context, prefix string, r read) (index uint64, there bool, err error) {
	opts, cancel := c.query(ctx, r)
	defer cancel()
	keys, meta, err := c.api.KV().Keys(strings.TrimSuffix(prefix, "/"), "/", opts)
	if err != nil {
		return 0, false, fmt.Errorf("watch %s: %w", prefix, classify(err))
	}
	if !meta.KnownLeader {
		return 0, false, fmt.Errorf("watch %s: %w", prefix, uncertain("consul knows no leader"))
	}
	return meta.LastIndex, slices.Contains(keys, prefix), nil
}

func badRecord(key string, err error) registry.BadRecord {
	reason := err.Error()
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "…"
	}
	return registry.BadRecord{Key: key, Reason: reason}
}
