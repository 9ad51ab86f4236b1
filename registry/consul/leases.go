package consul

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
	"github.com/lenonet/leno/registry/consul/changelog"
	"github.com/lenonet/leno/registry/consul/keys"
	"github.com/lenonet/leno/registry/consul/sessions"
	"github.com/lenonet/leno/registry/consul/transport"
)

// leaseStore claims, keeps and watches the leases of networks.
type leaseStore struct {
	kv           *kv
	sessions     sessions.Store
	networks     networkStore
	reservations reservationStore
	*shared
}

// Renew implements registry.Leases. Without a second lease, it is not a Raft write, so no index changes.
func (ls leaseStore) Renew(ctx context.Context, l registry.Lease) (err error) {
	defer func() { err = registry.Wrap(err, "renew lease %s", l.Subnet()) }()
	if l.Session == "" {
		return registry.ErrLeaseLost
	}
	entry, err := ls.sessions.Renew(ctx, l.Session)
	if err == nil && entry == nil {
		err = fmt.Errorf("%w: session %s has ended", registry.ErrLeaseLost, l.Session)
	}
	if err == nil {
		ls.dropSeconds(ctx, l)
	}
	return err
}

// Release implements registry.Leases. The lease is released once the record is deleted; a session that cannot be
// destroyed ends by itself without renewals.
func (ls leaseStore) Release(ctx context.Context, l registry.Lease) error {
	if err := ls.deleteOwn(ctx, ls.kv.keys.Lease(l.Network, l.Subnet()), l); err != nil {
		return fmt.Errorf("release lease %s: %w", l.Subnet(), err)
	}
	if l.Session != "" {
		ls.sessions.Discard(ctx, l.Session)
	}
	return nil
}

// deleteOwn deletes the record if our session holds it, or if it is ours and lapsed, and otherwise leaves it alone.
func (ls leaseStore) deleteOwn(ctx context.Context, key string, l registry.Lease) error {
	if l.Session != "" {
		_, err := ls.kv.commit(ctx, l.Network, key, nil, 0,
			&api.KVTxnOp{Verb: api.KVCheckSession, Key: key, Session: l.Session},
			&api.KVTxnOp{Verb: api.KVDelete, Key: key})
		if !transport.IsRefused(err) {
			return err
		}
	}
	pair, _, err := ls.kv.Get(ctx, key, transport.Read{Consistent: true})
	if err != nil {
		return err
	}
	if pair == nil || pair.Session != "" || registry.NodeIDOf(pair.Value) != l.NodeID {
		return nil
	}
	err = ls.deleteRecord(ctx, l.Network, key, pair.ModifyIndex, nil, 0)
	if transport.IsRefused(err) {
		return nil // another host's by now
	}
	return err
}

// deleteRecord deletes a record if it exists and has not been modified since an index, and if the conditions hold. It
// is refused otherwise.
func (ls leaseStore) deleteRecord(
	ctx context.Context, network, key string, index uint64, value []byte, flags uint64, conditions ...*api.KVTxnOp,
) error {
	_, err := ls.kv.commit(ctx, network, key, value, flags, append(conditions,
		&api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: index},
		&api.KVTxnOp{Verb: api.KVDelete, Key: key})...)
	return err
}

// Revoke implements registry.Leases.
func (ls leaseStore) Revoke(ctx context.Context, network string, subnet netip.Prefix) (err error) {
	defer func() { err = registry.Wrap(err, "revoke lease %s of network %s", subnet, network) }()
	first, err := ls.networks.firstSubnet(ctx, network, subnet)
	if transport.IsRefused(err) {
		return registry.ErrLeaseNotFound
	}
	if err != nil {
		return err
	}
	return claims.Retry(ctx, tries, func() error { return ls.revokeOnce(ctx, network, ls.kv.keys.Lease(network, first)) })
}

// revokeOnce removes the current record at key.
func (ls leaseStore) revokeOnce(ctx context.Context, network, key string) error {
	pair, _, err := ls.kv.Get(ctx, key, transport.Read{Consistent: true})
	if err != nil {
		return err
	}
	if pair == nil {
		return registry.ErrLeaseNotFound
	}
	value := pair.Value
	if len(value) > registry.MaxRecordSize {
		value = nil
	}
	return ls.deleteRecord(ctx, network, key, pair.ModifyIndex, value, changelog.FlagRevoked)
}

