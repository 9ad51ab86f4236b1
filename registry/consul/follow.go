package consul

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

const (
	// fewEntries are read with their values; of more the keys are read first,
	// a tenth of the bytes, and then what is new.
	fewEntries = 24
	// txnGets is how many keys one transaction reads; Consul takes 128 operations.
	txnGets = 120
	// perLease spreads the hosts that must read all leases at once, by how much
	// there is to read; longestSpread bounds it.
	perLease      = time.Millisecond
	longestSpread = 8 * time.Second
	// longestLame bounds the pause between full reads while the directory
	// cannot be followed.
	longestLame = 30 * time.Second
	// longestAudit bounds the time between two audits of one host.
	longestAudit = 2 * time.Hour
	// mostFound is how many changes made by hand one audit tells of.
	mostFound = 32
)

// follow blocks until the directory of changes, an audit or a settling tree
// gives a reason to look, and makes what it finds the known state.
func (c *Client) follow(ctx context.Context, t *tree) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	d, asked, calm, lame, settled := t.dir, t.dir.index, t.calm, t.lame, t.settled()
	due := t.audit
	if due.IsZero() {
		due = time.Now().Add(rand.N(c.auditPeriod(t)) + time.Millisecond)
		t.audit = due
	}
	many := len(d.entries) > fewEntries
	t.end()
	if asked == 0 {
		return c.limp(ctx, t, lame)
	}
	if err := pause(ctx, time.Until(calm)); err != nil {
		return err
	}
	if !settled.IsZero() && settled.Before(due) {
		due = settled
	}
	r := read{index: asked, wait: min(c.conf.Wait, max(time.Until(due), time.Millisecond)), stale: true}
	if c.doubts.about(t.prefix) {
		r = read{stale: true}
	}
	start := time.Now()
	a, err := c.readEntries(ctx, d.prefix, r, many)
	if err != nil {
		return err
	}
	c.doubts.clear(t.prefix)

	why, err := c.take(ctx, t, asked, a, due)
	switch {
	case err != nil:
		return err
	case why != "":
		return c.resync(ctx, t, asked, why)
	case a.index == asked && time.Now().Before(due):
		return c.noNews(ctx, t.prefix, r, start)
	}
	return nil
}

// take makes a reading of the directory the known state, within a turn, and
// says why when that is not possible. A reading that another call was faster
// than is dropped.
func (c *Client) take(ctx context.Context, t *tree, asked uint64, a reading, due time.Time) (why string, err error) {
	if err := t.begin(ctx); err != nil {
		return "", err
	}
	defer t.end()
	d := t.dir
	if d.index != asked {
		return "", nil
	}
	before := d.index
	if why, err = c.step(ctx, t, a); err != nil {
		return "", err
	}
	if why != "" {
		// A server that lags shows an older state: the leader's word counts.
		if a, err = c.readEntries(ctx, d.prefix, read{}, len(d.entries) > fewEntries); err != nil {
			return "", err
		}
		if why, err = c.step(ctx, t, a); why != "" || err != nil {
			return why, err
		}
	}
	if d.index != before {
		// The larger the directory, the more a look costs.
		t.calm = time.Now().Add(jitter(c.conf.Coalesce * time.Duration(1+len(d.entries)/128)))
	}
	if time.Now().Before(due) {
		return "", nil
	}
	return "", c.audited(ctx, t)
}

// step completes a reading with the entries that are new, follows it, and
// applies what it tells.
func (c *Client) step(ctx context.Context, t *tree, a reading) (why string, err error) {
	if err := c.complete(ctx, t.dir, &a); err != nil {
		return "", err
	}
	news, why := t.dir.step(a, time.Now())
	if why == "" {
		t.lame = 0
		t.apply(news)
	}
	return why, nil
}

// resync reads all leases after the directory could not be followed. What it
// cannot be followed for happens to all hosts at once, so they spread.
func (c *Client) resync(ctx context.Context, t *tree, asked uint64, why string) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	spread := min(perLease*time.Duration(len(t.known)), longestSpread)
	t.end()
	c.logger.Debug("reading all leases", "prefix", t.prefix, "reason", why)
	if err := pause(ctx, rand.N(spread+time.Millisecond)); err != nil {
		return err
	}
	if err := t.begin(ctx); err != nil {
		return err
	}
	defer t.end()
	if t.dir.index != asked {
		return nil
	}
	t.restored = t.restored || why == whyBack || why == whyPast || why == whyVanished
	return c.relist(ctx, t, 0)
}

// limp reads all leases now and then while there is no directory to follow, and
// tries to make one.
func (c *Client) limp(ctx context.Context, t *tree, lame int) error {
	d := min(c.conf.Coalesce<<min(lame, 16), longestLame)
	if err := pause(ctx, jitter(d)); err != nil {
		return err
	}
	if err := t.begin(ctx); err != nil {
		return err
	}
	defer t.end()
	if t.dir.index != 0 {
		return nil
	}
	t.lame++
	if err := c.ensureWatermark(ctx, t.dir.network()); err != nil && !errors.Is(err, registry.ErrDenied) {
		return err
	}
	return c.relist(ctx, t, 0)
}

// auditPeriod is the average time between two audits of this host: each of the
// network's hosts has its turn.
func (c *Client) auditPeriod(t *tree) time.Duration {
	return min(c.conf.Audit*time.Duration(max(t.view.usable(), 1)), longestAudit)
}

