package consul

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/changelog"
)

const (
	// perLease spreads hosts that must all read all leases at the same time, in proportion to the number of leases;
	// longestSpread limits it.
	perLease      = time.Millisecond
	longestSpread = 8 * time.Second
	// longestPollPause limits the pause between full reads while the directory cannot be followed.
	longestPollPause = 30 * time.Second
)

// follower follows the leases of one network. It has no goroutine: every call of WatchLeases runs its loop (watch) and
// makes the requests under its own token, and all calls share what they learn.
//
// A lease takes this way from Consul to the caller, one file after the other:
//
//	watch.go        WatchLeases: the call
//	followers.go    finds the network's follower
//	follower.go     the loop: waits for changes, an audit or a lost record's end, and decides what to read
//	audit.go        now and then compares the leases with the directory, publishes manual edits, trims the directory
//	readall.go      reads all leases when the directory does not tell what happened
//	advance.go      follows the directory to a reading, and checks what its entries say
//	directory.go    the requests that read the directory
//	changelog/      the directory's format, and the rules for following it
//	belief.go       what to believe of lists and changes
//	view.go         the parsed and sorted leases that the caller gets
type follower struct {
	network string

	failed    atomic.Bool  // the last call returned an error
	confirmed atomic.Int64 // when Consul last confirmed the known state, Unix nanoseconds

	view   view                // has its own lock
	lapses registry.LapseClock // has its own lock

	// turn guards the fields below. Lists are read within a turn, so an index lower than the last one is caused by the
	// store.
	turn     turn
	belief   belief
	cursor   changelog.Cursor
	schedule schedule
}

// schedule is what a follower has planned.
type schedule struct {
	notBefore time.Time // no call asks for changes before this time
	audit     time.Time // when to compare all leases with the known state, zero before the first round
	failures  int       // how often in a row the directory could not be followed at all
}

func newFollower(l layout, network string) *follower {
	return &follower{
		network: network,
		turn:    make(turn, 1),
		belief:  newBelief(l.leases(network)),
		cursor:  changelog.NewCursor(l.changes(network)),
	}
}

// turn is a lock for which a caller waits no longer than its context.
type turn chan struct{}

func (t turn) lock(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) unlock() { <-t }

