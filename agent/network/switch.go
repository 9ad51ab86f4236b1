package network

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend/switchover"
	"github.com/lenonet/leno/registry"
)

const (
	// endAfter is how long all leases must say that their hosts have moved before a host ends the switch. The lease of a
	// host that had to move back, because a peer has restarted, says so only a moment later.
	endAfter = 2 * time.Second

	// writeInterval is how long a host waits for each host with a lower slot to change the definition.
	writeInterval = 3 * time.Second

	// switchPause is the pause between two looks at the leases during a switch, idlePause that at other times, and
	// deniedPause that after the store refused a change for lack of rights.
	switchPause = time.Second
	idlePause   = 20 * time.Second
	deniedPause = time.Minute
)

// A switcher changes the network's definition where no operator is needed for that: it ends a switch to another
// backend, and begins a switch to new keys when it is due. The store may be slow to answer, so the goroutine that
// runs it does nothing else.
type switcher struct {
	deps   *Deps
	report *report.Reporter

	// since when all hosts are known to send over the backend that the network is switched to; zero if they do not
	moved time.Time
	keys  *keyAge
}

// run follows the views until ctx ends.
func (s *switcher) run(ctx context.Context, views *watch.Value[*peers.View]) error {
	s.moved = time.Time{} // nothing is known of the time since the last round
	defer s.report.Clear(health.Switch)
	defer s.report.Clear(health.Keys)
	backoff := retry.NewBackoff()
	for {
		view, known, changed := views.Get()
		pause := idlePause
		if known {
			n := view.Network
			switching, err := s.endSwitch(ctx, n, view)
			if err == nil {
				err = s.rotateKeys(ctx, n, view)
			}
			switch {
			case errors.Is(err, registry.ErrDenied):
				pause, changed = deniedPause, nil
			case err != nil:
				pause, changed = backoff.Next(), nil
			default:
				backoff.Reset()
				if switching {
					pause = switchPause
				}
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-time.After(pause):
		}
	}
}

// endSwitch ends the network's switch to another backend if all hosts, including those whose lease has lapsed, send to
// each other over that backend only: it stores a definition that names that backend alone. The host with the lowest
// slot does so, or the next host if it does not. endSwitch reports whether the network is being switched. The error is
// that of the store.
func (s *switcher) endSwitch(ctx context.Context, n registry.Network, v *peers.View) (switching bool, err error) {
	def := carriage.Of(n.Carriage())
	if def.Next == nil {
		s.moved = time.Time{}
		s.deps.Reports.Health.Resolve(n.Name, health.Switch, "the network is not being switched")
		return false, nil
	}
	switch haveMoved := s.haveMoved(def, v); {
	case !haveMoved:
		s.moved = time.Time{}
	case s.moved.IsZero():
		s.moved = time.Now()
	}
	if s.moved.IsZero() || time.Since(s.moved) < endAfter+writeDelay(v) {
		s.report.Check(health.Switch, api.Passing, describeSwitch(n.Name, def))
		return true, nil
	}
	err = s.putEnded(ctx, n, def.Ended(time.Now()))
	switch {
	case err == nil, errors.Is(err, registry.ErrConflict): // another host was first
		return true, nil
	case ctx.Err() != nil:
		return true, ctx.Err()
	}
	reason := fmt.Sprintf("all hosts send over %s only, and this agent cannot end the switch: %v", def.Target().Type, err)
	if errors.Is(err, registry.ErrDenied) {
		reason += fmt.Sprintf("; give an agent's token the right to write the network's definition, or run `leno network "+
			"switch %s -end`", n.Name)
	}
	if s.report.Check(health.Switch, api.Warning, reason) {
		s.report.Log().Warn("the switch of the network cannot be ended", "error", err)
	}
	return true, err
}

// haveMoved reports whether all hosts send to each other over the switch's target only.
func (s *switcher) haveMoved(def switchover.Definition, v *peers.View) bool {
	for _, lease := range v.Leases {
		if !def.IsMoved(lease.Backend.Options()) {
			return false
		}
	}
	return true
}

// describeSwitch describes a switch in progress.
func describeSwitch(network string, def switchover.Definition) string {
	from, what := def.Current.Type, "the network is being switched"
	switch def.Direction {
	case switchover.Stopped:
		what = "the switch of the network was stopped on the way"
	case switchover.Back:
		from = def.Next.Type
	}
	return fmt.Sprintf("%s from %s to %s; `leno network switch %s` shows which hosts have moved", what, from,
		def.Target().Type, network)
}

// writeDelay returns how long this host waits for the hosts with lower slots to change the definition.
func writeDelay(v *peers.View) (wait time.Duration) {
	for _, lease := range v.Leases {
		if lease.Held() && lease.Slot < v.Own.Slot {
			wait += writeInterval
		}
	}
	return wait
}

// rotateKeys begins a switch to new keys when it is due. The interval starts with the last switch or, in a network that
// was never switched, when a host first finds that the network rotates its keys. If the keys cannot be rotated,
// rotateKeys reports that before the rotation is due. The error is that of the store.
func (s *switcher) rotateKeys(ctx context.Context, n registry.Network, v *peers.View) error {
	kinds := s.deps.Datapaths.Backends
	def := carriage.Of(n.Carriage())
	every := kinds[n.Backend.Type].Rotates(def.Current.Options)
	if every == 0 {
		s.deps.Reports.Health.Resolve(n.Name, health.Keys, "the network does not rotate its keys")
		return nil
	}
	often, since := config.FormatDuration(every), s.keys.from(def.Since)
	if def.Next != nil {
		s.report.Check(health.Keys, api.Passing,
			fmt.Sprintf("the network is being switched; after that, all hosts get new keys every %s", often))
		return nil
	}
	others, _, _ := s.deps.Store.Networks.Get()
	changed, refused := definition.ChangeSwitch(n, api.RotateKeys, time.Now(), others.Set.Networks, kinds)
	if refused == nil {
		refused = definition.CheckFollowers(n, changed, v.Leases, kinds)
	}
	var err error
	switch {
	case refused != nil:
		s.reportNoRotation(often, refused)
		return nil
	case def.Since.IsZero(): // no host has found yet that keys are to be rotated
		def.Since = time.Now().UTC().Truncate(time.Second)
		since = def.Since
		if changed, err = carriage.Set(n, def); err == nil {
			err = s.replace(ctx, n, changed)
		}
	case time.Since(since) >= every+writeDelay(v):
		if err = s.replace(ctx, n, changed); err == nil {
			s.report.Log().Info("rotating keys", "since", def.Since)
			return nil
		}
	}
	switch {
	case errors.Is(err, registry.ErrConflict): // another host was first
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		s.reportNoRotation(often, err)
		return err
	}
	reason := fmt.Sprintf("all hosts get new keys at %s, and every %s", since.Add(every).UTC().Format(time.RFC3339), often)
	status := api.Passing
	if ahead := time.Until(def.Since); ahead > clockTolerance {
		status = api.Warning
		reason = fmt.Sprintf("%s, although the last switch ended at %s, which is in the future on this host; set the clocks "+
			"of all hosts, and run `leno network switch %s -rotate-keys`", reason, def.Since.Format(time.RFC3339), n.Name)
	}
	s.report.Check(health.Keys, status, reason)
	return nil
}

// clockTolerance is how much the clocks of two hosts may differ.
const clockTolerance = time.Minute

// A keyAge tells the age of a network's keys on this host's clock.
type keyAge struct {
	known bool      // a time was read
	since time.Time // Definition.Since, as it was last read
	read  time.Time // when since was first read; zero if that was the first value that this process read
}

// from returns the time from which the age of the keys counts. written is what the definition says, by the clock of the
// host that ended the last switch. If the clocks differ, the time counts at which this process first read it.
// Otherwise, a host whose clock is ahead would rotate the keys without end, and one whose clock was ahead would stop
// all rotations.
func (k *keyAge) from(written time.Time) time.Time {
	if !k.known || !written.Equal(k.since) {
		k.read = time.Time{}
		if now := time.Now(); k.known || written.After(now) {
			k.read = now
		}
		k.known, k.since = true, written
	}
	if k.read.IsZero() || k.read.Sub(written).Abs() <= clockTolerance {
		return written
	}
	return k.read
}

// reportNoRotation reports that keys cannot be rotated.
func (s *switcher) reportNoRotation(often string, err error) {
	why := strings.TrimPrefix(err.Error(), definition.ErrSwitch.Error()+": ")
	if s.report.Check(health.Keys, api.Warning, fmt.Sprintf("keys cannot be rotated, as they should be every %s: %s",
		often, why)) {
		s.report.Log().Warn("keys cannot be rotated", "error", err)
	}
}

// replace stores a definition that was changed.
func (s *switcher) replace(ctx context.Context, old, changed registry.Network) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return s.deps.Store.Registry.PutNetwork(ctx, changed.Replacing(old))
}

// putEnded stores the definition after a switch.
func (s *switcher) putEnded(ctx context.Context, n registry.Network, def switchover.Definition) error {
	changed, err := carriage.Set(n, def)
	if err != nil {
		return err
	}
	if err := s.replace(ctx, n, changed); err != nil {
		return err
	}
	s.report.Log().Info("the network was switched", "backend", def.Current.Type)
	s.report.Event(api.EventNetwork, api.Info, "the network was switched to backend "+def.Current.Type,
		map[string]string{"change": "switched"})
	return nil
}
