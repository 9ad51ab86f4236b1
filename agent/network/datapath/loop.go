package datapath

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/flapping"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

const (
	// slowTick bounds how long a fault can last that no event has announced.
	slowTick = 20 * time.Second
	// switchTick is how often a host looks whether more peers can be reached over the backend that a network is switched
	// to.
	switchTick = time.Second
	// resumeAfter is how long a datapath that works without this process waits for the store before the agent examines
	// it.
	resumeAfter = time.Second
	// addressPatience is how long the underlay may lack an address before the host does without it. When systemd-networkd
	// starts, it removes the addresses that it had set before and adds them again, and other devices would be built in the
	// meantime: VXLAN over IPv6 instead of over IPv4.
	addressPatience = 10 * time.Second
)

// A target is what the kernel is to agree with.
type target struct {
	network   registry.Network
	view      *peers.View    // nil before the leases of the other hosts are known
	underlay  *UnderlayState // nil before it is known
	state     backend.State  // made from both
	new       bool           // the state has not been applied yet, so writes are expected and are no repairs
	confirmed bool           // the view is from the store, and this host's lease is held
}

// lapsed reports whether the store says that no lease of the node is held, so its host is probably down.
func (t *target) lapsed(node string) bool {
	return t.confirmed &&
		!slices.ContainsFunc(t.view.Leases, func(l registry.Lease) bool { return l.Node == node && l.Held() })
}

// Run makes the host agree with the last view until ctx ends: at once, whenever the view, the kernel or the underlay
// changes, and on a slow tick. A view of another definition changes the backends. Run follows the underlay of n before
// a view is known, too. There must be a backend, and u is what AwaitUnderlay has returned.
func (r *Reconciler) Run(ctx context.Context, n registry.Network, views *watch.Value[*peers.View],
	u UnderlayState) error {
	return r.loop(ctx, views, &target{network: n, underlay: &u, confirmed: true}, nil)
}

// Resume keeps a datapath right that an earlier process left, until StopResumed is called. There must be a backend. If
// packets wait for this process, they flow when Resume returns. Otherwise the kernel may have more of the datapath than
// the files from which v was read.
func (r *Reconciler) Resume(ctx context.Context, v *peers.View, packetsWait bool) {
	r.instance.content.Store(v)
	views := watch.New[*peers.View]()
	views.Set(v)
	ctx, cancel := context.WithCancel(ctx)
	first, done := make(chan struct{}), make(chan struct{})
	go func() { // StopResumed waits for it
		defer close(done)
		if !packetsWait && retry.Sleep(ctx, resumeAfter) != nil {
			return
		}
		began := time.Now()
		resumed := &target{network: v.Network, state: backend.State{Partial: !packetsWait, MTU: v.Own.MTU}}
		_ = r.loop(ctx, views, resumed, func(passes int, err error) { // ends with ctx
			if passes == 1 {
				close(first)
			}
			if err == nil && !began.IsZero() {
				r.o.Report.Log().Info("datapath resumed", "subnet", v.Own.Subnet(),
					"peers", len(resumed.state.Peers), "took", time.Since(began).Round(time.Microsecond))
				began = time.Time{}
			}
		})
	}()
	r.resumed = func() {
		cancel()
		<-done
	}
	if packetsWait {
		<-first
	}
}

