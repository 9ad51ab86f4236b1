package consul

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/lenonet/leno/registry/consul/changelog"
)

// verified returns the news that the records do not contradict. It reads the records for news that remove a record, and
// for news that were written later than their record: an entry that was restored from a backup, or forged, must not
// cost a live host its routes. Such news are rare.
func (c *Client) verified(ctx context.Context, t *tree, news []changelog.Change) ([]changelog.Change, error) {
	last := map[string]int{} // by subnet: the last change of the same read counts
	for i, ch := range news {
		last[ch.Subnet] = i
	}
	asked := map[string]int{} // index of the change, by the record's key
	var keys []string
	for i, ch := range news {
		key := t.prefix + ch.Subnet
		if last[ch.Subnet] != i || ch.Index <= t.listed || !ch.IsRemoval() && !ch.Has(changelog.FlagManual) {
			continue
		}
		if ch.IsRemoval() && t.known[key] == nil {
			continue
		}
		asked[key] = i
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return news, nil
	}
	denied := map[string]bool{} // by subnet
	records, err := c.getEach(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("verify changes of %s: %w", t.prefix, err)
	}
	for _, pair := range records {
		ch := news[asked[pair.Key]]
		there, removed := pair.ModifyIndex != 0, ch.IsRemoval()
		// Any later change of the record has an entry of its own, or is found by an audit.
		denied[ch.Subnet] = there == removed || there && !bytes.Equal(pair.Value, ch.Value)
		if there && removed && pair.CreateIndex < ch.Index {
			c.logger.Warn("entry says that a lease is gone which is not", "key", pair.Key)
		}
	}
	return slices.DeleteFunc(slices.Clone(news), func(ch changelog.Change) bool { return denied[ch.Subnet] }), nil
}
