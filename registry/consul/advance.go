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
	changes []belief.Change  // that no record contradicts
	records []*belief.Record // that were read to find that out
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
// one that the records confirm.
func (f *follower) changesSince(ctx context.Context, kv *kv, r changelog.Reading) (news, changelog.Reason, error) {
	if err := kv.completeReading(ctx, &f.cursor, &r); err != nil {
		return news{}, "", err
	}
	entries, reason := f.cursor.Advance(r, time.Now())
	if reason != "" {
		return news{}, reason, nil
	}
	found, err := f.verify(ctx, kv, f.changesOf(entries))
	if err != nil {
		f.cursor.Reset() // these changes are lost: the leases are read again
		return news{}, "", err
	}
	f.schedule.failures = 0
	return found, "", nil
}

// verify reads the records of the few changes that need confirmation, and leaves out the changes that they contradict.
// Where a new record names a host that has another one, it reads both, because their sessions tell whether the host
// has moved.
func (f *follower) verify(ctx context.Context, kv *kv, changes []belief.Change) (news, error) {
	unproven := f.belief.Unproven(changes)
	named := map[string]int{} // by node id, the position of a new record
	for i, ch := range changes {
		if ch.Record == nil || f.belief.Record(ch.Key) != nil || ch.Index <= f.belief.Listed() {
			continue
		}
		if id := ch.Record.Lease.NodeID; id != "" {
			named[id] = i
		}
	}
	keys := maps.Clone(unproven)
	for key, id := range f.belief.Of(named) {
		if _, ok := keys[key]; !ok {
			keys[key] = -1
		}
		keys[changes[named[id]].Key] = named[id]
	}
	if len(keys) == 0 {
		return news{changes: changes}, nil
	}
	pairs, err := kv.GetEach(ctx, transport.Read{}, slices.Sorted(maps.Keys(keys)))
	if err != nil {
		return news{}, fmt.Errorf("verify changes of %s: %w", f.leases, err)
	}
	contradicted := map[string]bool{}
	var verified []*belief.Record
	for _, pair := range pairs {
		exists := pair.ModifyIndex != 0
		if exists {
			verified = append(verified, f.record(pair))
		}
		i := keys[pair.Key]
		if i < 0 {
			continue
		}
		ch := changes[i]
		// Any later change of the record has an entry of its own, or is found by an audit.
		isRemoval := ch.Record == nil
		contradicted[ch.Key] = exists == isRemoval || exists && !bytes.Equal(pair.Value, ch.Record.Value)
		if contradicted[ch.Key] && exists && pair.ModifyIndex < ch.Index && !ch.Later {
			kv.logger.Warn("entry says something about a lease that its record does not say", "key", pair.Key)
		}
	}
	isContradicted := func(ch belief.Change) bool { return contradicted[ch.Key] }
	return news{slices.DeleteFunc(slices.Clone(changes), isContradicted), verified}, nil
}
