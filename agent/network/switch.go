package network

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend/transition"
	"github.com/lenonet/leno/registry"
)

// endAfter is how long all leases must say that their hosts have moved before a switch is ended. A host that had to go
// back, because a peer has started again, says so a moment later.
const endAfter = 2 * time.Second

// endTurn is how long each host waits for the one before it to end a switch.
const endTurn = 3 * time.Second

// endSwitch ends the switch of the network to another backend if all hosts, also those whose lease has lapsed, send to
// each other over that backend only: the definition then names it alone. The host with the first slot does so, or the
// next one if it does not.
func (r *Runner) endSwitch(ctx context.Context, n registry.Network, v *peers.View) {
	course, err := transition.Parse(n.Backend.Type, n.Backend.Options())
	if err != nil || course.Next == nil {
		r.moved = time.Time{}
		return
	}
	for _, lease := range peers.Current(v.Leases) {
		if !course.IsMoved(lease.Backend.Options()) {
			r.moved = time.Time{}
			return
		}
	}
	if r.moved.IsZero() {
		r.moved = time.Now()
	}
	if time.Since(r.moved) < endAfter+turn(v) {
		return
	}
	if err := r.putEnded(ctx, n, course.Ended(time.Now())); err != nil && !errors.Is(err, registry.ErrConflict) {
		r.report.Log().Warn("the switch of the network could not be ended", "error", err)
		r.report.Check(health.Network, api.Warning, fmt.Sprintf(
			"all hosts send over %s only, and the definition cannot be changed accordingly: %v", course.Target().Type, err))
	}
}

// turn returns how long this host leaves it to those before it to change the definition.
func turn(v *peers.View) (wait time.Duration) {
	for _, lease := range peers.Current(v.Leases) {
		if lease.Held() && lease.Slot < v.Own.Slot {
			wait += endTurn
		}
	}
	return wait
}

// rotateKeys begins a switch to new keys when they are due. The time counts from the last switch. For a network that was
// never switched, it counts from when a host first finds that keys are to be rotated.
func (r *Runner) rotateKeys(ctx context.Context, n registry.Network, v *peers.View) {
	kind := r.deps.Datapaths.Backends[n.Backend.Type]
	course, err := transition.Parse(n.Backend.Type, n.Backend.Options())
	if err != nil || course.Next != nil || kind.RotateEvery == nil {
		return
	}
	every := kind.RotateEvery(course.Current.Options)
	if every == 0 || !course.Since.IsZero() && time.Since(course.Since) < every+turn(v) {
		return
	}
	due := !course.Since.IsZero()
	if due {
		n, err = definition.Turn(n, api.RotateKeys, time.Now(), r.deps.Datapaths.Backends)
	} else {
		course.Since = time.Now().UTC().Truncate(time.Second)
		n, err = definition.WithCourse(n, course)
	}
	if err == nil {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		err = r.deps.Store.Registry.PutNetwork(call, n)
	}
	switch {
	case err == nil && due:
		r.report.Log().Info("rotating keys", "since", course.Since)
	case err != nil && !errors.Is(err, registry.ErrConflict):
		r.report.Log().Warn("keys cannot be rotated", "error", err)
	}
}

func (r *Runner) putEnded(ctx context.Context, n registry.Network, course transition.Course) error {
	n, err := definition.WithCourse(n, course)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := r.deps.Store.Registry.PutNetwork(ctx, n); err != nil {
		return err
	}
	r.report.Log().Info("the network was switched", "backend", course.Current.Type)
	r.report.Event(api.EventNetwork, api.Info, "the network was switched to backend "+course.Current.Type,
		map[string]string{"change": "switched"})
	return nil
}
