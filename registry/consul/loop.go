package consul

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/changelog"
	"github.com/lenonet/leno/registry/consul/transport"
)

const (
	// perLease and longestSpread tell how long hosts spread that must all read all leases at the same time.
	perLease      = time.Millisecond
	longestSpread = 8 * time.Second
	// longestPollPause limits the pause between full reads while the directory cannot be followed.
	longestPollPause = 30 * time.Second
)

// watch blocks until the version of the leases differs from after, and calls use with f.mu held. With after 0 it reads
// all leases again. A call after one that failed returns after its first round, even when nothing has changed.
func (f *follower) watch(ctx context.Context, kv *kv, n registry.Network, after uint64, use func()) error {
	recovering := false
	for first := true; ; first = false {
		if err := f.mu.Acquire(ctx, 1); err != nil {
			return err
		}
		f.use(n)
		if first {
			recovering = f.failed.Load()
		}
		var err error
		all := after == 0 || f.belief.Empty()
		if all {
			err = f.readAll(ctx, kv, false)
		}
		if err == nil && (all || f.belief.Version() != after || !first && recovering) {
			if after > 0 {
				f.failed.Store(false) // a read for another caller tells the watcher nothing
			}
			use()
			f.mu.Release(1)
			return nil
		}
		var next round
		if err == nil {
			next = f.nextRound(kv)
		}
		f.mu.Release(1)
		if err == nil {
			err = f.run(ctx, kv, next)
		}
		if err != nil {
			// The next call must not wait for another change: after a restore, there may be none for long. It returns
			// even if nothing has changed, unless this call was only cancelled.
			kv.Doubts.Add(f.leases)
			if ctx.Err() == nil {
				f.failed.Store(true)
			}
			return err
		}
	}
}

// round is one pass of the loop, as planned with f.mu held.
type round struct {
	index     uint64        // of the cursor; with 0 there is no directory to follow yet
	keysOnly  bool          // the directory is large
	notBefore time.Time     // when to ask for changes
	due       time.Time     // when to audit; also when a lost record need not be kept any longer
	failures  int           // as in schedule
	spread    time.Duration // over which hosts spread that must all read all leases
}

// nextRound plans the next round. The caller holds f.mu.
func (f *follower) nextRound(kv *kv) round {
	if f.schedule.audit.IsZero() {
		f.schedule.audit = time.Now().Add(rand.N(f.auditPeriod(kv)) + time.Millisecond)
	}
	r := round{
		index:     f.cursor.Index(),
		keysOnly:  f.cursor.Len() > fewEntries,
		notBefore: f.schedule.notBefore,
		due:       f.schedule.audit,
		failures:  f.schedule.failures,
		spread:    min(perLease*time.Duration(f.belief.Len()), longestSpread),
	}
	if until := f.belief.Due(); !until.IsZero() && until.Before(r.due) {
		r.due = until
	}
	return r
}

// run blocks until the directory of changes has news or something is due, and applies what it has read.
func (f *follower) run(ctx context.Context, kv *kv, next round) error {
	if next.index == 0 {
		longest := min(kv.Coalesce<<min(next.failures, 16), longestPollPause)
		return f.readAllAfter(ctx, kv, transport.Jitter(longest), next, changelog.WatermarkMissing)
	}
	if err := registry.Sleep(ctx, time.Until(next.notBefore)); err != nil {
		return err
	}
	r := transport.Read{Index: next.index, Wait: min(kv.Wait, max(time.Until(next.due), time.Millisecond)), Stale: true}
	if kv.Doubts.Has(f.leases) {
		r = transport.Read{Stale: true}
	}
	start := time.Now()
	reading, err := kv.readDirectory(ctx, f.changes, r, next.keysOnly)
	if kv.HasEnded(ctx, r, start, err) {
		kv.Doubts.Add(f.leases)
		return nil
	}
	if err != nil {
		return err
	}

	reason, err := f.applyReading(ctx, kv, next, reading)
	if err == nil && reason != "" {
		// The cause usually affects all hosts at once, so they spread their reads.
		kv.logger.Debug("reading all leases", "prefix", f.leases, "reason", string(reason))
		err = f.readAllAfter(ctx, kv, rand.N(next.spread+time.Millisecond), next, reason)
	}
	if err != nil {
		return err
	}
	kv.Doubts.Clear(f.leases)
	if reason != "" {
		return nil
	}
	f.confirmed.Store(time.Now().UnixNano())
	if reading.Index == next.index && time.Now().Before(next.due) {
		return kv.PauseUnchanged(ctx, f.leases, r, start)
	}
	return nil
}

// applyReading follows a reading of the directory, and audits when that is due. It returns the reason when the
// directory cannot be followed. It drops a reading if another call has updated the directory since the round was
// planned.
func (f *follower) applyReading(
	ctx context.Context, kv *kv, next round, r changelog.Reading,
) (changelog.Reason, error) {
	if err := f.mu.Acquire(ctx, 1); err != nil {
		return "", err
	}
	defer f.mu.Release(1)
	if f.cursor.Index() != next.index {
		return "", nil
	}
	found, reason, err := f.changesSince(ctx, kv, r)
	if reason != "" {
		// A server that lags shows an older state: the leader's answer decides.
		found, reason, err = f.changesAtLeader(ctx, kv)
	}
	if reason != "" || err != nil {
		return reason, err
	}
	f.belief.Apply(found.changes, found.records)
	if f.cursor.Index() != next.index {
		// The larger the directory, the more a read costs.
		longest := kv.Coalesce * time.Duration(1+min(f.cursor.Len(), 1024)/128)
		f.schedule.notBefore = time.Now().Add(transport.Jitter(longest))
	}
	if time.Now().Before(next.due) {
		return "", nil
	}
	return "", f.audit(ctx, kv)
}

// readAllAfter reads all leases after a pause, if the directory could not be followed for a reason in a round. When its
// watermark is missing, it tries to create one.
func (f *follower) readAllAfter(
	ctx context.Context, kv *kv, pause time.Duration, r round, reason changelog.Reason,
) error {
	if err := registry.Sleep(ctx, pause); err != nil {
		return err
	}
	if err := f.mu.Acquire(ctx, 1); err != nil {
		return err
	}
	defer f.mu.Release(1)
	if f.cursor.Index() != r.index {
		return nil
	}
	var denied error
	if reason == changelog.WatermarkMissing {
		denied = kv.ensureWatermark(ctx, f.changes)
		if denied != nil && !errors.Is(denied, registry.ErrDenied) {
			return denied
		}
	}
	if err := f.readAll(ctx, kv, false); err != nil || denied == nil {
		return err
	}
	if f.schedule.failures++; f.schedule.failures == 1 {
		kv.logger.Warn("changes cannot be followed, reading all leases now and then",
			"prefix", f.changes, "error", denied)
	}
	return nil
}
