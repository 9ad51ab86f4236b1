package consul

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/registry"
)

// maxReason limits the reason why a record was skipped, in bytes: the text may quote the record.
const maxReason = 300

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
func (c *Client) WatchLeases(ctx context.Context, n registry.Network, after uint64) (registry.LeaseSet, uint64, error) {
	if err := registry.CheckNetworkName(n.Name); err != nil {
		return registry.LeaseSet{}, 0, fmt.Errorf("watch leases: %w", err)
	}
	t, done := c.useTree(n.Name)
	defer done()
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
	c.mu.Lock()
	t := c.trees[network]
	c.mu.Unlock()
	if t == nil || t.seen.Load() == 0 {
		return time.Time{}
	}
	return time.Unix(0, t.seen.Load())
}

// watch blocks until the tree's version differs from after, and calls use within the turn. With after 0 it reads the
// tree again.
func (c *Client) watch(ctx context.Context, t *tree, after uint64, use func()) error {
	recovering := false
	for looked := false; ; looked = true {
		if err := t.begin(ctx); err != nil {
			return err
		}
		if !looked {
			recovering = t.failed.Load()
		}
		var err error
		anew := after == 0 || t.version == 0
		if anew {
			err = c.relist(ctx, t)
		}
		if err == nil && (anew || t.version != after || (looked && recovering)) {
			if after > 0 {
				t.failed.Store(false) // a read for another caller tells the watcher nothing
			}
			use()
			t.end()
			return nil
		}
		t.end()
		if err == nil {
			err = c.follow(ctx, t)
		}
		if err != nil && ctx.Err() == nil {
			// The next call does not block, and returns even if nothing changed.
			c.doubts.add(t.prefix)
			t.failed.Store(true)
		}
		if err != nil {
			return err
		}
	}
}

// awaitChange blocks until the index of a prefix differs from after, and then for a random time in which more changes
// may arrive. It requests the names directly below the prefix without its slash: about 30 bytes, however much the
// prefix contains.
func (c *Client) awaitChange(ctx context.Context, prefix string, after uint64) (uint64, error) {
	for {
		r := read{index: after, wait: c.conf.Wait}
		if c.doubts.about(prefix) {
			r = read{}
		}
		start := time.Now()
		index, _, err := c.names(ctx, prefix, r)
		if err != nil {
			c.doubts.add(prefix)
			if hung(ctx, r, err) {
				continue
			}
			return 0, err
		}
		c.doubts.clear(prefix)
		if index != after {
			return index, pause(ctx, jitter(c.conf.Coalesce))
		}
		if err := c.noNews(ctx, prefix, r, start); err != nil {
			return 0, err
		}
	}
}

// names returns the index of a tree and whether the tree contains any keys.
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
