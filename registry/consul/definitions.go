package consul

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
	"github.com/lenonet/leno/registry/consul/keys"
	"github.com/lenonet/leno/registry/consul/transport"
)

// PutNetwork implements registry.Networks. The token needs the right to write below networks/ and, for a new network,
// whose marker and watermark it creates, also below leases/ and changes/.
func (ns networkStore) PutNetwork(ctx context.Context, n registry.Network, kept ...registry.Reservation) (err error) {
	defer func() { err = registry.Wrap(err, "put network %s", n.Name) }()
	if n.Plan, err = n.Plan.Normalize(); err != nil {
		return err
	}
	value, err := registry.FormatNetwork(n)
	if err != nil {
		return err
	}
	if kept, err = registry.CheckKept(n, kept); err != nil {
		return err
	}
	if len(kept) == 0 {
		return ns.write(ctx, n, value)
	}
	switch _, err := ns.Network(ctx, n.Name); {
	case err == nil:
		return registry.ErrNetworkExists
	case !errors.Is(err, registry.ErrNetworkNotFound):
		return err
	}
	k := newReserving(ns.kv, n, kept)
	if err := k.write(ctx); err != nil {
		return err
	}
	err = ns.write(ctx, n, value)
	if err == nil || errors.Is(err, registry.ErrUnavailable) || errors.Is(err, context.Canceled) {
		return err // it may have been written nevertheless
	}
	return errors.Join(err, k.undo(ctx))
}

// write stores value, the definition n.
func (ns networkStore) write(ctx context.Context, n registry.Network, value []byte) error {
	keys := ns.kv.keys
	// Markers come first, so a reader that sees the network can trust its trees.
	if _, err := ns.kv.ensureMarker(ctx, keys.Networks()); err != nil {
		return err
	}
	_, err := ns.kv.ensureMarker(ctx, keys.Leases(n.Name))
	if err == nil {
		err = ns.kv.ensureWatermark(ctx, keys.Changes(n.Name))
	}
	isNew := n.ModifyIndex == 0 || n.ModifyIndex == registry.Absent
	if err != nil && (isNew || !errors.Is(err, registry.ErrDenied)) {
		return err
	}
	key, version := keys.Network(n.Name), n.ModifyIndex
	switch version {
	case registry.Absent:
		version = 0 // Consul's value for the same
	case 0:
		pair, _, err := ns.kv.Get(ctx, key, transport.Read{})
		if err != nil {
			return err
		}
		_, err = parseNetworkPair(n.Name, pair)
		if deleted, ok := errors.AsType[*registry.DeletedError](err); ok {
			version = deleted.ModifyIndex
		}
	}
	opts, cancel := ns.kv.Write(ctx)
	defer cancel()
	ok, _, err := ns.kv.API.KV().CAS(&api.KVPair{Key: key, Value: value, ModifyIndex: version}, opts)
	switch {
	case err != nil:
		err = transport.Classify(err)
		// The write may have taken place nevertheless, and a caller that tries again must not fail because of its own
		// write.
		if errors.Is(err, registry.ErrUnavailable) {
			pair, _, readErr := ns.kv.Get(ctx, key, transport.Read{Consistent: true})
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

// DeleteNetwork implements registry.Networks. It needs the right to write below
// networks/ and reservations/, and to read leases/.
func (ns networkStore) DeleteNetwork(ctx context.Context, name string) (err error) {
	defer func() { err = registry.Wrap(err, "delete network %s", name) }()
	if err := registry.CheckNetworkName(name); err != nil {
		return err
	}
	if err := claims.Retry(ctx, tries, func() error { return ns.deleteOnce(ctx, name) }); err != nil {
		return err
	}
	ns.purgeDeletions(ctx)
	return nil
}

// deleteOnce makes one attempt to delete a network. A *transport.RefusedError means that the record was changed at the
// same time.
func (ns networkStore) deleteOnce(ctx context.Context, name string) error {
	if _, err := ns.kv.ensureMarker(ctx, ns.kv.keys.Networks()); err != nil {
		return err
	}
	key, prefix := ns.kv.keys.Network(name), ns.kv.keys.Reservations(name)
	pair, _, err := ns.kv.Get(ctx, key, transport.Read{Consistent: true})
	if err != nil {
		return err
	}
	ops := []*api.KVTxnOp{{Verb: api.KVCheckNotExists, Key: key}, {Verb: api.KVDeleteTree, Key: prefix}}
	leases := 0
	if pair == nil {
		leases, err = ns.countRecords(ctx, ns.kv.keys.Leases(name))
	} else {
		ops[0] = &api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: pair.ModifyIndex}
	}
	if err != nil {
		return err
	}
	old, defined := parseNetworkPair(name, pair)
	if errors.Is(defined, registry.ErrNetworkNotFound) && leases == 0 {
		if kept, err := ns.countRecords(ctx, prefix); err != nil || kept == 0 {
			return cmp.Or(err, defined)
		}
	} else {
		value, err := registry.FormatDeletion(registry.NewDeletion(name, old))
		if err != nil {
			return err
		}
		ops = append(ops, &api.KVTxnOp{Verb: api.KVSet, Key: key, Value: value})
	}
	_, err = ns.kv.Transact(ctx, ops...)
	return err
}

// PutDeletion implements registry.Networks. It needs the right to write below
// networks/.
func (ns networkStore) PutDeletion(ctx context.Context, d registry.Deletion) (err error) {
	defer func() { err = registry.Wrap(err, "put back the deletion of network %s", d.Network) }()
	if err := registry.CheckNetworkName(d.Network); err != nil {
		return err
	}
	value, err := registry.FormatDeletion(d)
	if err != nil {
		return err
	}
	if _, err := ns.kv.ensureMarker(ctx, ns.kv.keys.Networks()); err != nil {
		return err
	}
	created, err := ns.kv.EnsureKey(ctx, ns.kv.keys.Network(d.Network), string(value))
	if err == nil && !created {
		err = registry.ErrConflict
	}
	return err
}

// countRecords returns how many records there are below a prefix, usable or not.
func (ns networkStore) countRecords(ctx context.Context, prefix string) (int, error) {
	pairs, _, err := ns.kv.listSurely(ctx, prefix)
	return len(slices.DeleteFunc(pairs, func(p *api.KVPair) bool { return p.Key == prefix+keys.Marker })), err
}

// purgeDeletions removes the records of old deletions whose networks have no leases any more. A record that it cannot
// remove stays until the next deletion.
func (ns networkStore) purgeDeletions(ctx context.Context) {
	set, _, err := ns.list(ctx)
	if err != nil {
		ns.kv.logger.Debug("records of old deletions stay", "error", err)
		return
	}
	for _, d := range registry.OldDeletions(set.Deleted) {
		leases, err := ns.countRecords(ctx, ns.kv.keys.Leases(d.Network))
		if err == nil && leases == 0 {
			key := ns.kv.keys.Network(d.Network)
			_, err = ns.kv.Transact(ctx,
				&api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: d.ModifyIndex},
				&api.KVTxnOp{Verb: api.KVDelete, Key: key})
		}
		if err != nil {
			ns.kv.logger.Debug("record of an old deletion stays", "network", d.Network, "error", err)
		}
	}
}
