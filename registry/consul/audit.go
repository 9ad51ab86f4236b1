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
	"github.com/lenonet/leno/registry/consul/changelog"
)

const (
	// longestAudit limits the time between two audits of one host.
	longestAudit = 2 * time.Hour
	// mostPublished is the number of manual edits that one audit publishes.
	mostPublished = 100
	// longestPublishing limits the time for publishing them.
	longestPublishing = 10 * time.Second
)

// auditPeriod returns the average time between two audits of this host, so that all hosts of the network take turns.
func (f *follower) auditPeriod(c *Client) time.Duration {
	return min(c.conf.Audit*time.Duration(max(f.view.usable(), 1)), longestAudit)
}

// audit compares the leases with the known state, if there is any reason to, and publishes to all hosts the changes
// that bypassed the directory. It also deletes old entries. It runs within a turn.
func (f *follower) audit(ctx context.Context, c *Client) error {
	now := time.Now()
	period := f.auditPeriod(c)
	f.schedule.audit = now.Add(period/2 + rand.N(period))
	until := f.belief.keptUntil()
	if until.IsZero() || now.Before(until) {
		index, exists, err := c.prefixIndex(ctx, f.belief.prefix, read{})
		if err != nil {
			return err
		}
		// Later entries may have hidden an edit that has no entry.
		if index == f.belief.listed && index == f.belief.index && (exists || f.belief.marker == 0) {
			return f.trim(ctx, c)
		}
	}
	l, err := f.readList(ctx, c, false)
	if err != nil {
		return err
	}
	if !f.belief.mayBeSetBack(l) && f.belief.isDoubtful(l) {
		if l, err = f.confirmList(ctx, c); err != nil {
			return err
		}
	}
	if f.belief.mayBeSetBack(l) || f.cursor.HasVanishedUnread() {
		// Another host's write may hide the loss from the next list.
		f.belief.evidence.suspectLoss = true
		return f.readAll(ctx, c)
	}
	changes, reason, err := f.changesAtLeader(ctx, c)
	switch {
	case err != nil:
		return err
	case reason != "":
		return f.readAll(ctx, c)
	}
	edits := f.belief.unexplained(l, changes)
	f.belief.accept(l, c.keepLostUntil(now))
	f.belief.apply(changes)
	f.publishManualEdits(ctx, c, edits)
	return f.trim(ctx, c)
}

// publishManualEdits adds the change entries missing for records that were edited by hand; those without a value were
// deleted. Entries that it fails to write are left to other hosts, which do not know of the edits yet.
func (f *follower) publishManualEdits(ctx context.Context, c *Client, edits []*api.KVPair) {
	ctx, cancel := context.WithTimeout(ctx, longestPublishing)
	defer cancel()
	for _, pair := range edits[:min(len(edits), mostPublished)] {
		name := strings.TrimPrefix(pair.Key, f.belief.prefix)
		if !changelog.CanDescribe(name, pair) {
			continue
		}
		flags := uint64(changelog.FlagManual)
		check := &api.KVTxnOp{Verb: api.KVCheckIndex, Key: pair.Key, Index: pair.ModifyIndex}
		if pair.ModifyIndex == 0 {
			check = &api.KVTxnOp{Verb: api.KVCheckNotExists, Key: pair.Key}
		} else if pair.Session == "" {
			flags |= changelog.FlagUnheld
		}
		_, err := c.transact(ctx, check, c.changeOp(f.network, name, pair.Value, flags))
		switch {
		case isRefused(err): // changed again
		case err != nil:
			c.logger.Warn("record was changed by hand, the other hosts cannot be told", "key", pair.Key, "error", err)
			return
		default:
			c.logger.Info("record was changed by hand, other hosts are told", "key", pair.Key)
		}
	}
}

// trim deletes entries that are old enough for every host to have seen them.
func (f *follower) trim(ctx context.Context, c *Client) error {
	if f.cursor.Index() == 0 {
		return nil
	}
	for keys := range batches(f.cursor.Trimmable(time.Now(), c.conf.Recent)) {
		ops, mark := f.cursor.TrimOps(keys)
		results, err := c.transact(ctx, ops...)
		switch {
		case isRefused(err), errors.Is(err, registry.ErrDenied):
			return nil
		case err != nil:
			return fmt.Errorf("trim %s: %w", f.cursor.Prefix(), err)
		}
		f.cursor.Trimmed(keys, mark, results[len(results)-1].ModifyIndex)
	}
	return nil
}