// Expire implements registry.Leases.
func (ls leaseStore) Expire(ctx context.Context, l registry.Lease) (err error) {
	defer func() { err = registry.Wrap(err, "expire lease %s", l.Subnet()) }()
	if l.Held() {
		return fmt.Errorf("%w: it is held", registry.ErrConflict)
	}
	key := ls.kv.keys.Lease(l.Network, l.Subnet())
	return conflict(ls.deleteRecord(ctx, l.Network, key, l.ModifyIndex, nil, 0))
}

// Restore implements registry.Leases.
func (ls leaseStore) Restore(ctx context.Context, n registry.Network, l registry.Lease, _ time.Duration) (err error) {
	defer func() { err = registry.Wrap(err, "restore lease %s", l.Subnet()) }()
	value, err := registry.FormatLease(l)
	if err != nil {
		return err
	}
	key, marker := ls.kv.keys.Lease(n.Name, l.Subnet()), ls.kv.keys.Leases(n.Name)+keys.Marker
	found, _, err := ls.kv.Get(ctx, marker, transport.Read{})
	if err == nil && found == nil {
		err = transport.Uncertain("%s is missing", marker)
	}
	if err != nil {
		return err
	}
	_, err = ls.kv.commit(ctx, n.Name, key, value, changelog.FlagUnheld,
		&api.KVTxnOp{Verb: api.KVCheckIndex, Key: marker, Index: found.ModifyIndex},
		&api.KVTxnOp{Verb: api.KVCheckNotExists, Key: key},
		&api.KVTxnOp{Verb: api.KVSet, Key: key, Value: value})
	return conflict(err)
}

// WatchLease implements registry.Leases. Unlike a list, a read of one key fails when the right is missing, so "no such
// lease" is certain.
func (ls leaseStore) WatchLease(
	ctx context.Context, n registry.Network, subnet netip.Prefix, after uint64,
) (l registry.Lease, index uint64, err error) {
	defer func() { err = registry.Wrap(err, "lease %s of network %s", subnet, n.Name) }()
	slot, err := n.Plan.Slot(subnet)
	if err != nil {
		return l, 0, err
	}
	key := ls.kv.keys.Lease(n.Name, n.Plan.Subnets(slot)[0])
	var pair *api.KVPair
	index, err = ls.kv.AwaitIndex(ctx, key, after, func(r transport.Read) (index uint64, err error) {
		if pair, index, err = ls.kv.Get(ctx, key, r); err == nil && pair == nil {
			// A newly elected leader has no records before it has applied its log.
			pair, index, err = ls.kv.Get(ctx, key, transport.Read{Consistent: true})
		}
		return index, err
	})
	if err != nil {
		return l, 0, err
	}
	if pair == nil {
		reason, err := ls.kv.reasonGone(ctx, n.Name, key)
		if err != nil {
			ls.kv.Doubts.Add(key)
			return l, 0, err
		}
		return l, index, reason
	}
	l, err = parseLease(n, ls.kv.keys.Leases(n.Name), pair)
	return l, index, err
}

// commit runs the operations that write the lease at key or, with an empty value or FlagRevoked, remove it. It adds an
// entry for the watchers in the same transaction. The errors are those of transact.
func (k *kv) commit(
	ctx context.Context, network, key string, value []byte, flags uint64, ops ...*api.KVTxnOp,
) ([]*api.KVPair, error) {
	entry := changelog.WriteOp(k.keys.Changes(network), keys.Last(key), value, flags)
	return k.Transact(ctx, append(ops, entry)...)
}

// reasonGone returns the reason why a lease has no record: a *RevokedError when Revoke removed it, as far as the
// directory reaches back, and ErrLeaseNotFound otherwise. err is set when the directory cannot be read.
func (k *kv) reasonGone(ctx context.Context, network, key string) (reason, err error) {
	prefix := k.keys.Changes(network)
	pairs, _, err := k.List(ctx, prefix, transport.Read{Consistent: true})
	if err != nil {
		return nil, err
	}
	var last changelog.Change
	for _, pair := range pairs {
		ch, ok := changelog.Parse(prefix, pair)
		if ok && ch.Subnet == keys.Last(key) && ch.Index >= last.Index {
			last = ch
		}
	}
	if last.Has(changelog.FlagRevoked) {
		return &registry.RevokedError{NodeID: last.NodeID}, nil
	}
	return registry.ErrLeaseNotFound, nil
}