// loop makes the host agree with the target until ctx ends. It calls passed after each pass, with their number, unless
// passed is nil.
func (r *Reconciler) loop(ctx context.Context, views *watch.Value[*peers.View], t *target,
	passed func(passes int, err error)) error {
	tick := time.NewTicker(slowTick)
	defer tick.Stop()
	backoff := retry.NewBackoff()
	pause := settle // between a change in the kernel and the pass that follows
	// A change of the kernel's tables stays pending until they have been read, whatever else changes at the same time.
	_, _, kernel := r.o.Host.Kernel.Get()
	for passes := 0; ; {
		view, known, viewChanged := views.Get()
		var failed <-chan time.Time
		if known {
			if view != t.view {
				if err := r.setView(ctx, t, view); err != nil {
					return err
				}
			}
			repaired, err := r.pass(ctx, t)
			if err != nil {
				// Without these pauses, the writes of a failed pass would start the next one at once, without end.
				retryIn := backoff.Next()
				failed, pause = time.After(retryIn), r.pauseAfterFailure(retryIn)
			} else {
				pause = r.checks.pauseAfterPass(pause, repaired)
				backoff.Reset()
				failed = r.followSwitch(t)
			}
			if passes++; passed != nil {
				passed(passes, err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-viewChanged:
			continue
		case <-failed:
		case <-tick.C:
		case <-r.underlay.missing.over:
		case <-r.checks.again:
		case <-kernel:
			if err := retry.Sleep(ctx, pause); err != nil {
				return err
			}
		}
		_, _, kernel = r.o.Host.Kernel.Get()
		r.updateUnderlay(t)
	}
}

// followSwitch publishes how far this host has switched the network to another backend. It returns when to look again,
// because neither the kernel announces that a peer has answered, nor the store that the switch can end; nil if that is
// not necessary.
func (r *Reconciler) followSwitch(t *target) <-chan time.Time {
	s := r.Status().Report.Switch
	if s == nil {
		return nil
	}
	r.updateUnderlay(t)
	if s.Stopped && s.Unassigned == 0 {
		return nil
	}
	return time.After(switchTick)
}

// pauseAfterPass returns the pause before the next look at the kernel. before is the pause before this pass, and
// repaired reports whether this pass repaired something. leno does not race a program that changes something again and
// again.
func (c *checks) pauseAfterPass(before time.Duration, repaired bool) time.Duration {
	switch {
	case c.flapping.Describe() != "":
		return flapping.LongestPause
	case repaired:
		return min(2*before, flapping.LongestPause)
	}
	return settle
}

// pauseAfterFailure returns the pause between a change in the kernel and the next pass, after a pass that failed and is
// retried after retryIn. Without an underlay the pause is short: the change may have brought the underlay, and the
// datapath writes nothing that would itself cause changes.
func (r *Reconciler) pauseAfterFailure(retryIn time.Duration) time.Duration {
	if !r.Status().HasUnderlay {
		return settle
	}
	return min(retryIn, flapping.LongestPause)
}

// setView changes the target to another view, and the backends to its definition.
func (r *Reconciler) setView(ctx context.Context, t *target, v *peers.View) error {
	if n := v.Network; !n.Carriage().Equal(t.network.Carriage()) || n.Encryption != t.network.Encryption {
		if err := r.o.Change(ctx, n); err != nil {
			return err
		}
	}
	t.network, t.view, t.new = v.Network, v, true
	t.state.Subnets, t.state.Peers = v.Own.Subnets, v.Peers()
	t.state.Precedence = v.Own.CreateIndex
	t.state.Published = nil
	if v.Own.Backend.Type != "" { // otherwise the lease is from a file of this host, which lacks that
		t.state.Published = v.Own.Backend.Options()
	}
	r.instance.content.Store(v)
	r.updateUnderlay(t) // the choice of the underlay depends on the routes to the peers
	return nil
}

// updateUnderlay changes the target to the present underlay.
func (r *Reconciler) updateUnderlay(t *target) {
	before := t.underlay
	now, err := r.underlay.update(t.network, r.instance, before)
	if err != nil {
		return // the next pass fails and is retried
	}
	t.underlay = now
	t.state.MTU, t.state.Underlay = now.MTU, now.backendUnderlay()
	if t.confirmed && !now.isEqual(*before) {
		r.o.UnderlayChanged(t.network, *now, !reflect.DeepEqual(now.Choice.Addrs, before.Choice.Addrs))
	}
}

// pass makes one pass over the datapath and, if the lease is held, over what containers need besides it. repaired
// reports whether it repaired something.
func (r *Reconciler) pass(ctx context.Context, t *target) (repaired bool, err error) {
	if t.underlay == nil {
		return false, errors.Join(errors.New("no underlay is known yet"), r.serveSaved(ctx, t, t.state))
	}
	started, stood := time.Now(), !r.Status().Applied.IsZero()
	var guardErr error
	if t.network.Encryption != "" {
		guardErr = backend.About(backend.Routes, r.Guard(ctx, t.network))
	}
	ruleRepairs, rulesErr := r.keepRules(ctx, t.network)
	report, err := r.instance.apply(ctx, t.state)
	report.Repaired = append(report.Repaired, ruleRepairs...)
	carried, uncarriedErr := carriedPart(t.state, report.Uncarried)
	err = errors.Join(guardErr, backend.About(backend.Routes, rulesErr), err, uncarriedErr)
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	r.countPass(started, report, err)
	r.checks.lookAtHandshakes(r.instance.backend.Encrypted(), report, t.lapsed)
	r.checks.lookAtDetours(t.network, t.state, report, err)
	r.checks.afterPass(t.network, carried, r.Status().HasUnderlay, &report, err)
	r.status.update(func(s *Status) {
		s.Report, s.Flapping, s.Unanswered = report, r.checks.flapping.Count(), len(r.checks.late)
		if err == nil && t.confirmed {
			s.Applied = time.Now()
		}
	})
	switch {
	case err != nil && t.confirmed && (stood || guardErr == nil && isForeignRoute(err)):
		// The only obstacle may be the containers of a subnet that this host had before, to which the kernel has a route.
		// They go away once the subnet file names the present one.
		return false, errors.Join(err, r.o.Serve(ctx, t.view, carried, false))
	case !t.confirmed:
		return len(report.Repaired) > 0, errors.Join(err, r.serveSaved(ctx, t, carried))
	case err != nil:
		return len(report.Repaired) > 0, err
	}
	if report.Writes > 0 && t.new {
		r.o.Report.Log().Info("datapath applied",
			"peers", report.Peers, "writes", report.Writes, "took", time.Since(started).Round(time.Microsecond))
	}
	reachable := report.Switch == nil || report.Switch.Unassigned == 0
	if err := r.o.Serve(ctx, t.view, carried, reachable); err != nil {
		return false, err
	}
	t.new = false
	return len(report.Repaired) > 0, nil
}

// isForeignRoute reports whether nothing failed except routes in whose place there are others.
func isForeignRoute(err error) bool {
	return !slices.ContainsFunc(backend.Apart(err), func(e error) bool { return !errors.Is(e, backend.ErrForeignRoute) })
}

// serveSaved serves containers with a lease that the store has not confirmed.
func (r *Reconciler) serveSaved(ctx context.Context, t *target, s backend.State) error {
	if t.confirmed {
		return nil
	}
	return r.o.ServeSaved(ctx, t.view, s)
}

// carriedPart returns a state without this host's subnets of the uncarried pools, because containers can use the
// others. If no other is left, it returns the whole state and the error.
func carriedPart(s backend.State, uncarried []backend.Uncarried) (backend.State, error) {
	whole := s
	s.Subnets = slices.DeleteFunc(slices.Clone(s.Subnets), func(subnet netip.Prefix) bool {
		return slices.ContainsFunc(uncarried, func(u backend.Uncarried) bool { return u.Pool.Contains(subnet.Addr()) })
	})
	if len(uncarried) > 0 && len(s.Subnets) == 0 {
		return whole, backend.About(backend.Device, errUncarried(uncarried))
	}
	return s, nil
}

// errUncarried returns the pools of which this host carries no packets as an error, nil if there are none.
func errUncarried(uncarried []backend.Uncarried) error {
	var errs []error
	for _, u := range uncarried {
		errs = append(errs, u)
	}
	return errors.Join(errs...)
}

// countPass counts a pass, with its duration and its writes.
func (r *Reconciler) countPass(started time.Time, report backend.Report, err error) {
	r.o.Report.Time(telemetry.ReconcileDuration, time.Since(started))
	r.o.Report.Count(telemetry.ReconcileRuns, 1, telemetry.Result(err))
	r.o.Report.Count(telemetry.ReconcileWrites, report.Writes)
}