// lastConfirmed returns when Consul last confirmed the known state, or the zero time.
func (f *follower) lastConfirmed() time.Time {
	if at := f.confirmed.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// watch blocks until the version of the leases differs from after, and calls use within the turn. With after 0 it reads
// all leases again. A call after one that failed returns after its first round, even when nothing has changed.
func (f *follower) watch(ctx context.Context, c *Client, after uint64, use func()) error {
	recovering := false
	for first := true; ; first = false {
		if err := f.turn.lock(ctx); err != nil {
			return err
		}
		if first {
			recovering = f.failed.Load()
		}
		var err error
		all := after == 0 || f.belief.version == 0
		if all {
			err = f.readAll(ctx, c)
		}
		if err == nil && (all || f.belief.version != after || !first && recovering) {
			if after > 0 {
				f.failed.Store(false) // a read for another caller tells the watcher nothing
			}
			use()
			f.turn.unlock()
			return nil
		}
		var next round
		if err == nil {
			next = f.nextRound(c)
		}
		f.turn.unlock()
		if err == nil {
			err = f.run(ctx, c, next)
		}
		if err != nil && ctx.Err() == nil {
			// The next call does not block, and returns even if nothing changed.
			c.doubts.add(c.layout.leases(f.network))
			f.failed.Store(true)
		}
		if err != nil {
			return err
		}
	}
}

// round is one pass of the loop, as planned within a turn.
type round struct {
	index     uint64    // of the cursor; with 0 there is no directory to follow yet
	keysOnly  bool      // the directory is large
	notBefore time.Time // when to ask for changes
	due       time.Time // when to audit; also when a lost record need not be kept any longer
	failures  int       // as in schedule
}

// nextRound plans the next round, within a turn.
func (f *follower) nextRound(c *Client) round {
	if f.schedule.audit.IsZero() {
		f.schedule.audit = time.Now().Add(rand.N(f.auditPeriod(c)) + time.Millisecond)
	}
	r := round{
		index:     f.cursor.Index(),
		keysOnly:  f.cursor.Len() > fewEntries,
		notBefore: f.schedule.notBefore,
		due:       f.schedule.audit,
		failures:  f.schedule.failures,
	}
	if until := f.belief.keptUntil(); !until.IsZero() && until.Before(r.due) {
		r.due = until
	}
	return r
}

// run blocks until the directory of changes has news or something is due, and applies what it has read.
func (f *follower) run(ctx context.Context, c *Client, next round) error {
	if next.index == 0 {
		return f.pollWithoutChangelog(ctx, c, next.failures)
	}
	if err := pause(ctx, time.Until(next.notBefore)); err != nil {
		return err
	}
	leases := c.layout.leases(f.network)
	r := read{index: next.index, wait: min(c.conf.Wait, max(time.Until(next.due), time.Millisecond)), stale: true}
	if c.doubts.has(leases) {
		r = read{stale: true}
	}
	start := time.Now()
	reading, err := c.readDirectory(ctx, c.layout.changes(f.network), r, next.keysOnly)
	if isHung(ctx, r, err) {
		c.doubts.add(leases)
		return nil
	}
	if err != nil {
		return err
	}
	c.doubts.clear(leases)

	reason, err := f.applyReading(ctx, c, next, reading)
	switch {
	case err != nil:
		return err
	case reason != "":
		return f.readAllSpread(ctx, c, next.index, reason)
	}
	f.confirmed.Store(time.Now().UnixNano())
	if reading.Index == next.index && time.Now().Before(next.due) {
		return c.pauseUnchanged(ctx, leases, r, start)
	}
	return nil
}

// applyReading follows a reading of the directory, within a turn, and audits when that is due. It returns the reason
// when the directory cannot be followed. It drops a reading if another call has updated the directory since the round
// was planned.
func (f *follower) applyReading(
	ctx context.Context, c *Client, next round, r changelog.Reading,
) (reason changelog.Reason, err error) {
	if err := f.turn.lock(ctx); err != nil {
		return "", err
	}
	defer f.turn.unlock()
	if f.cursor.Index() != next.index {
		return "", nil
	}
	if reason, err = f.advance(ctx, c, r); err != nil {
		return "", err
	}
	if reason != "" {
		// A server that lags shows an older state: the leader's answer decides.
		if reason, err = f.readFromLeader(ctx, c); reason != "" || err != nil {
			return reason, err
		}
	}
	if f.cursor.Index() != next.index {
		// The larger the directory, the more a read costs.
		longest := c.conf.Coalesce * time.Duration(1+min(f.cursor.Len(), 1024)/128)
		f.schedule.notBefore = time.Now().Add(jitter(longest))
	}
	if time.Now().Before(next.due) {
		return "", nil
	}
	return "", f.audit(ctx, c)
}

// readAllSpread reads all leases after the directory could not be followed from index. The cause usually affects all
// hosts at once, so they spread their reads.
func (f *follower) readAllSpread(ctx context.Context, c *Client, index uint64, reason changelog.Reason) error {
	if err := f.turn.lock(ctx); err != nil {
		return err
	}
	spread := min(perLease*time.Duration(len(f.belief.known)), longestSpread)
	f.turn.unlock()
	c.logger.Debug("reading all leases", "prefix", c.layout.leases(f.network), "reason", string(reason))
	if err := pause(ctx, rand.N(spread+time.Millisecond)); err != nil {
		return err
	}
	if err := f.turn.lock(ctx); err != nil {
		return err
	}
	defer f.turn.unlock()
	if f.cursor.Index() != index {
		return nil
	}
	if reason == changelog.WatermarkMissing {
		if err := c.ensureWatermark(ctx, f.network); err != nil && !errors.Is(err, registry.ErrDenied) {
			return err
		}
	}
	return f.readAll(ctx, c)
}

// pollWithoutChangelog reads all leases from time to time while there is no directory to follow, and tries to create
// one.
func (f *follower) pollWithoutChangelog(ctx context.Context, c *Client, failures int) error {
	d := min(c.conf.Coalesce<<min(failures, 16), longestPollPause)
	if err := pause(ctx, jitter(d)); err != nil {
		return err
	}
	if err := f.turn.lock(ctx); err != nil {
		return err
	}
	defer f.turn.unlock()
	if f.cursor.Index() != 0 {
		return nil
	}
	f.schedule.failures++
	err := c.ensureWatermark(ctx, f.network)
	if errors.Is(err, registry.ErrDenied) {
		if f.schedule.failures == 1 {
			c.logger.Warn("changes cannot be followed, reading all leases now and then",
				"prefix", c.layout.changes(f.network), "error", err)
		}
		err = nil
	}
	if err != nil {
		return err
	}
	return f.readAll(ctx, c)
}

// unconfirmed returns the known records that are not in pairs, although they are not known to have been deleted.
func (f *follower) unconfirmed(ctx context.Context, pairs api.KVPairs) ([]*api.KVPair, error) {
	if err := f.turn.lock(ctx); err != nil {
		return nil, err
	}
	defer f.turn.unlock()
	return f.belief.unconfirmed(pairs), nil
}
