package agent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/flapping"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
)

// lookSpan is the shortest time between two looks at the rules that somebody's
// changes ask for, and the time between two questions whether there were changes
// where nobody tells of them. On a host where programs write rules all the time,
// it bounds what that costs; whatever is wrong is right again within 2 s.
const lookSpan = time.Second

// run keeps the rules as they are wanted until ctx ends, whatever the networks
// wait for.
func (k *firewallKeeper) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return k.watch(ctx) })
	g.Go(func() error { return k.uphold(ctx) })
	return g.Wait()
}

// poke leaves a value in the channel, which has room for one.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// watch passes changes of the firewall on.
func (k *firewallKeeper) watch(ctx context.Context) error {
	const name = "firewall watch"
	backoff := retry.NewBackoff()
	for {
		err := k.rules.Watch(ctx, func() {
			k.faults.End(name)
			poke(k.stirred)
			if k.told != nil {
				k.told()
			}
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

// uphold looks at the rules after each change, and when it is time.
func (k *firewallKeeper) uphold(ctx context.Context) error {
	for {
		timer := time.NewTimer(k.next(time.Now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
			k.look(ctx, false)
			continue
		case <-k.applies: // it may be time sooner now
			timer.Stop()
			continue
		case <-k.stirred:
			timer.Stop()
		}
		if err := retry.Sleep(ctx, k.calm(time.Now())); err != nil {
			return err
		}
		k.look(ctx, true)
	}
}

// next is how long nothing has to be done unless somebody stirs.
func (k *firewallKeeper) next(now time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	until := k.looked.Add(k.config.Resync)
	switch {
	case len(k.shown) == 0:
		until = now.Add(time.Hour) // whoever is there first stirs
	case k.expected.left():
		until = now.Add(lookSpan)
	case k.err != nil:
		until = k.again
	}
	wait := max(until.Sub(now), 0)
	if len(k.shown) > 0 && k.report.Silent {
		wait = min(wait, lookSpan)
	}
	return wait
}

// calm is how long a change waits before the rules are looked at: a burst of them
// ends, and whoever changes them again and again is not to be outrun.
func (k *firewallKeeper) calm(now time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	span := lookSpan
	if k.drift.Describe() != "" {
		span = flapping.LongestPause
	}
	return max(settle, k.looked.Add(span).Sub(now))
}

// look looks at the rules, if stirred or if it is time. While rules stand of which
// nobody has told yet, nothing is written.
func (k *firewallKeeper) look(ctx context.Context, stirred bool) {
	k.turn.Lock()
	defer k.turn.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	due := stirred || k.err != nil || now.Sub(k.looked) >= k.config.Resync
	if reflect.DeepEqual(k.failed, &attempt{k.config, k.wanted}) {
		due = !now.Before(k.again) // whatever others change meanwhile
	}
	switch {
	case len(k.shown) == 0 || k.expected.left():
	case due || k.report.Silent && k.rules.Touched():
		_ = k.apply(ctx) // told in health, and tried again
	}
}

// note tells of what somebody else had changed; mu is held.
func (k *firewallKeeper) note(now time.Time, healed []string) {
	for _, name := range k.drift.Settle(now) {
		k.log.Info("firewall rules are not changed again and again any more", "healed", name)
	}
	var repairs []backend.Repair
	for _, what := range healed {
		repairs = append(repairs, backend.Repair{Fault: what})
	}
	single, quarrels := k.drift.Record(now, repairs)
	if len(single) > 0 {
		k.log.Warn("firewall rules were changed by somebody else, healed", "healed", flapping.Sentence(single))
		k.healed("firewall rules were changed by somebody else, healed: " + flapping.Sentence(single))
	}
	for _, q := range quarrels {
		k.log.Warn("firewall rules are being changed by somebody else again and again, told once a minute", "healed", q)
		k.healed("firewall rules are being changed by somebody else again and again: " + q)
	}
}

// tell writes the check of every network that is there; mu is held.
func (k *firewallKeeper) tell() {
	reason := ""
	if k.err != nil {
		reason = advice.Reason(advice.Firewall, k.err)
		k.faults.Failing(k.log, health.Firewall, reason)
	} else {
		k.faults.Mended(k.log, health.Firewall)
	}
	for network := range k.shown {
		status, reason := k.verdict(k.wanted[network], reason)
		k.health.Set(network, health.Firewall, status, reason)
	}
}

// verdict is how it stands with one network's rules; failure is why they could
// not be applied.
func (k *firewallKeeper) verdict(n firewall.Network, failure string) (status, reason string) {
	switch {
	case k.err != nil && dispensable(n, k.err):
		return api.Warning, failure
	case k.err != nil:
		return api.Critical, failure
	case !n.IPMasq && !n.Forward:
		return api.Passing, "no rules are asked for"
	}
	status, reason = api.Passing, "rules are in place"
	if c := k.report.Choice; c.Kind != "" {
		reason += fmt.Sprintf(": %s, since %s", c.Kind, c.Reason)
	}
	if instead := k.report.Instead; instead != nil {
		status, reason = api.Warning, reason+"; mend what does not work, rules of another kind cannot overrule what Docker and others drop: "+
			advice.Reason(advice.Firewall, instead)
	}
	if left := k.report.Leftover; left != nil {
		status, reason = api.Warning, reason+"; older ones could not be removed: "+advice.Reason(advice.Firewall, left)
	}
	if quarrels := k.drift.Describe(); quarrels != "" {
		status, reason = api.Warning, reason+"; they are being changed by somebody else again and again: "+quarrels
	}
	return status, reason
}

// dispensable says of an error with a network's rules that packets flow all the
// same: the rules stand, or where nothing drops forwarded packets, nothing is
// missing.
func dispensable(n firewall.Network, err error) bool {
	return errors.Is(err, firewall.ErrUnseen) || errors.Is(err, firewall.ErrNotInstalled) && !n.IPMasq
}

// choice is what holds the rules now, for the API, nil when there are none.
func (k *firewallKeeper) choice() *api.Firewall {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.report.Choice.Kind == "" {
		return nil
	}
	out := api.Firewall(k.report.Choice)
	return &out
}
