package etcd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
	"github.com/lenonet/leno/registry/flannel"
)

// tries is how often a change is tried when others change the same records at the same time.
const tries = 64

// parseNetwork parses the record of a network, nil when there is none.
func parseNetwork(name string, r *record) (registry.Network, error) {
	if err := registry.CheckNetworkName(name); err != nil {
		return registry.Network{}, err
	}
	if r == nil {
		return registry.Network{}, registry.ErrNetworkNotFound
	}
	n, err := flannel.ParseNetwork(name, r.value)
	if deleted, ok := errors.AsType[*registry.DeletedError](err); ok {
		deleted.CreateIndex, deleted.ModifyIndex = r.created, r.modified
	}
	n.CreateIndex, n.ModifyIndex, n.Foreign = r.created, r.modified, err == nil && !flannel.HasRecord(r.value)
	return n, err
}

// Network implements registry.Networks.
func (c *Client) Network(ctx context.Context, name string) (registry.Network, error) {
	r, err := c.own.get(ctx, c.own.keys.definition(name))
	if err != nil {
		return registry.Network{}, registry.Wrap(err, "network %s", name)
	}
	n, err := parseNetwork(name, r)
	if err == registry.ErrNetworkNotFound { // and no DeletedError, whose record exists
		err = fmt.Errorf("%w: there is no key %s", err, c.own.keys.definition(name))
	}
	return n, registry.Wrap(err, "network %s", name)
}

// PutNetwork implements registry.Networks. A network can be given at most maxKept reservations.
func (c *Client) PutNetwork(ctx context.Context, n registry.Network, kept ...registry.Reservation) (err error) {
	defer func() { err = registry.Wrap(err, "put network %s", n.Name) }()
	if n.Plan, err = n.Plan.Normalize(); err != nil {
		return err
	}
	value, err := flannel.FormatNetwork(n)
	if err != nil {
		return err
	}
	if kept, err = registry.CheckKept(n, kept); err != nil {
		return err
	}
	unanswered := false
	return claims.Retry(ctx, tries, func() error {
		err := c.own.putNetworkOnce(ctx, n, value, kept, unanswered)
		if !unanswered && errors.Is(err, errUnanswered) {
			unanswered, err = true, errRefused
		}
		return err
	})
}

// errUnanswered means that a transaction was sent and its outcome is not known.
var errUnanswered = errors.New("the answer was lost")

// putNetworkOnce makes one attempt. If an earlier one may have taken place, the definition may be there already; if
// not, at most one of the two takes place.
func (c *connection) putNetworkOnce(
	ctx context.Context, n registry.Network, value []byte, kept []registry.Reservation, unanswered bool,
) error {
	key := c.keys.definition(n.Name)
	t, err := c.mirror.Refresh(ctx)
	if err != nil {
		return err
	}
	if r := t.Get(key); unanswered && r != nil && bytes.Equal(r.value, value) {
		return nil
	}
	before := t.Modified(key)
	_, defined := parseNetwork(n.Name, t.Get(key))
	switch {
	case n.ModifyIndex == 0 && !errors.Is(defined, registry.ErrNetworkNotFound):
		return registry.ErrNetworkExists
	case n.ModifyIndex == registry.Absent && before == 0, n.ModifyIndex == 0:
	case n.ModifyIndex != before:
		return registry.ErrConflict
	}
	conditions, ops, err := c.reserve(t, n, kept, false)
	if err != nil {
		return err
	}
	conditions = append(conditions, unchanged(key, before))
	ops = append(ops, clientv3.OpPut(key, string(value)))
	marker := c.keys.marker(n.Name)
	if t.Get(marker) == nil {
		conditions = append(conditions, unchanged(marker, 0))
		ops = append(ops, clientv3.OpPut(marker, markerValue))
	}
	_, err = c.transact(ctx, conditions, nested(ops)...)
	if errors.Is(err, registry.ErrUnavailable) {
		return fmt.Errorf("%w: %w", errUnanswered, err)
	}
	return err
}

// markerValue explains the key to people who find it.
const markerValue = "leno keeps this key so that a network without leases can be told from one whose records were lost"

