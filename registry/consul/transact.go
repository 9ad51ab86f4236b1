package consul

import (
	"context"
	"fmt"
	"iter"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/transport"
)

// txnGets is the number of keys that one transaction reads; Consul accepts 128 operations.
const txnGets = 120

// maxNames limits the names in one transaction, in bytes. The body of a transaction may have 512 KiB, in which
// unprintable characters take six times their length.
const maxNames = 48 << 10

// batches splits keys, which may have any name, into parts that each fit into one transaction.
func batches(keys []string) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		first, size := 0, 0
		for i, key := range keys {
			if i > first && (i-first == txnGets || size+len(key) > maxNames) {
				if !yield(keys[first:i]) {
					return
				}
				first, size = i, 0
			}
			size += len(key)
		}
		if first < len(keys) {
			yield(keys[first:])
		}
	}
}

// getEach reads keys, which may have any name. Keys that do not exist have ModifyIndex 0 in the result.
func (k *kv) getEach(ctx context.Context, r read, keys []string) ([]*api.KVPair, error) {
	var out []*api.KVPair
	for part := range batches(keys) {
		var ops []*api.KVTxnOp
		for _, key := range part {
			ops = append(ops, &api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: key})
		}
		records, err := k.transactWith(ctx, r, ops...)
		if err != nil {
			return nil, err
		}
		out = append(out, records...)
	}
	return out, nil
}

// transact runs one transaction. If a check or lock does not hold, it returns a *refusedError. After any other error
// except ErrDenied the transaction may have taken place.
func (k *kv) transact(ctx context.Context, ops ...*api.KVTxnOp) ([]*api.KVPair, error) {
	return k.transactWith(ctx, read{}, ops...)
}

// transactWith is transact with options that matter if all operations only read.
func (k *kv) transactWith(ctx context.Context, r read, ops ...*api.KVTxnOp) ([]*api.KVPair, error) {
	opts, cancel := k.query(ctx, r)
	defer cancel()
	ok, resp, _, err := k.API.KV().Txn(ops, opts)
	if err != nil {
		return nil, transport.Classify(err)
	}
	if ok {
		return resp.Results, nil
	}
	refused := &refusedError{}
	for _, e := range resp.Errors {
		refused.reasons = append(refused.reasons, e.What)
	}
	if transport.IsDenied(refused.Error()) {
		return nil, fmt.Errorf("%w: %s", registry.ErrDenied, refused) // not a *refusedError: nothing was decided
	}
	return nil, refused
}

// tries is the number of times that a change is tried when another client changes the same record at the same time.
const tries = 5

// tryAgain repeats a change while it is refused, a few times. The error is ErrConflict then.
func tryAgain(change func() error) (err error) {
	for range tries {
		if err = change(); !isRefused(err) {
			return err
		}
	}
	return conflict(err)
}

// conflict returns err as an ErrConflict if it is a *refusedError.
func conflict(err error) error {
	if isRefused(err) {
		return fmt.Errorf("%w: %w", registry.ErrConflict, err)
	}
	return err
}
