package consul

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lenonet/leno/registry"
)

const (
	// fewEntries are read with their values; of more the keys are read first,
	// a tenth of the bytes, and then what is new.
	fewEntries = 12
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
	mostFound = 100
	// longestTelling bounds how long it takes for that.
	longestTelling = 10 * time.Second
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
	if hung(ctx, r, err) {
		c.doubts.add(t.prefix)
		return nil
	}
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
	}
	t.seen.Store(time.Now().UnixNano())
	if a.index == asked && time.Now().Before(due) {
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
		if why, err = c.catchUp(ctx, t); why != "" || err != nil {
			return why, err
		}
	}
	if d.index != before {
		// The larger the directory, the more a look costs.
		t.calm = time.Now().Add(jitter(c.conf.Coalesce * time.Duration(1+min(len(d.entries), 1024)/128)))
	}
	if time.Now().Before(due) {
		return "", nil
	}
	return "", c.audited(ctx, t)
}

// catchUp follows the directory to where the leader has it now.
func (c *Client) catchUp(ctx context.Context, t *tree) (why string, err error) {
	news, why, err := c.latest(ctx, t)
	if why == "" && err == nil {
		t.apply(news)
	}
	return why, err
}

// step follows a reading and applies what it tells.
func (c *Client) step(ctx context.Context, t *tree, a reading) (why string, err error) {
	news, why, err := c.news(ctx, t, a)
	if why == "" && err == nil {
		t.apply(news)
	}
	return why, err
}

// latest is what happened by the leader's word, and whoever reads the leases next
// knows when that shows that the store was set back. A leader that was just
// elected looks like that to a default read.
func (c *Client) latest(ctx context.Context, t *tree) (news []change, why string, err error) {
	a, err := c.readEntries(ctx, t.dir.prefix, read{consistent: true}, len(t.dir.entries) > fewEntries)
	if err != nil {
		return nil, "", err
	}
	news, why, err = c.news(ctx, t, a)
	t.restored = t.restored || setsBack(why)
	return news, why, err
}

// news completes a reading with the entries that are new, follows it, and
// returns what it tells and the records bear out.
func (c *Client) news(ctx context.Context, t *tree, a reading) (news []change, why string, err error) {
	if err := c.complete(ctx, t.dir, &a); err != nil {
		return nil, "", err
	}
	news, why = t.dir.step(a, time.Now())
	if why != "" {
		return nil, why, nil
	}
	if news, err = c.verified(ctx, t, news); err != nil {
		t.dir.index = 0 // what they said is lost: the leases are read anew
		return nil, "", err
	}
	t.lame = 0
	return news, "", nil
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
	if why == whyUnmarked {
		if err := c.ensureWatermark(ctx, t.dir.network()); err != nil && !errors.Is(err, registry.ErrDenied) {
			return err
		}
	}
	return c.relist(ctx, t)
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
	err := c.ensureWatermark(ctx, t.dir.network())
	if errors.Is(err, registry.ErrDenied) {
		if t.lame == 1 {
			c.logger.Warn("changes cannot be followed, reading all leases now and then", "prefix", t.dir.prefix, "error", err)
		}
		err = nil
	}
	if err != nil {
		return err
	}
	return c.relist(ctx, t)
}
