package consul

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lenonet/leno/registry/consul/changelog"
)

// advance follows the directory to a reading and applies its changes. When it cannot tell what happened, it returns the
// reason. The caller holds f.mu.
func (f *follower) advance(ctx context.Context, kv *kv, r changelog.Reading) (changelog.Reason, error) {
	changes, reason, err := f.changesSince(ctx, kv, r)
	f.belief.apply(changes)
	return reason, err
}

// readFromLeader follows the directory to the leader's current state and applies its changes.
func (f *follower) readFromLeader(ctx context.Context, kv *kv) (changelog.Reason, error) {
	changes, reason, err := f.changesAtLeader(ctx, kv)
	f.belief.apply(changes)
	return reason, err
}

// changesAtLeader returns the changes up to the leader's current state. If the answer shows that the store was set
// back, it records that for the next read of the leases. The read is consistent, because a default read from a newly
// elected leader looks like a set-back.
func (f *follower) changesAtLeader(ctx context.Context, kv *kv) ([]changelog.Change, changelog.Reason, error) {
	r, err := kv.readDirectory(ctx, f.changes, read{consistent: true}, f.cursor.Len() > fewEntries)
	if err != nil {
		return nil, "", err
	}
	changes, reason, err := f.changesSince(ctx, kv, r)
	f.belief.evidence.setBack = f.belief.evidence.setBack || reason.IsSetBack()
	return changes, reason, err
}

// changesSince completes a reading with the new entries, moves the cursor to it, and returns the changes since the last
// one that the records confirm.
func (f *follower) changesSince(
	ctx context.Context, kv *kv, r changelog.Reading,
) ([]changelog.Change, changelog.Reason, error) {
	if err := kv.completeReading(ctx, &f.cursor, &r); err != nil {
		return nil, "", err
	}
	changes, reason := f.cursor.Advance(r, time.Now())
	if reason != "" {
		return nil, reason, nil
	}
	changes, err := f.verify(ctx, kv, changes)
	if err != nil {
		f.cursor.Reset() // these changes are lost: the leases are read again
		return nil, "", err
	}
	f.schedule.failures = 0
	return changes, "", nil
}

// verify returns the changes that the records do not contradict. It reads the records of the few changes that need
// confirmation.
func (f *follower) verify(ctx context.Context, kv *kv, changes []changelog.Change) ([]changelog.Change, error) {
	unproven := f.belief.unproven(changes)
	if len(unproven) == 0 {
		return changes, nil
	}
	records, err := kv.getEach(ctx, slices.Sorted(maps.Keys(unproven)))
	if err != nil {
		return nil, fmt.Errorf("verify changes of %s: %w", f.leases, err)
	}
	contradicted := map[string]bool{} // by subnet
	for _, pair := range records {
		ch := changes[unproven[pair.Key]]
		exists := pair.ModifyIndex != 0
		// Any later change of the record has an entry of its own, or is found by an audit.
		contradicted[ch.Subnet] = exists == ch.IsRemoval() || exists && !bytes.Equal(pair.Value, ch.Value)
		if exists && ch.IsRemoval() && pair.CreateIndex < ch.Index {
			kv.logger.Warn("entry says that a lease is gone which is not", "key", pair.Key)
		}
	}
	isContradicted := func(ch changelog.Change) bool { return contradicted[ch.Subnet] }
	return slices.DeleteFunc(slices.Clone(changes), isContradicted), nil
}
