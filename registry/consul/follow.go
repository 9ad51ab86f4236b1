package consul

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/changelog"
)

const (
	// perLease spreads hosts that must all read all leases at the same time, in proportion to the number of leases;
	// longestSpread limits it.
	perLease      = time.Millisecond
	longestSpread = 8 * time.Second
	// longestLame limits the pause between full reads while the directory cannot be followed.
	longestLame = 30 * time.Second
	// longestAudit limits the time between two audits of one host.
	longestAudit = 2 * time.Hour
	// mostFound is the number of manual changes that one audit publishes.
	mostFound = 100
	// longestTelling limits the time for publishing them.
	longestTelling = 10 * time.Second
)

// follow blocks until the directory of changes, an audit or a settling tree gives a reason to read, and applies the
// result to the known state.
func (c *Client) follow(ctx context.Context, t *tree) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	asked, calm, lame, settled := t.cursor.Index(), t.calm, t.lame, t.settled()
	due := t.audit
	if due.IsZero() {
		due = time.Now().Add(rand.N(c.auditPeriod(t)) + time.Millisecond)
		t.audit = due
	}
	many := t.cursor.Len() > fewEntries
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
	a, err := c.readEntries(ctx, t.cursor.Prefix(), r, many)
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
	if a.Index == asked && time.Now().Before(due) {
		return c.noNews(ctx, t.prefix, r, start)
	}
	return nil
}

// take applies a reading of the directory to the known state, within a turn, and returns the reason when that is not
// possible. It drops a reading if another call has updated the directory in the meantime.
func (c *Client) take(ctx context.Context, t *tree, asked uint64, a changelog.Reading, due time.Time) (why changelog.Reason, err error) {
	if err := t.begin(ctx); err != nil {
		return "", err
	}
	defer t.end()
	if t.cursor.Index() != asked {
		return "", nil
	}
	before := t.cursor.Index()
	if why, err = c.step(ctx, t, a); err != nil {
		return "", err
	}
	if why != "" {
		// A server that lags shows an older state: the leader's answer decides.
		if why, err = c.catchUp(ctx, t); why != "" || err != nil {
			return why, err
		}
	}
	if t.cursor.Index() != before {
		// The larger the directory, the more a read costs.
		t.calm = time.Now().Add(jitter(c.conf.Coalesce * time.Duration(1+min(t.cursor.Len(), 1024)/128)))
	}
	if time.Now().Before(due) {
		return "", nil
	}
	return "", c.audited(ctx, t)
}

// catchUp follows the directory to the leader's current state.
func (c *Client) catchUp(ctx context.Context, t *tree) (why changelog.Reason, err error) {
	news, why, err := c.latest(ctx, t)
	if why == "" && err == nil {
		t.apply(news)
	}
	return why, err
}

// step follows a reading and applies its changes.
func (c *Client) step(ctx context.Context, t *tree, a changelog.Reading) (why changelog.Reason, err error) {
	news, why, err := c.news(ctx, t, a)
	if why == "" && err == nil {
		t.apply(news)
	}
	return why, err
}

// latest returns the changes up to the current state of the leader. If the answer shows that the store was set back, it
// records that for the next read of the leases. The read is consistent, because a default read from a newly elected
// leader looks like a set-back.
func (c *Client) latest(ctx context.Context, t *tree) (news []changelog.Change, why changelog.Reason, err error) {
	a, err := c.readEntries(ctx, t.cursor.Prefix(), read{consistent: true}, t.cursor.Len() > fewEntries)
	if err != nil {
		return nil, "", err
	}
	news, why, err = c.news(ctx, t, a)
	t.restored = t.restored || why.IsSetBack()
	return news, why, err
}

// news completes a reading with the new entries, follows it, and returns the changes that the records confirm.
func (c *Client) news(ctx context.Context, t *tree, a changelog.Reading) (news []changelog.Change, why changelog.Reason, err error) {
	if err := c.complete(ctx, &t.cursor, &a); err != nil {
		return nil, "", err
	}
	news, why = t.cursor.Advance(a, time.Now())
	if why != "" {
		return nil, why, nil
	}
	if news, err = c.verified(ctx, t, news); err != nil {
		t.cursor.Reset() // these changes are lost: the leases are read again
		return nil, "", err
	}
	t.lame = 0
	return news, "", nil
}

// resync reads all leases after the directory could not be followed. The cause usually affects all hosts at once, so
// they spread their reads.
func (c *Client) resync(ctx context.Context, t *tree, asked uint64, why changelog.Reason) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	spread := min(perLease*time.Duration(len(t.known)), longestSpread)
	t.end()
	c.logger.Debug("reading all leases", "prefix", t.prefix, "reason", string(why))
	if err := pause(ctx, rand.N(spread+time.Millisecond)); err != nil {
		return err
	}
	if err := t.begin(ctx); err != nil {
		return err
	}
	defer t.end()
	if t.cursor.Index() != asked {
		return nil
	}
	if why == changelog.WatermarkMissing {
		if err := c.ensureWatermark(ctx, lastComponent(strings.TrimSuffix(t.cursor.Prefix(), "/"))); err != nil && !errors.Is(err, registry.ErrDenied) {
			return err
		}
	}
	return c.relist(ctx, t)
}

// limp reads all leases from time to time while there is no directory to follow, and tries to create one.
func (c *Client) limp(ctx context.Context, t *tree, lame int) error {
	d := min(c.conf.Coalesce<<min(lame, 16), longestLame)
	if err := pause(ctx, jitter(d)); err != nil {
		return err
	}
	if err := t.begin(ctx); err != nil {
		return err
	}
	defer t.end()
	if t.cursor.Index() != 0 {
		return nil
	}
	t.lame++
	err := c.ensureWatermark(ctx, lastComponent(strings.TrimSuffix(t.cursor.Prefix(), "/")))
	if errors.Is(err, registry.ErrDenied) {
		if t.lame == 1 {
			c.logger.Warn("changes cannot be followed, reading all leases now and then", "prefix", t.cursor.Prefix(), "error", err)
		}
		err = nil
	}
	if err != nil {
		return err
	}
	return c.relist(ctx, t)
}
