package consul

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/consul/changelog"
	"github.com/lenonet/leno/registry/consul/transport"
)

// news is what happened since the last reading of the directory.
type news struct {
	changes []belief.Change
	records map[string]*belief.Record // that had to be read: see belief.Belief.Unproven
}

// changesAtLeader returns the changes up to the leader's current state. If the answer shows that the store was set
// back, it records that for the next read of the leases. The read is consistent, because a default read from a newly
// elected leader looks like a set-back.
func (f *follower) changesAtLeader(ctx context.Context, kv *kv) (news, changelog.Reason, error) {
	r, err := kv.readDirectory(ctx, f.changes, transport.Read{Consistent: true}, f.cursor.Len() > fewEntries)
	if err != nil {
		return news{}, "", err
	}
	found, reason, err := f.changesSince(ctx, kv, r)
	f.evidence.setBack = f.evidence.setBack || reason.IsSetBack()
	return found, reason, err
}

// changesSince completes a reading with the new entries, moves the cursor to it, and returns the changes since the last
// one.
func (f *follower) changesSince(ctx context.Context, kv *kv, r changelog.Reading) (news, changelog.Reason, error) {
	err := kv.completeReading(ctx, &f.cursor, &r)
	if err != nil {
		return news{}, "", err
	}
	entries, reason := f.cursor.Advance(r, time.Now())
	if reason != "" {
		return news{}, reason, nil
	}
	found := news{changes: f.changesOf(entries)}
	if found.records, err = f.verify(ctx, kv, found.changes); err != nil {
		f.cursor.Reset() // these changes are lost: the leases are read again
		return news{}, "", err
	}
	f.schedule.failures = 0
	return found, "", nil
}

// verify reads the records of the few changes that must not be believed without it.
func (f *follower) verify(
	ctx context.Context, kv *kv, changes []belief.Change,
) (map[string]*belief.Record, error) {
	unproven := f.belief.Unproven(changes)
	if len(unproven) == 0 {
		return nil, nil
	}
	pairs, err := kv.GetEach(ctx, transport.Read{}, slices.Sorted(maps.Keys(unproven)))
	if err != nil {
		return nil, fmt.Errorf("verify changes of %s: %w", f.leases, err)
	}
	read := make(map[string]*belief.Record, len(pairs))
	for _, pair := range pairs {
		read[pair.Key] = nil
		if pair.ModifyIndex == 0 {
			continue
		}
		read[pair.Key] = f.record(pair)
		ch := changes[unproven[pair.Key]]
		isContradicted := ch.Record == nil || !bytes.Equal(pair.Value, ch.Record.Value)
		if isContradicted && pair.ModifyIndex < ch.Index && !ch.Later {
			kv.logger.Warn("entry says something about a lease that its record does not say", "key", pair.Key)
		}
	}
	return read, nil
}
