package consul

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// Network implements registry.Networks.
func (c *Client) Network(ctx context.Context, name string) (registry.Network, error) {
	if err := registry.CheckNetworkName(name); err != nil {
		return registry.Network{}, err
	}
	pair, _, err := c.kv.getSurely(ctx, c.layout.network(name), read{})
	if err != nil {
		return registry.Network{}, fmt.Errorf("network %s: %w", name, err)
	}
	n, err := parseNetworkPair(name, pair)
	if deleted := (*registry.DeletedError)(nil); errors.As(err, &deleted) {
		// A newly elected leader may not have applied a later definition yet.
		if pair, _, err = c.kv.get(ctx, c.layout.network(name), read{consistent: true}); err == nil {
			n, err = parseNetworkPair(name, pair)
		}
	}
	if err != nil {
		return registry.Network{}, fmt.Errorf("network %s: %w", name, err)
	}
	return n, nil
}

// PutNetwork implements registry.Networks. The token needs the right to write below networks/. Without the right to
// write below leases/ and changes/, the first host that acquires a lease creates the marker and the watermark there.
func (c *Client) PutNetwork(ctx context.Context, n registry.Network, kept ...registry.Reservation) error {
	if err := c.putNetwork(ctx, n, kept); err != nil {
		return fmt.Errorf("put network %s: %w", n.Name, err)
	}
	return nil
}

func (c *Client) putNetwork(ctx context.Context, n registry.Network, kept []registry.Reservation) error {
	plan, err := n.Plan.Normalize()
	if err != nil {
		return err
	}
	n.Plan = plan
	value, err := registry.FormatNetwork(n)
	if err != nil {
		return err
	}
	if kept, err = registry.CheckKept(n, kept); err != nil {
		return err
	}
	if len(kept) == 0 {
		return c.writeNetwork(ctx, n, value)
	}
	switch _, err := c.Network(ctx, n.Name); {
	case err == nil:
		return registry.ErrNetworkExists
	case !errors.Is(err, registry.ErrNetworkNotFound):
		return err
	}
	k := c.reserve(n, kept)
	mayBeWritten := false // whether the definition was written is not known
	if err = k.write(ctx); err == nil {
		err = c.writeNetwork(ctx, n, value)
		mayBeWritten = errors.Is(err, registry.ErrUnavailable) || errors.Is(err, context.Canceled)
	}
	if err != nil && !mayBeWritten {
		err = errors.Join(err, k.undo(ctx))
	}
	return err
}

// writeNetwork stores value, the definition n.
func (c *Client) writeNetwork(ctx context.Context, n registry.Network, value []byte) error {
	// Markers come first, so a reader that sees the network can trust its trees.
	if _, err := c.kv.ensureMarker(ctx, c.layout.networks()); err != nil {
		return err
	}
	if _, err := c.kv.ensureMarker(ctx, c.layout.leases(n.Name)); err != nil && !errors.Is(err, registry.ErrDenied) {
		return err
	}
	if err := c.kv.ensureWatermark(ctx, c.layout.changes(n.Name)); err != nil && !errors.Is(err, registry.ErrDenied) {
		return err
	}
	key, version := c.layout.network(n.Name), n.ModifyIndex
	switch version {
	case registry.Absent:
		version = 0 // Consul's value for the same
	case 0:
		pair, _, err := c.kv.get(ctx, key, read{})
		if err != nil {
			return err
		}
		deleted := &registry.DeletedError{}
		if _, err := parseNetworkPair(n.Name, pair); errors.As(err, &deleted) {
			version = deleted.ModifyIndex
		}
	}
	opts, cancel := c.kv.write(ctx)
	defer cancel()
	ok, _, err := c.api.KV().CAS(&api.KVPair{Key: key, Value: value, ModifyIndex: version}, opts)
	switch {
	case err != nil:
		err = classify(err)
		// The write may have taken place nevertheless, and a caller that tries again must not fail because of its own
		// write.
		if errors.Is(err, registry.ErrUnavailable) {
			pair, _, readErr := c.kv.get(ctx, key, read{consistent: true})
			if readErr == nil && pair != nil && bytes.Equal(pair.Value, value) {
				return nil
			}
		}
		return fmt.Errorf("write %s: %w", key, err)
	case !ok && n.ModifyIndex == 0:
		return registry.ErrNetworkExists
	case !ok:
		return registry.ErrConflict
	}
	return nil
}

// deleteTries is the number of times a deletion is tried when the record is changed at the same time.
const deleteTries = 5

