package consul

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
	"github.com/lenonet/leno/registry/consul/changelog"
)

// leaseStore claims, keeps and watches the leases of networks.
type leaseStore struct {
	kv           *kv
	sessions     sessionStore
	networks     networkStore
	reservations reservationStore
	lost         *claims.LostLeases
	kept         *sync.Map // by network, the keptLease of the last claim, until leases are read
	followers    *followers
}

// keptLease is a lease that a claim has kept without a look at others, and the client that did so.
type keptLease struct {
	lease registry.Lease
	kv    *kv
}

// Renew implements registry.Leases. It is not a Raft write, so no index changes.
func (ls leaseStore) Renew(ctx context.Context, l registry.Lease) error {
	if l.Session == "" {
		return fmt.Errorf("renew lease %s: %w", l.Subnet(), registry.ErrLeaseLost)
	}
	entry, err := ls.sessions.renew(ctx, l.Session)
	if err != nil {
		return fmt.Errorf("renew lease %s: %w", l.Subnet(), err)
	}
	if entry == nil {
		return fmt.Errorf("renew lease %s: %w: session %s has ended", l.Subnet(), registry.ErrLeaseLost, l.Session)
	}
	return nil
}

// Release implements registry.Leases. The lease is released once the record is deleted; a session that cannot be
// destroyed ends by itself without renewals.
func (ls leaseStore) Release(ctx context.Context, l registry.Lease) error {
	key := ls.kv.keys.lease(l.Network, l.Subnet())
	if err := ls.deleteOwn(ctx, key, l); err != nil {
		return fmt.Errorf("release lease %s: %w", l.Subnet(), err)
	}
	if l.Session == "" {
		return nil
	}
	ls.sessions.discard(ctx, l.Session)
	return nil
}

// deleteOwn deletes the record if our session holds it, or if it is ours and lapsed, and otherwise leaves it alone.
func (ls leaseStore) deleteOwn(ctx context.Context, key string, l registry.Lease) error {
	if l.Session != "" {
		_, err := ls.kv.commit(ctx, l.Network, key, nil, 0,
			&api.KVTxnOp{Verb: api.KVCheckSession, Key: key, Session: l.Session},
			&api.KVTxnOp{Verb: api.KVDelete, Key: key})
		if !isRefused(err) {
			return err
		}
	}
	pair, _, err := ls.kv.get(ctx, key, read{consistent: true})
	if err != nil {
		return err
	}
	if pair == nil || pair.Session != "" || registry.NodeIDOf(pair.Value) != l.NodeID {
		return nil
	}
	_, err = ls.kv.commit(ctx, l.Network, key, nil, 0,
		&api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: pair.ModifyIndex},
		&api.KVTxnOp{Verb: api.KVDelete, Key: key})
	if isRefused(err) {
		return nil // another host's by now
	}
	return err
}

// Revoke implements registry.Leases.
func (ls leaseStore) Revoke(ctx context.Context, network string, subnet netip.Prefix) error {
	first, err := ls.networks.firstSubnet(ctx, network, subnet)
	if isRefused(err) {
		err = registry.ErrLeaseNotFound
	}
	if err == nil {
		key := ls.kv.keys.lease(network, first)
		for range revokeTries {
			if err = ls.revokeOnce(ctx, network, key); !isRefused(err) {
				break
			}
		}
	}
	if isRefused(err) {
		err = fmt.Errorf("%w: %w", registry.ErrConflict, err)
	}
	if err != nil {
		return fmt.Errorf("revoke lease %s of network %s: %w", subnet, network, err)
	}
	return nil
}

// revokeTries is the number of times a revocation is tried when the host writes its record at the same time.
const revokeTries = 5

// revokeOnce removes the current record at key.
func (ls leaseStore) revokeOnce(ctx context.Context, network, key string) error {
	pair, _, err := ls.kv.get(ctx, key, read{consistent: true})
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
	_, err = ls.kv.commit(ctx, network, key, value, changelog.FlagRevoked,
		&api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: pair.ModifyIndex},
		&api.KVTxnOp{Verb: api.KVDelete, Key: key})
	return err
}

