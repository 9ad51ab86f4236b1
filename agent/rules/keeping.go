package rules

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/flapping"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/backend"
)

const (
	// lookInterval is the shortest time between two looks at the rules that changes of other programs cause, and the
	// time between two calls of Touched. On a host where programs write rules all the time, it limits the cost.
	// Whatever is wrong is right again within 2 s.
	lookInterval = time.Second

	// settle lets a burst of changes end before the rules are read.
	settle = 100 * time.Millisecond
)

// Run keeps the rules as they are wanted until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return k.watch(ctx) })
	g.Go(func() error { return k.keep(ctx) })
	return g.Wait()
}

// watch passes changes of the firewall on.
func (k *Keeper) watch(ctx context.Context) error {
	const name = "firewall watch"
	backoff := retry.NewBackoff()
	for {
		err := k.writer.firewall.Watch(ctx, func() {
			k.faults.End(name)
			poke(k.changed)
			k.hooks.Changed()
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if k.faults.Begin(name) {
			k.log.Warn("watching the firewall failed, the resync goes on", "error", err)
		}
		if err := backoff.Wait(ctx); err != nil {
			return err
		}
	}
}

// keep looks at the rules after each change, and when it is time.
func (k *Keeper) keep(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(k.next(time.Now())):
			k.look(ctx, false)
			continue
		case <-k.applied: // the next look may be due sooner now
			continue
		case <-k.changed:
		}
		if err := retry.Sleep(ctx, k.pause(time.Now())); err != nil {
			return err
		}
		k.look(ctx, true)
	}
}

func (k *Keeper) next(now time.Time) time.Duration {
	k.desired.mu.Lock()
	defer k.desired.mu.Unlock()
	return k.desired.next(now, k.pending.any())
}

func (k *Keeper) pause(now time.Time) time.Duration {
	k.desired.mu.Lock()
	defer k.desired.mu.Unlock()
	return k.desired.pause(now)
}

// look looks at the rules if they changed or if it is time. While rules exist of a network that is expected, nothing is
// written.
func (k *Keeper) look(ctx context.Context, changed bool) {
	k.writer.mu.Lock()
	defer k.writer.mu.Unlock()
	k.desired.mu.Lock()
	idle := k.desired.isIdle() || k.pending.any()
	due, silent := k.desired.isDue(time.Now(), changed), k.desired.last.report.Silent
	k.desired.mu.Unlock()
	if !idle && (due || silent && k.writer.firewall.IsTouched()) {
		_ = k.apply(ctx) // reported in health, and tried again
	}
}

// apply reads the rules and writes what differs. Rules that stay although no network is left are a fault, too, which is
// tried again, but no error of the caller; without rights, the agent cannot know of any. The caller holds the writer's
// lock.
func (k *Keeper) apply(ctx context.Context) error {
	want, tried := k.desired.begin()
	started := time.Now()
	report, err := k.writer.firewall.Apply(ctx, want)
	fault := err
	if err == nil && len(want.Networks) == 0 {
		if fault = errors.Join(report.Leftover, report.Unguarded); errors.Is(fault, unix.EPERM) {
			fault = nil
		}
	}
	k.desired.mu.Lock()
	defer k.desired.mu.Unlock()
	now := time.Now()
	k.hooks.Applied(Pass{Took: now.Sub(started), Writes: report.Writes, Repaired: len(report.Repaired), Err: fault})
	poke(k.applied)
	k.reportRepairs(now, report.Repaired)
	k.desired.finish(now, tried, report, fault, ctx.Err() != nil)
	k.writeChecks()
	return err
}

// reportRepairs logs what other programs had changed. The caller holds the lock of desired.
func (k *Keeper) reportRepairs(now time.Time, repaired []string) {
	for _, name := range k.desired.flapping.Settle(now) {
		k.log.Info("firewall rules are no longer being changed by another program", "repaired", name)
	}
	var repairs []backend.Repair
	for _, what := range repaired {
		repairs = append(repairs, backend.Repair{Fault: what})
	}
	single, repeated := k.desired.flapping.Record(now, repairs)
	if len(single) > 0 {
		what := flapping.Sentence(single)
		k.log.Warn("firewall rules were changed by another program, repaired", "repaired", what)
		k.hooks.Repaired("firewall rules were changed by another program, repaired: " + what)
	}
	for _, what := range repeated {
		k.log.Warn("firewall rules are being changed by another program again and again, logged once a minute",
			"repaired", what)
		k.hooks.Repaired("firewall rules are being changed by another program again and again: " + what)
	}
}
