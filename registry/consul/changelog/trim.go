package changelog

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// Trimmable returns the entries that were first seen at least age ago, oldest first. It returns none while these are
// less than half of all entries, because a deletion wakes every host, which then reads the remaining entries.
func (c *Cursor) Trimmable(now time.Time, age time.Duration) []string {
	young := func(key string) bool { return now.Sub(c.entries[key].seen) < age }
	keys := slices.DeleteFunc(slices.Collect(maps.Keys(c.entries)), young)
	if 2*len(keys) < len(c.entries) {
		return nil
	}
	slices.SortFunc(keys, func(x, y string) int {
		return cmp.Or(cmp.Compare(c.entries[x].index, c.entries[y].index), strings.Compare(x, y))
	})
	return keys
}

// TrimOps returns the transaction that deletes entries and raises the watermark to mark, so that a host that was away
// knows that it may have missed some. The last operation is the one on the watermark. Of two hosts that trim at the
// same time, one is refused.
func (c *Cursor) TrimOps(keys []string) (ops []*api.KVTxnOp, mark uint64) {
	mark = c.mark
	for _, key := range keys {
		mark = max(mark, c.entries[key].index)
		verb := api.KVDelete
		if len(key) > len(c.prefix)+longestName { // perhaps only the beginning of a longer key: registry.BoundedKey
			verb = api.KVDeleteTree
		}
		ops = append(ops, &api.KVTxnOp{Verb: verb, Key: key})
	}
	return append(ops, &api.KVTxnOp{
		Verb:  api.KVCAS,
		Key:   c.prefix + WatermarkName,
		Value: strconv.AppendUint(nil, mark, 10),
		Index: c.cas,
		Flags: c.cas, // writing the same value again would not change the directory's index
	}), mark
}

// Trimmed records that this client deleted entries and wrote the watermark mark at index cas.
func (c *Cursor) Trimmed(keys []string, mark, cas uint64) {
	for _, key := range keys {
		delete(c.entries, key)
	}
	c.mark, c.cas = mark, cas
}
