package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	claims "github.com/lenonet/leno/registry/claim"
)

// RefusedError is the error of a transaction that Consul rolled back because a check or a lock in it did not hold.
type RefusedError struct{ Reasons []string }

func (e *RefusedError) Error() string {
	return "consul rolled the transaction back: " + strings.Join(e.Reasons, "; ")
}

func (e *RefusedError) Unwrap() error { return claims.ErrOutdated }

// IsRefused reports whether err is a *RefusedError.
func IsRefused(err error) bool {
	_, ok := errors.AsType[*RefusedError](err)
	return ok
}

// MaxGets is the number of keys that one transaction reads; Consul accepts 128 operations.
const MaxGets = 120

// maxNames limits the names in one transaction, in bytes. The body of a transaction may have 512 KiB, in which
// unprintable characters take six times their length.
const maxNames = 48 << 10

// Batches splits keys, which may have any name, into parts that each fit into one transaction.
func Batches(keys []string) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		first, size := 0, 0
		for i, key := range keys {
			if i > first && (i-first == MaxGets || size+len(key) > maxNames) {
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

// GetEach reads keys, which may have any name. Keys that do not exist have ModifyIndex 0 in the result. A transaction
// silently leaves out those that the token may not read, which is an error.
func (c *Client) GetEach(ctx context.Context, r Read, keys []string) ([]*api.KVPair, error) {
	var out []*api.KVPair
	for part := range Batches(keys) {
		var ops []*api.KVTxnOp
		for _, key := range part {
			ops = append(ops, &api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: key})
		}
		records, err := c.TransactWith(ctx, r, ops...)
		if err != nil {
			return nil, err
		}
		for i, key := range part {
			if i >= len(records) || records[i].Key != registry.BoundedKey(key) {
				return nil, Hidden(key[:strings.LastIndex(key, "/")+1])
			}
		}
		out = append(out, records...)
	}
	return out, nil
}

// Transact runs one transaction. If a check or lock does not hold, it returns a *RefusedError. After any other error
// except ErrDenied the transaction may have taken place.
func (c *Client) Transact(ctx context.Context, ops ...*api.KVTxnOp) ([]*api.KVPair, error) {
	return c.TransactWith(ctx, Read{}, ops...)
}

// TransactWith is Transact with options that matter if all operations only read.
func (c *Client) TransactWith(ctx context.Context, r Read, ops ...*api.KVTxnOp) (results []*api.KVPair, err error) {
	var ok bool
	var resp *api.KVTxnResponse
	a := answer{empty: "{}", parse: func(d *json.Decoder) (err error) { results, err = parseResults(d); return err }}
	err = c.ask(ctx, r, a, func(opts *api.QueryOptions) (err error) {
		ok, resp, _, err = c.API.KV().Txn(ops, opts)
		return err
	})
	if err != nil {
		return nil, err
	}
	if ok {
		return results, nil
	}
	refused := &RefusedError{}
	for _, e := range resp.Errors {
		refused.Reasons = append(refused.Reasons, e.What)
	}
	if IsDenied(refused.Error()) {
		return nil, fmt.Errorf("%w: %s", registry.ErrDenied, refused) // not a *RefusedError: nothing was decided
	}
	return nil, refused
}
