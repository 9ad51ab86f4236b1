package consul

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/consul/changelog"
	"github.com/lenonet/leno/registry/consul/transport"
)

const (
	// mostPublished is the number of manual edits that one audit publishes.
	mostPublished = 100
	// longestPublishing limits the time for publishing them.
	longestPublishing = 10 * time.Second
)

// audit compares the leases with the known state, if there is any reason to, and publishes to all hosts the changes
// that bypassed the directory. It also deletes old entries. The caller holds f.mu.
func (f *follower) audit(ctx context.Context, kv *kv) error {
	now := time.Now()
	period := f.auditPeriod(kv)
	f.schedule.audit = now.Add(period/2 + rand.N(period))
	until := f.belief.Due()
	if until.IsZero() || now.Before(until) {
		index, exists, err := kv.PrefixIndex(ctx, f.leases, transport.Read{})
		if err != nil {
			return err
		}
		// Entries since then may be false, or have hidden an edit that has none.
		if f.belief.IsAt(index) && (exists || f.belief.Marker() == 0) {
			return f.trim(ctx, kv)
		}
	}
	l, err := f.readList(ctx, kv, false)
	if err != nil {
		return err
	}
	if !f.mayBeSetBack(l) && f.isDoubtful(l) {
		if l, err = f.confirmList(ctx, kv); err != nil {
			return err
		}
	}
	if f.mayBeSetBack(l) || f.cursor.HasVanishedUnread() {
		// Another host's write may hide the loss from the next list.
		f.evidence.suspectLoss = true
		return f.readAll(ctx, kv, false)
	}
	news, reason, err := f.changesAtLeader(ctx, kv)
	if err != nil {
		return err
	}
	if reason != "" {
		return f.readAll(ctx, kv, false)
	}
	edits := f.belief.Unexplained(l, news.changes)
	f.accept(l)
	f.belief.Apply(news.changes, news.records)
	f.publishManualEdits(ctx, kv, edits)
	return f.trim(ctx, kv)
}

// publishManualEdits adds the change entries missing for records that were edited by hand; those without a value were
// deleted. Entries that it fails to write are left to other hosts, which do not know of the edits yet.
func (f *follower) publishManualEdits(ctx context.Context, kv *kv, edits []*belief.Record) {
	ctx, cancel := context.WithTimeout(ctx, longestPublishing)
	defer cancel()
	for _, r := range edits[:min(len(edits), mostPublished)] {
		name := strings.TrimPrefix(r.Key, f.leases)
		if !changelog.CanDescribe(name, r.Value, r.Lease.ModifyIndex != 0) {
			continue
		}
		flags := uint64(changelog.FlagManual)
		check := &api.KVTxnOp{Verb: api.KVCheckIndex, Key: r.Key, Index: r.Lease.ModifyIndex}
		if r.Lease.ModifyIndex == 0 {
			check = &api.KVTxnOp{Verb: api.KVCheckNotExists, Key: r.Key}
		} else if !r.Lease.Held() {
			flags |= changelog.FlagUnheld
		}
		_, err := kv.Transact(ctx, check, changelog.WriteOp(f.changes, name, r.Value, flags))
		switch {
		case transport.IsRefused(err): // changed again
		case err != nil:
			kv.logger.Warn("record was changed by hand, the other hosts cannot be told", "key", r.Key, "error", err)
			return
		default:
			kv.logger.Info("record was changed by hand, other hosts are told", "key", r.Key)
		}
	}
}

// trim deletes entries that are old enough for every host to have seen them.
func (f *follower) trim(ctx context.Context, kv *kv) error {
	if f.cursor.Index() == 0 {
		return nil
	}
	for keys := range transport.Batches(f.cursor.Trimmable(time.Now(), kv.conf.Recent)) {
		ops, mark := f.cursor.TrimOps(keys)
		results, err := kv.Transact(ctx, ops...)
		switch {
		case transport.IsRefused(err), errors.Is(err, registry.ErrDenied):
			return nil
		case err != nil:
			return fmt.Errorf("trim %s: %w", f.changes, err)
		}
		f.cursor.Trimmed(keys, mark, results[len(results)-1].ModifyIndex)
	}
	return nil
}