// Expire implements registry.Leases.
func (ls leaseStore) Expire(ctx context.Context, l registry.Lease) error {
	if l.Held() {
		return fmt.Errorf("expire lease %s: %w: it is held", l.Subnet(), registry.ErrConflict)
	}
	key := ls.kv.keys.lease(l.Network, l.Subnet())
	_, err := ls.kv.commit(ctx, l.Network, key, nil, 0,
		&api.KVTxnOp{Verb: api.KVCheckIndex, Key: key, Index: l.ModifyIndex},
		&api.KVTxnOp{Verb: api.KVDelete, Key: key})
	if isRefused(err) {
		return fmt.Errorf("expire lease %s: %w: %w", l.Subnet(), registry.ErrConflict, err)
	}
	if err != nil {
		return fmt.Errorf("expire lease %s: %w", l.Subnet(), err)
	}
	return nil
}

// Restore implements registry.Leases.
func (ls leaseStore) Restore(ctx context.Context, n registry.Network, l registry.Lease, _ time.Duration) error {
	value, err := registry.FormatLease(l)
	if err != nil {
		return fmt.Errorf("restore lease %s: %w", l.Subnet(), err)
	}
	key, marker := ls.kv.keys.lease(n.Name, l.Subnet()), ls.kv.keys.leases(n.Name)+markerName
	found, _, err := ls.kv.get(ctx, marker, read{})
	if err == nil && found == nil {
		err = uncertain("%s is missing", marker)
	}
	if err == nil {
		_, err = ls.kv.commit(ctx, n.Name, key, value, changelog.FlagUnheld,
			&api.KVTxnOp{Verb: api.KVCheckIndex, Key: marker, Index: found.ModifyIndex},
			&api.KVTxnOp{Verb: api.KVCheckNotExists, Key: key},
			&api.KVTxnOp{Verb: api.KVSet, Key: key, Value: value})
	}
	if isRefused(err) {
		return fmt.Errorf("restore lease %s: %w: %w", l.Subnet(), registry.ErrConflict, err)
	}
	if err != nil {
		return fmt.Errorf("restore lease %s: %w", l.Subnet(), err)
	}
	return nil
}

// WatchLease implements registry.Leases. Unlike a list, a read of one key fails when the right is missing, so "no such
// lease" is certain.
func (ls leaseStore) WatchLease(
	ctx context.Context, n registry.Network, subnet netip.Prefix, after uint64,
) (registry.Lease, uint64, error) {
	slot, err := n.Plan.Slot(subnet)
	if err != nil {
		return registry.Lease{}, 0, fmt.Errorf("watch lease: %w", err)
	}
	key := ls.kv.keys.lease(n.Name, n.Plan.Subnets(slot)[0])
	var pair *api.KVPair
	index, err := ls.kv.awaitIndex(ctx, key, after, func(r read) (index uint64, err error) {
		pair, index, err = ls.kv.getSurely(ctx, key, r)
		return index, err
	})
	if err != nil {
		return registry.Lease{}, 0, fmt.Errorf("watch lease %s: %w", subnet, err)
	}
	if pair == nil {
		reason, err := ls.kv.reasonGone(ctx, n.Name, key)
		if err != nil {
			ls.kv.doubts.add(key)
			return registry.Lease{}, 0, fmt.Errorf("watch lease %s: %w", subnet, err)
		}
		return registry.Lease{}, index, fmt.Errorf("lease %s of network %s: %w", subnet, n.Name, reason)
	}
	l, err := parseLease(n, ls.kv.keys.leases(n.Name), pair)
	if err != nil {
		return registry.Lease{}, index, fmt.Errorf("lease %s: %w", key, err)
	}
	return l, index, nil
}