// DeleteNetwork implements registry.Networks.
func (c *Client) DeleteNetwork(ctx context.Context, name string) error {
	err := registry.CheckNetworkName(name)
	if err == nil {
		err = claims.Retry(ctx, tries, func() error { return c.own.deleteNetwork(ctx, name) })
	}
	return registry.Wrap(err, "delete network %s", name)
}

func (c *connection) deleteNetwork(ctx context.Context, name string) error {
	t, err := c.mirror.Refresh(ctx)
	if err != nil {
		return err
	}
	key, reservations := c.keys.definition(name), c.keys.reservations(name)
	conditions := []clientv3.Cmp{unchanged(key, t.Modified(key))}
	ops := []clientv3.Op{clientv3.OpDelete(reservations, clientv3.WithPrefix())}
	old, defined := parseNetwork(name, t.Get(key))
	switch {
	case !errors.Is(defined, registry.ErrNetworkNotFound), t.Get(key) == nil && len(t.Below(c.keys.leases(name))) > 0:
		value, err := flannel.FormatDeletion(registry.NewDeletion(name, old))
		if err != nil {
			return err
		}
		ops = append(ops, clientv3.OpPut(key, string(value)))
	case len(t.Below(reservations)) == 0:
		return defined
	}
	if _, err = c.transact(ctx, conditions, ops...); err == nil {
		c.purgeDeletions(ctx, t, name)
	}
	return err
}

// purgeDeletions removes the records of old deletions whose networks have no leases any more, except that of the
// network name. Those that it cannot remove stay until the next deletion.
func (c *connection) purgeDeletions(ctx context.Context, t *tree, name string) {
	deletions := c.networks(c.keys.definitions(t)).Deleted
	deletions = slices.DeleteFunc(deletions, func(d registry.Deletion) bool { return d.Network == name })
	var old []*record
	for _, d := range registry.OldDeletions(deletions) {
		if len(t.Below(c.keys.leases(d.Network))) == 0 {
			old = append(old, t.Get(c.keys.definition(d.Network)))
		}
	}
	for part := range slices.Chunk(old, partOps) {
		var conditions []clientv3.Cmp
		var ops []clientv3.Op
		for _, r := range part {
			conditions = append(conditions, unchanged(r.key, r.modified))
			ops = append(ops, clientv3.OpDelete(r.key))
		}
		if _, err := c.transact(ctx, conditions, ops...); err != nil {
			c.logger.Debug("records of old deletions stay", "records", len(part), "error", err)
		}
	}
}

// PutDeletion implements registry.Networks.
func (c *Client) PutDeletion(ctx context.Context, d registry.Deletion) error {
	err := registry.CheckNetworkName(d.Network)
	var value []byte
	if err == nil {
		value, err = flannel.FormatDeletion(d)
	}
	if err == nil {
		key := c.own.keys.definition(d.Network)
		_, err = c.own.transact(ctx, []clientv3.Cmp{unchanged(key, 0)}, clientv3.OpPut(key, string(value)))
	}
	if errors.Is(err, errRefused) {
		err = registry.ErrConflict
	}
	return registry.Wrap(err, "put back the deletion of network %s", d.Network)
}

// WatchNetworks implements registry.Networks.
func (c *Client) WatchNetworks(ctx context.Context, after uint64) (registry.NetworkSet, uint64, error) {
	t, index, err := c.own.watch(ctx, "networks", after, after == 0, c.own.keys.definitions)
	if err != nil {
		return registry.NetworkSet{}, 0, registry.Wrap(err, "watch networks")
	}
	return c.own.networks(c.own.keys.definitions(t)), index, nil
}

// definitions returns the records that define networks.
func (l layout) definitions(t *tree) (records []*record) {
	for _, r := range t.Below(l.prefix) {
		if _, ok := l.definedIn(r.key); ok {
			records = append(records, r)
		}
	}
	return records
}

func (c *connection) networks(records []*record) (set registry.NetworkSet) {
	for _, r := range records {
		name, _ := c.keys.definedIn(r.key)
		n, err := parseNetwork(name, r)
		set.Add(r.key, name, n, err)
	}
	slices.SortFunc(set.Networks, func(a, b registry.Network) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(set.Deleted, func(a, b registry.Deletion) int { return cmp.Compare(a.Network, b.Network) })
	return set
}