// DeleteNetwork implements registry.Networks. It needs the right to write below networks/ and reservations/, and to
// read leases/.
func (c *Client) DeleteNetwork(ctx context.Context, name string) error {
	err := registry.CheckNetworkName(name)
	if err == nil {
		for range deleteTries {
			if err = c.deleteNetwork(ctx, name); !isRefused(err) {
				break
			}
		}
	}
	if isRefused(err) {
		err = fmt.Errorf("%w: %w", registry.ErrConflict, err)
	}
	if err != nil {
		return fmt.Errorf("delete network %s: %w", name, err)
	}
	c.purgeDeletions(ctx)
	return nil
}

// deleteNetwork makes one attempt. A *refusedError means that the record was changed at the same time.
func (c *Client) deleteNetwork(ctx context.Context, name string) error {
	if _, err := c.kv.ensureMarker(ctx, c.layout.networks()); err != nil {
		return err
	}
	key, reservations := c.layout.network(name), c.layout.reservations(name)
	pair, _, err := c.kv.get(ctx, key, read{consistent: true})
	if err != nil {
		return err
	}
	check := &api.KVTxnOp{Verb: api.KVCheckNotExists, Key: key}
	if pair != nil {
		check = &api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: pair.ModifyIndex}
	}
	removal := &api.KVTxnOp{Verb: api.KVDeleteTree, Key: reservations}

	_, defined := parseNetworkPair(name, pair)
	if errors.Is(defined, registry.ErrNetworkNotFound) {
		leases := 0
		if pair == nil {
			if leases, err = c.countRecords(ctx, c.layout.leases(name)); err != nil {
				return err
			}
		}
		if leases == 0 {
			switch kept, err := c.countRecords(ctx, reservations); {
			case err != nil:
				return err
			case kept == 0:
				return defined
			}
			_, err = c.kv.transact(ctx, check, removal)
			return err
		}
	}
	value, err := registry.FormatDeletion(registry.Deletion{Network: name, Time: time.Now()})
	if err != nil {
		return err
	}
	_, err = c.kv.transact(ctx, check, &api.KVTxnOp{Verb: api.KVSet, Key: key, Value: value}, removal)
	return err
}

// PutDeletion implements registry.Networks. It needs the right to write below networks/.
func (c *Client) PutDeletion(ctx context.Context, d registry.Deletion) error {
	if err := c.putDeletion(ctx, d); err != nil {
		return fmt.Errorf("put back the deletion of network %s: %w", d.Network, err)
	}
	return nil
}

func (c *Client) putDeletion(ctx context.Context, d registry.Deletion) error {
	if err := registry.CheckNetworkName(d.Network); err != nil {
		return err
	}
	value, err := registry.FormatDeletion(d)
	if err != nil {
		return err
	}
	if _, err := c.kv.ensureMarker(ctx, c.layout.networks()); err != nil {
		return err
	}
	created, err := c.kv.ensureKey(ctx, c.layout.network(d.Network), string(value))
	if err == nil && !created {
		err = registry.ErrConflict
	}
	return err
}

// countRecords returns how many records there are below a prefix, usable or not.
func (c *Client) countRecords(ctx context.Context, prefix string) (int, error) {
	pairs, _, err := c.kv.listSurely(ctx, prefix)
	return len(slices.DeleteFunc(pairs, func(p *api.KVPair) bool { return p.Key == prefix+markerName })), err
}

// purgeDeletions removes the records of old deletions whose networks have no leases any more. A record that it cannot
// remove stays until the next deletion.
func (c *Client) purgeDeletions(ctx context.Context) {
	set, _, err := c.listNetworks(ctx, read{})
	if err != nil {
		c.logger.Debug("records of old deletions stay", "error", err)
		return
	}
	for _, d := range set.Deleted {
		if time.Since(d.Time) < registry.DeletionKept {
			continue
		}
		leases, err := c.countRecords(ctx, c.layout.leases(d.Network))
		if err == nil && leases == 0 {
			key := c.layout.network(d.Network)
			_, err = c.kv.transact(ctx,
				&api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: d.ModifyIndex},
				&api.KVTxnOp{Verb: api.KVDelete, Key: key})
		}
		if err != nil {
			c.logger.Debug("record of an old deletion stays", "network", d.Network, "error", err)
		}
	}
}

// networkList assigns indexes to the answers of WatchNetworks.
type networkList struct {
	mu      sync.Mutex
	version uint64 // of the last answer, 0 before the first
	index   uint64 // Consul's index of that answer
	set     registry.NetworkSet
}

