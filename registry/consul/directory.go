package consul

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/changelog"
	"github.com/lenonet/leno/registry/consul/transport"
)

// fewEntries is the largest number of entries that are read with their values. When there are more, the keys are read
// first, which takes a tenth of the bytes, and then the new entries.
const fewEntries = 12

// readDirectory reads a directory of changes, or only its keys.
func (k *kv) readDirectory(
	ctx context.Context, prefix string, r transport.Read, keysOnly bool,
) (reading changelog.Reading, err error) {
	asked := time.Now()
	if keysOnly {
		var keys []string
		var index uint64
		keys, index, err = k.Keys(ctx, prefix, r)
		reading = changelog.NewKeysReading(prefix, keys, index)
	} else {
		var pairs api.KVPairs
		var index uint64
		pairs, index, err = k.List(ctx, prefix, r)
		reading = changelog.NewReading(prefix, pairs, index)
	}
	reading.Asked, reading.Answered, reading.Kept = asked, time.Now(), k.conf.Recent
	return reading, err
}

// completeReading adds the new entries and the watermark to a reading of keys.
func (k *kv) completeReading(ctx context.Context, cursor *changelog.Cursor, r *changelog.Reading) error {
	keys := cursor.Unread(*r)
	if len(keys) == 0 {
		return nil
	}
	records, err := k.GetEach(ctx, transport.Read{}, keys)
	if err != nil {
		return fmt.Errorf("read entries of %s: %w", cursor.Prefix(), err)
	}
	r.Complete(records)
	return nil
}

// readBeforeLeases reads the directory so that it can be followed from here on, if the leases are read next: the
// watermark, the keys of all entries, and the new entries. For a client that knows nothing yet, the keys are enough
// when there are many entries.
func (k *kv) readBeforeLeases(ctx context.Context, cursor *changelog.Cursor) (changelog.Reading, error) {
	prefix := cursor.Prefix()
	mark, _, err := k.Get(ctx, prefix+changelog.WatermarkName, transport.Read{})
	if errors.Is(err, registry.ErrDenied) {
		return changelog.Reading{}, fmt.Errorf("%w: %w", registry.ErrUncertain, err)
	}
	if err != nil {
		return changelog.Reading{}, err
	}
	r, err := k.readDirectory(ctx, prefix, transport.Read{}, true)
	if err != nil {
		return changelog.Reading{}, err
	}
	if cursor.Index() != 0 {
		err = k.completeReading(ctx, cursor, &r)
		return r, err
	}
	if r.Len() <= fewEntries {
		if r, err = k.readDirectory(ctx, prefix, transport.Read{}, false); err != nil {
			return changelog.Reading{}, err
		}
	}
	// The watermark was read before the keys, so any entry deleted in between is missing from them too.
	r.Mark = mark
	return r, nil
}
