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

// auditPeriod returns the average time between two audits of this host, so that all hosts of the network take turns.
func (c *Client) auditPeriod(t *tree) time.Duration {
	return min(c.conf.Audit*time.Duration(max(t.view.usable(), 1)), longestAudit)
}

// audited compares the leases with the known state, if there is any reason to, and publishes to all hosts the changes
// that bypassed the directory. It also deletes old entries.
func (c *Client) audited(ctx context.Context, t *tree) error {
	now := time.Now()
	period := c.auditPeriod(t)
	t.audit = now.Add(period/2 + rand.N(period))
	settled := t.settled()
	if settled.IsZero() || now.Before(settled) {
		index, there, err := c.names(ctx, t.prefix, read{})
		if err != nil {
			return err
		}
		// Later entries may have hidden an edit that has no entry.
		if index == t.listed && index == t.index && (there || t.marker == 0) {
			return c.trim(ctx, t)
		}
	}
	l, err := c.readTree(ctx, t, false)
	if err != nil {
		return err
	}
	if !t.renewed(l) && t.doubtful(l) {
		if l, err = c.confirm(ctx, t); err != nil {
			return err
		}
	}
	if t.renewed(l) || t.cursor.HasVanishedUnread() {
		// Another host's write may hide the loss from the next list.
		t.careful = true
		return c.relist(ctx, t)
	}
	news, why, err := c.latest(ctx, t)
	switch {
	case err != nil:
		return err
	case why != "":
		return c.relist(ctx, t)
	}
	found := t.unexplained(l, news)
	t.accept(l, c.settled(now))
	t.apply(news)
	c.tellFound(ctx, t, found)
	return c.trim(ctx, t)
}

// unexplained returns the records of a list that differ from the known ones although no entry tells why; those without
// a value are deleted.
func (t *tree) unexplained(l list, news []changelog.Change) []*api.KVPair {
	told := map[string]bool{}
	for _, ch := range news {
		told[t.prefix+ch.Subnet] = true
	}
	var out []*api.KVPair
	for key, pair := range l.pairs {
		if old := t.known[key]; !told[key] && (old == nil || string(old.Value) != string(pair.Value)) {
			out = append(out, pair)
		}
	}
	for key := range t.known {
		if _, kept := t.kept[key]; !told[key] && !kept && l.pairs[key] == nil {
			out = append(out, &api.KVPair{Key: key})
		}
	}
	return out
}

// tellFound writes the change entries missing for records that were edited by hand. Entries that it fails to write are
// left to other hosts, which do not know of the edits yet.
func (c *Client) tellFound(ctx context.Context, t *tree, found []*api.KVPair) {
	ctx, cancel := context.WithTimeout(ctx, longestTelling)
	defer cancel()
	for _, pair := range found[:min(len(found), mostFound)] {
		name := strings.TrimPrefix(pair.Key, t.prefix)
		if !changelog.CanDescribe(name, pair) {
			continue
		}
		flags, check := uint64(changelog.FlagManual), &api.KVTxnOp{Verb: api.KVCheckIndex, Key: pair.Key, Index: pair.ModifyIndex}
		if pair.ModifyIndex == 0 {
			check = &api.KVTxnOp{Verb: api.KVCheckNotExists, Key: pair.Key}
		} else if pair.Session == "" {
			flags |= changelog.FlagUnheld
		}
		_, err := c.transact(ctx, check, c.changeOp(lastComponent(strings.TrimSuffix(t.cursor.Prefix(), "/")), name, pair.Value, flags))
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
func (c *Client) trim(ctx context.Context, t *tree) error {
	if t.cursor.Index() == 0 {
		return nil
	}
	for keys := range batches(t.cursor.Trimmable(time.Now(), c.conf.Recent)) {
		ops, mark := t.cursor.TrimOps(keys)
		results, err := c.transact(ctx, ops...)
		switch {
		case isRefused(err), errors.Is(err, registry.ErrDenied):
			return nil
		case err != nil:
			return fmt.Errorf("trim %s: %w", t.cursor.Prefix(), err)
		}
		t.cursor.Trimmed(keys, mark, results[len(results)-1].ModifyIndex)
	}
	return nil
}
