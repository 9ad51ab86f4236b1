package consul

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// readEntries reads the directory, or only its keys.
func (c *Client) readEntries(ctx context.Context, prefix string, r read, keysOnly bool) (reading, error) {
	if !keysOnly {
		pairs, index, err := c.list(ctx, prefix, r)
		if err != nil {
			return reading{}, err
		}
		return newReading(prefix, pairs, index), nil
	}
	opts, cancel := c.query(ctx, r)
	defer cancel()
	keys, meta, err := c.api.KV().Keys(prefix, "", opts)
	switch {
	case err != nil:
		return reading{}, fmt.Errorf("list keys of %s: %w", prefix, classify(err))
	case !meta.KnownLeader:
		return reading{}, fmt.Errorf("list keys of %s: %w", prefix, uncertain("consul knows no leader"))
	case meta.ResultsFilteredByACLs:
		return reading{}, fmt.Errorf("list keys of %s: %w", prefix, hidden(prefix))
	}
	a := reading{index: meta.LastIndex, keys: keys, bare: true, pairs: map[string]*api.KVPair{}}
	return a, nil
}

// complete adds the new entries and the watermark to a reading of keys.
func (c *Client) complete(ctx context.Context, d *directory, a *reading) error {
	if !a.bare {
		return nil
	}
	mark := d.prefix + watermarkName
	a.keys = slices.DeleteFunc(a.keys, func(key string) bool { return key == mark })
	for keys := range batches(append(d.unknown(a.keys), mark)) {
		var ops []*api.KVTxnOp
		for _, key := range keys {
			ops = append(ops, &api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: key})
		}
		results, err := c.transact(ctx, ops...)
		if err != nil {
			return fmt.Errorf("read entries of %s: %w", d.prefix, err)
		}
		for _, pair := range results {
			switch {
			case pair.ModifyIndex == 0: // deleted in between
			case pair.Key == mark:
				a.mark = pair
			default:
				a.pairs[pair.Key] = pair
			}
		}
	}
	a.bare = false
	return nil
}

// readMarks reads the watermark, the keys of all entries, and the new entries: enough to follow the directory from here
// on, if the leases are read next. For a client that knows nothing yet, the keys are enough when there are many
// entries.
func (c *Client) readMarks(ctx context.Context, d *directory) (reading, error) {
	key := d.prefix + watermarkName
	mark, _, err := c.get(ctx, key, read{})
	if errors.Is(err, registry.ErrDenied) {
		return reading{}, fmt.Errorf("%w: %w", registry.ErrUncertain, err)
	}
	if err != nil {
		return reading{}, err
	}
	a, err := c.readEntries(ctx, d.prefix, read{}, true)
	if err != nil {
		return reading{}, err
	}
	if d.index != 0 {
		err = c.complete(ctx, d, &a)
		return a, err
	}
	if len(a.keys) <= fewEntries {
		if a, err = c.readEntries(ctx, d.prefix, read{}, false); err != nil {
			return reading{}, err
		}
	}
	a.keys = slices.DeleteFunc(a.keys, func(k string) bool { return k == key })
	// The watermark was read before the keys, so any entry deleted in between is missing from them too.
	a.mark, a.bare = mark, false
	return a, nil
}