// audited compares the leases with what is known of them, when there is any
// reason to, and tells all hosts what was changed past the directory. It also
// deletes old entries.
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
		// Entries may have gone on from an edit that had none.
		if index == t.listed && index == t.index && (there || t.marker == 0) {
			return c.trim(ctx, t)
		}
	}
	l, err := c.readTree(ctx, t, false)
	if err != nil {
		return err
	}
	if t.doubtful(l) || t.renewed(l) {
		return c.relist(ctx, t, 0)
	}
	a, err := c.readEntries(ctx, t.dir.prefix, read{}, len(t.dir.entries) > fewEntries)
	if err != nil {
		return err
	}
	if err := c.complete(ctx, t.dir, &a); err != nil {
		return err
	}
	news, why := t.dir.step(a, now)
	if why != "" {
		return c.relist(ctx, t, 0)
	}
	found := t.unexplained(l, news)
	t.accept(l, 0, now.Add(c.conf.Settle))
	t.apply(news)
	c.tellFound(ctx, t, found)
	return c.trim(ctx, t)
}

// unexplained is the records of a list that are not as they are known, although
// no entry tells why; without a value they are gone.
func (t *tree) unexplained(l list, news []change) []*api.KVPair {
	told := map[string]bool{}
	for _, ch := range news {
		told[t.prefix+ch.subnet] = true
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

// tellFound writes the entries that whoever changed records by hand did not.
// One that fails is left: another host will find the same.
func (c *Client) tellFound(ctx context.Context, t *tree, found []*api.KVPair) {
	for _, pair := range found[:min(len(found), mostFound)] {
		name := lastComponent(pair.Key)
		if !entryName.MatchString("000000000000000000000000~" + name) {
			continue
		}
		if pair.ModifyIndex != 0 && len(pair.Value) == 0 {
			continue // would say that it is gone
		}
		flags, check := uint64(flagFound), &api.KVTxnOp{Verb: api.KVCheckIndex, Key: pair.Key, Index: pair.ModifyIndex}
		if pair.ModifyIndex == 0 {
			check = &api.KVTxnOp{Verb: api.KVCheckNotExists, Key: pair.Key}
		} else if pair.Session == "" {
			flags |= flagUnheld
		}
		_, err := c.transact(ctx, check, c.changeOp(t.dir.network(), name, pair.Value, flags))
		if isRefused(err) {
			continue // changed again
		}
		c.logger.Info("record was changed by hand, telling the other hosts", "key", pair.Key, "error", err)
		if err != nil {
			return
		}
	}
}

// trim deletes entries that have been there for long enough for every host to
// have seen them, and raises the watermark with them: a host that was away
// knows by it that it may have missed some. Of two that trim at once one wins.
func (c *Client) trim(ctx context.Context, t *tree) error {
	d := t.dir
	if d.index == 0 {
		return nil
	}
	for keys := range slices.Chunk(d.old(time.Now(), c.conf.Recent), txnGets) {
		mark := d.mark
		var ops []*api.KVTxnOp
		for _, key := range keys {
			mark = max(mark, d.entries[key].index)
			ops = append(ops, &api.KVTxnOp{Verb: api.KVDelete, Key: key})
		}
		key := d.prefix + watermarkName
		results, err := c.transact(ctx, append(ops, &api.KVTxnOp{Verb: api.KVCAS, Key: key, Value: []byte(strconv.FormatUint(mark, 10)), Index: d.cas})...)
		switch {
		case isRefused(err), errors.Is(err, registry.ErrDenied):
			return nil
		case err != nil:
			return fmt.Errorf("trim %s: %w", d.prefix, err)
		}
		d.trimmed(keys, mark, results[len(results)-1].ModifyIndex)
	}
	return nil
}

// readEntries reads the directory, or its keys alone.
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

// complete adds to a reading of keys the entries that are new, and the watermark.
func (c *Client) complete(ctx context.Context, d *directory, a *reading) error {
	if !a.bare {
		return nil
	}
	mark := d.prefix + watermarkName
	a.keys = slices.DeleteFunc(a.keys, func(key string) bool { return key == mark })
	for keys := range slices.Chunk(append(d.unknown(a.keys), mark), txnGets) {
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
			case pair.ModifyIndex == 0: // deleted meanwhile
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

// readMarks reads the watermark and the keys of all entries: enough to follow
// the directory from here on, when the leases are read next. Of a few entries,
// or when asked for, it reads the values as well.
func (c *Client) readMarks(ctx context.Context, d *directory, whole bool) (reading, error) {
	mark, _, err := c.get(ctx, d.prefix+watermarkName, read{})
	if errors.Is(err, registry.ErrDenied) {
		return reading{}, fmt.Errorf("%w: %w", registry.ErrUncertain, err)
	}
	if err != nil {
		return reading{}, err
	}
	a, err := c.readEntries(ctx, d.prefix, read{}, !whole)
	switch {
	case err != nil:
		return reading{}, err
	case whole:
	case len(a.keys) <= fewEntries:
		err = c.complete(ctx, &directory{prefix: d.prefix}, &a)
	default:
		a.keys = slices.DeleteFunc(a.keys, func(key string) bool { return key == d.prefix+watermarkName })
		a.bare = false
	}
	// The one from before the keys: whatever was deleted since, they lack too.
	a.mark = mark
	return a, err
}
