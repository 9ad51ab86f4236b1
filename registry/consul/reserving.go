package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/keys"
	"github.com/lenonet/leno/registry/consul/transport"
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

// reserving writes reservations, and deletes them if there is a conflict, or if their network is new and cannot be
// defined. They may not fit into one transaction, and other callers may write the same ones at the same time. So each
// record has the mark of the caller that requested it last, and only that caller deletes it, unless the record existed
// before. A caller therefore also marks records that already exist: otherwise the caller that wrote them could delete
// them again.
type reserving struct {
	kv      *kv
	network registry.Network
	force   bool                            // also where another live host holds the slot
	single  bool                            // there is one: if it exists already, it stays as it is
	kept    map[string]registry.Reservation // by key
	mark    uint64                          // the records' flags, unique to this caller
	hosts   map[[2]string]string            // keys by host
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
		hosts:   map[[2]string]string{},
		asked:   map[string]uint64{},
		before:  map[string]bool{},
	}
	for _, r := range kept {
		key := kv.keys.Reservation(n.Name, r.Subnet)
		k.kept[key], k.hosts[hostOf(r)] = r, key
	}
	return k
}

// hostOf returns what tells the hosts of reservations apart.
func hostOf(r registry.Reservation) [2]string { return [2]string{r.Node, strings.ToLower(r.NodeID)} }

// write returns when all reservations have been written and, in a read after that, nothing conflicted with them. On an
// error it undoes what it has written.
func (k *reserving) write(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, k.undo(ctx))
		}
	}()
	for range reserveTries {
		ops, err := k.missing(ctx)
		if err != nil || len(ops) == 0 {
			return err
		}
		if err := k.transact(ctx, ops); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: reservations are written by others again and again", registry.ErrConflict)
}

// transact runs operations in as many transactions as they need, until one is refused because another caller wrote at
// the same time.
func (k *reserving) transact(ctx context.Context, ops []*api.KVTxnOp) error {
	for part := range slices.Chunk(ops, txnWrites) {
		k.began = true
		results, err := k.kv.Transact(ctx, part...)
		if transport.IsRefused(err) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, pair := range results {
			k.asked[pair.Key] = pair.CreateIndex
		}
	}
	return nil
}

// missing returns the writes that are still needed. It returns ErrReserved or ErrHeld when there is a conflict.
func (k *reserving) missing(ctx context.Context) ([]*api.KVTxnOp, error) {
	there, err := k.beside(ctx)
	if err != nil {
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
			if k.before[key], op.Index = true, pair.ModifyIndex; k.single {
				continue
			}
		}
		ops = append(ops, op)
	}
	return ops, k.held(ctx)
}

// beside returns the network's reservations by key, if none of them conflicts with a wanted one.
func (k *reserving) beside(ctx context.Context) (map[string]*api.KVPair, error) {
	prefix := k.kv.keys.Reservations(k.network.Name)
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
				return nil, fmt.Errorf("%w: the record at %s is unusable", registry.ErrReserved, pair.Key)
			}
			continue
		}
		for _, key := range []string{pair.Key, k.hosts[hostOf(other)]} {
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

// held returns ErrHeld when a live host holds a slot that is now reserved for another host. A network that is not
// defined yet may have such a host from an earlier one of the same name.
func (k *reserving) held(ctx context.Context) (err error) {
	prefix := k.kv.keys.Leases(k.network.Name)
	byLease := map[string]registry.Reservation{}
	for key, r := range k.kept {
		if !k.before[key] && !k.force {
			byLease[prefix+keys.Last(key)] = r
		}
	}
	var pairs api.KVPairs
	if len(byLease) > transport.MaxGets {
		pairs, _, err = k.kv.listSurely(ctx, prefix)
	} else {
		pairs, err = k.kv.GetEach(ctx, transport.Read{Consistent: true}, slices.Collect(maps.Keys(byLease)))
	}
	if err != nil {
		return err
	}
	for _, pair := range pairs {
		r, wanted := byLease[pair.Key]
		if !wanted || pair.ModifyIndex == 0 {
			continue
		}
		l, err := parseLease(k.network, prefix, pair)
		if err == nil {
			err = r.Hindered(l)
		} else {
			err = registry.HinderedUnread(pair.Key, pair.Session)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// undo deletes the records that only this call has requested, even if ctx has ended, which may be the reason.
func (k *reserving) undo(ctx context.Context) (err error) {
	if !k.began || k.single && len(k.asked) == 0 {
		return nil
	}
	defer func() { err = registry.Wrap(err, "what was reserved before that stays") }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	for range reserveTries {
		pairs, _, err := k.kv.listSurely(ctx, k.kv.keys.Reservations(k.network.Name))
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
		if err := k.transact(ctx, ops); err != nil {
			return err
		}
	}
	return registry.ErrConflict
}
