package consul

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

const (
	// txnWrites is the number of keys that one transaction writes: the most that Consul accepts.
	txnWrites = 128
	// reserveTries is the number of times that the reservations of a network are read again after other callers wrote
	// some of them at the same time.
	reserveTries = 20
	// undoTime is the time limit for undoing writes, with thousands of records.
	undoTime = 15 * time.Second
)

// undoing returns a context for undoing writes for a caller whose own context may have ended, which may be the reason
// for undoing them.
func undoing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), undoTime)
}

// reserving writes the reservations of a network that is not defined yet, and deletes them if the network cannot be
// defined. They do not fit into one transaction, and other callers may write the same ones at the same time. So each
// record has the mark of the caller that requested it last, and only that caller deletes it, unless the record existed
// before. A caller therefore also marks records that already exist: otherwise the caller that wrote them could delete
// them again.
type reserving struct {
	kv      *kv
	network registry.Network
	kept    map[string]registry.Reservation // by key
	mark    uint64                          // the records' flags, unique to this caller
	hosts   map[string]string               // keys by registry.Reservation.Host
	asked   map[string]uint64               // CreateIndex of the records that were given the mark
	before  map[string]bool                 // records that existed before
	began   bool                            // some records may have been written
}

func newReserving(kv *kv, n registry.Network, kept []registry.Reservation) *reserving {
	k := &reserving{
		kv:      kv,
		network: n,
		kept:    map[string]registry.Reservation{},
		mark:    1 + rand.Uint64N(1<<53-1), // 53 bits survive any JSON
		hosts:   map[string]string{},
		asked:   map[string]uint64{},
		before:  map[string]bool{},
	}
	for _, r := range kept {
		key := kv.keys.reservation(n.Name, r.Subnet)
		k.kept[key], k.hosts[r.Host()] = r, key
	}
	return k
}

// write returns when all reservations have been written and, in a read after that, no other record conflicted with
// them.
func (k *reserving) write(ctx context.Context) error {
	for range reserveTries {
		ops, err := k.missing(ctx)
		if err != nil || len(ops) == 0 {
			return err
		}
		for part := range slices.Chunk(ops, txnWrites) {
			k.began = true
			results, err := k.kv.transact(ctx, part...)
			if isRefused(err) {
				break // another caller wrote at the same time
			}
			if err != nil {
				return err
			}
			for _, pair := range results {
				k.asked[pair.Key] = pair.CreateIndex
			}
		}
	}
	return fmt.Errorf("%w: reservations are written by others again and again", registry.ErrConflict)
}

// missing returns the writes that are still needed. It returns ErrReserved or ErrHeld when there is a conflict.
func (k *reserving) missing(ctx context.Context) ([]*api.KVTxnOp, error) {
	there, err := k.beside(ctx)
	if err != nil {
		return nil, err
	}
	if err := k.held(ctx); err != nil {
		return nil, err
	}
	var ops []*api.KVTxnOp
	for _, key := range slices.Sorted(maps.Keys(k.kept)) {
		value, err := registry.FormatReservation(k.kept[key])
		if err != nil {
			return nil, err
		}
		op := &api.KVTxnOp{Verb: api.KVCAS, Key: key, Value: value, Flags: k.mark} // index 0 creates only
		if pair := there[key]; pair != nil {
			if k.asked[key] == pair.CreateIndex {
				continue // callers that have requested it since do not change it
			}
			k.before[key], op.Index = true, pair.ModifyIndex
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// beside returns the network's reservations by key, if none of them conflicts with a wanted one.
func (k *reserving) beside(ctx context.Context) (map[string]*api.KVPair, error) {
	prefix := k.kv.keys.reservations(k.network.Name)
	pairs, _, err := k.kv.listSurely(ctx, prefix)
	if err != nil {
		return nil, err
	}
	there := map[string]*api.KVPair{}
	for _, pair := range pairs {
		there[pair.Key] = pair
		other, err := registry.ParseReservation(k.network, pair.Key[len(prefix):], pair.Value)
		if err != nil {
			if _, wanted := k.kept[pair.Key]; wanted {
				return nil, fmt.Errorf("%w: an unusable record stands at %s", registry.ErrReserved, pair.Key)
			}
			continue
		}
		for _, key := range []string{pair.Key, k.hosts[other.Host()]} {
			r, wanted := k.kept[key]
			asked := k.asked[key]
			if !wanted || key != pair.Key && asked != 0 && asked < pair.CreateIndex {
				continue // of two for one host, the later one is undone
			}
			if _, err := r.Beside(other); err != nil {
				return nil, err
			}
		}
	}
	return there, nil
}

// held returns ErrHeld when a live host holds a slot reserved for another host. Such a host had the slot in an earlier
// network of the same name.
func (k *reserving) held(ctx context.Context) error {
	prefix := k.kv.keys.leases(k.network.Name)
	pairs, _, err := k.kv.listSurely(ctx, prefix)
	if err != nil {
		return err
	}
	for _, pair := range pairs {
		if r, wanted := k.kept[k.kv.keys.reservations(k.network.Name)+pair.Key[len(prefix):]]; wanted {
			if err := hinderedBy(k.network, r, prefix, pair); err != nil {
				return err
			}
		}
	}
	return nil
}

// hinderedBy returns ErrHeld when the lease in pair, a record below prefix, is that of another live host than the
// reservation's.
func hinderedBy(n registry.Network, r registry.Reservation, prefix string, pair *api.KVPair) error {
	l, err := parseLease(n, prefix, pair)
	if err != nil {
		return registry.HinderedUnread(pair.Key, pair.Session)
	}
	return r.Hindered(l)
}

// undo deletes the records that only this call has requested.
func (k *reserving) undo(ctx context.Context) error {
	if !k.began {
		return nil
	}
	ctx, cancel := undoing(ctx)
	defer cancel()
	err := k.takeBack(ctx)
	if err != nil {
		err = fmt.Errorf("what was reserved before that stays: %w", err)
	}
	return err
}

func (k *reserving) takeBack(ctx context.Context) error {
	for range reserveTries {
		pairs, _, err := k.kv.listSurely(ctx, k.kv.keys.reservations(k.network.Name))
		if err != nil {
			return err
		}
		var ops []*api.KVTxnOp
		for _, pair := range pairs {
			if pair.Flags == k.mark && !k.before[pair.Key] {
				ops = append(ops, &api.KVTxnOp{Verb: api.KVDeleteCAS, Key: pair.Key, Index: pair.ModifyIndex})
			}
		}
		if len(ops) == 0 {
			return nil
		}
		for part := range slices.Chunk(ops, txnWrites) {
			if _, err := k.kv.transact(ctx, part...); isRefused(err) {
				break // another caller has requested one since
			} else if err != nil {
				return err
			}
		}
	}
	return registry.ErrConflict
}