// update returns the index of set: that of the last answer if the sets are equal, and otherwise a new one that was
// never used before, even when Consul's index went back.
func (l *networkList) update(set registry.NetworkSet, index uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.version == 0 || !reflect.DeepEqual(l.set, set) {
		l.version = max(l.version+1, index)
	}
	l.index, l.set = index, set
	return l.version
}

// behind returns Consul's index of the answer with the index version, or 0 if that is not the last answer.
func (l *networkList) behind(version uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if version != l.version {
		return 0
	}
	return l.index
}

// WatchNetworks implements registry.Networks. As with WatchLeases, the index never decreases within one client.
func (c *Client) WatchNetworks(ctx context.Context, after uint64) (registry.NetworkSet, uint64, error) {
	for {
		set, version, err := c.watchNetworks(ctx, after)
		if err != nil {
			c.kv.doubts.add(c.layout.networks()) // the next call does not block
			return registry.NetworkSet{}, 0, fmt.Errorf("watch networks: %w", err)
		}
		if version != after {
			return set, version, nil
		}
	}
}

// watchNetworks reads all networks. When after is the index of the last answer, it first waits for a change below their
// prefix.
func (c *Client) watchNetworks(ctx context.Context, after uint64) (registry.NetworkSet, uint64, error) {
	var notified uint64
	if last := c.networks.behind(after); after > 0 && last > 0 {
		var err error
		if notified, err = c.kv.awaitChange(ctx, c.layout.networks(), last); err != nil {
			return registry.NetworkSet{}, 0, err
		}
	}
	set, index, err := c.listNetworks(ctx, read{})
	if err != nil {
		return set, 0, err
	}
	return set, c.networks.update(set, max(index, notified)), nil
}

// listNetworks reads all networks. When a list lacks the marker and a read of the marker alone does not find it either,
// the store is new or was emptied.
func (c *Client) listNetworks(ctx context.Context, r read) (registry.NetworkSet, uint64, error) {
	set, index, marked, err := c.readNetworks(ctx, r)
	if err != nil || marked {
		return set, index, err
	}
	prefix := c.layout.networks()
	marker, _, err := c.kv.get(ctx, prefix+markerName, read{consistent: true})
	if err != nil {
		return registry.NetworkSet{}, 0, fmt.Errorf("%w: %w", registry.ErrUncertain, err)
	}
	if marker == nil {
		return set, index, nil
	}
	// Either the marker was created after the list, or the list hid it.
	set, index, marked, err = c.readNetworks(ctx, read{consistent: true})
	if err == nil && !marked {
		err = hidden(prefix)
	}
	return set, index, err
}

// readNetworks returns one list of the networks, and whether it contains the marker.
func (c *Client) readNetworks(
	ctx context.Context, r read,
) (set registry.NetworkSet, index uint64, marked bool, err error) {
	prefix := c.layout.networks()
	pairs, index, err := c.kv.list(ctx, prefix, r)
	if err != nil {
		return set, 0, false, err
	}
	for _, pair := range pairs {
		name := strings.TrimPrefix(pair.Key, prefix)
		if name == markerName {
			marked = true
			continue
		}
		n, err := parseNetworkPair(name, pair)
		deleted := &registry.DeletedError{}
		switch {
		case err == nil:
			set.Networks = append(set.Networks, n)
		case errors.As(err, &deleted):
			set.Deleted = append(set.Deleted, deleted.Deletion)
		default:
			set.Bad = append(set.Bad, badRecord(pair.Key, err))
		}
	}
	slices.SortFunc(set.Networks, func(a, b registry.Network) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(set.Deleted, func(a, b registry.Deletion) int { return cmp.Compare(a.Network, b.Network) })
	return set, index, marked, nil
}

// parseNetworkPair parses the record of a network; pair is nil when there is none.
func parseNetworkPair(name string, pair *api.KVPair) (registry.Network, error) {
	if pair == nil {
		return registry.Network{}, registry.ErrNetworkNotFound
	}
	n, err := registry.ParseNetwork(name, pair.Value)
	deleted := &registry.DeletedError{}
	if errors.As(err, &deleted) {
		deleted.CreateIndex, deleted.ModifyIndex = pair.CreateIndex, pair.ModifyIndex
	}
	if err != nil {
		return registry.Network{}, err
	}
	n.CreateIndex, n.ModifyIndex = pair.CreateIndex, pair.ModifyIndex
	return n, nil
}
