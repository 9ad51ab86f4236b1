package consul

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

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

// verified returns the news that the records do not contradict. It reads the records for news that remove a record, and
// for news that were written later than their record: an entry that was restored from a backup, or forged, must not
// cost a live host its routes. Such news are rare.
func (c *Client) verified(ctx context.Context, t *tree, news []change) ([]change, error) {
	last := map[string]int{} // by subnet: the last change of the same read counts
	for i, ch := range news {
		last[ch.subnet] = i
	}
	asked := map[string]int{} // index of the change, by the record's key
	var keys []string
	for i, ch := range news {
		key := t.prefix + ch.subnet
		if last[ch.subnet] != i || ch.index <= t.listed || len(ch.value) > 0 && ch.flags&flagFound == 0 {
			continue
		}
		if len(ch.value) == 0 && t.known[key] == nil {
			continue
		}
		asked[key] = i
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return news, nil
	}
	denied := map[string]bool{} // by subnet
	for part := range batches(keys) {
		var ops []*api.KVTxnOp
		for _, key := range part {
			ops = append(ops, &api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: key})
		}
		records, err := c.transact(ctx, ops...)
		if err != nil {
			return nil, fmt.Errorf("verify changes of %s: %w", t.prefix, err)
		}
		for _, pair := range records {
			ch := news[asked[pair.Key]]
			there, removed := pair.ModifyIndex != 0, len(ch.value) == 0
			// Any later change of the record has an entry of its own, or is found by an audit.
			denied[ch.subnet] = there == removed || there && !bytes.Equal(pair.Value, ch.value)
			if there && removed && pair.CreateIndex < ch.index {
				c.logger.Warn("entry says that a lease is gone which is not", "key", pair.Key)
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(news), func(ch change) bool { return denied[ch.subnet] }), nil
}

// tellable reports whether an entry about a record can be written and is read correctly. No entry is needed for an
// unusable record: hosts that must know of it find it by themselves.
func tellable(name string, pair *api.KVPair) bool {
	switch {
	case !entryName.MatchString("000000000000000000000000_" + name):
		return false
	case pair.ModifyIndex != 0 && len(pair.Value) == 0: // would say that it is gone
		return false
	}
	return len(pair.Value) <= registry.MaxRecordSize
}
