package network

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend/transition"
	"github.com/lenonet/leno/registry"
)

// endAfter is how long all leases must say that their hosts have moved before a host ends the switch. The lease of a
// host that had to move back, because a peer has restarted, says so only a moment later.
const endAfter = 2 * time.Second

// writeInterval is how long a host waits for each host with a lower slot to change the definition.
const writeInterval = 3 * time.Second

// endSwitch ends the network's switch to another backend if all hosts, including those whose lease has lapsed, send to
// each other over that backend only: it stores a definition that names that backend alone. The host with the lowest
// slot does so, or the next host if it does not.
func (r *Runner) endSwitch(ctx context.Context, n registry.Network, v *peers.View) {
	def, err := transition.Parse(n.Backend.Type, n.Backend.Options())
	if err != nil || def.Next == nil {
		r.moved = time.Time{}
		return
	}
	for _, lease := range peers.Current(v.Leases) {
		if !def.IsMoved(lease.Backend.Options()) {
			r.moved = time.Time{}
			return
		}
	}
	if r.moved.IsZero() {
		r.moved = time.Now()
	}
	if time.Since(r.moved) < endAfter+writeDelay(v) {
		return
	}
	if err := r.putEnded(ctx, n, def.Ended(time.Now())); err != nil && !errors.Is(err, registry.ErrConflict) {
		r.report.Log().Warn("the switch of the network could not be ended", "error", err)
		r.report.Check(health.Network, api.Warning, fmt.Sprintf(
			"all hosts send over %s only, and the definition cannot be changed accordingly: %v", def.Target().Type, err))
	}
}

// writeDelay returns how long this host waits for the hosts with lower slots to change the definition.
func writeDelay(v *peers.View) (wait time.Duration) {
	for _, lease := range peers.Current(v.Leases) {
		if lease.Held() && lease.Slot < v.Own.Slot {
			wait += writeInterval
		}
	}
	return wait
}

// rotateKeys begins a switch to new keys when it is due. The interval starts with the last switch or, in a network that
// was never switched, when a host first finds that the network rotates its keys. If the keys cannot be rotated,
// rotateKeys reports that before the rotation is due.
func (r *Runner) rotateKeys(ctx context.Context, n registry.Network, v *peers.View) {
	kinds := r.deps.Datapaths.Backends
	def, err := transition.Parse(n.Backend.Type, n.Backend.Options())
	every := kinds[n.Backend.Type].Rotates(def.Current.Options)
	often := config.FormatDuration(every)
	switch {
	case err != nil || every == 0:
		r.report.Clear(health.Keys)
		return
	case def.Next != nil:
		r.report.Check(health.Keys, api.Passing, fmt.Sprintf("the network is being switched; after that, all hosts get new keys every %s", often))
		return
	}
	others, _, _ := r.deps.Store.Networks.Get()
	changed, err := definition.ChangeSwitch(n, api.RotateKeys, time.Now(), others.Set.Networks, kinds)
	first := def.Since.IsZero() // no host has found yet that keys are to be rotated
	due := first || time.Since(def.Since) >= every+writeDelay(v)
	if err == nil && first {
		def.Since = time.Now().UTC().Truncate(time.Second)
		changed, err = definition.WithTransition(n, def)
	}
	if err == nil && due {
		err = r.replace(ctx, n, changed)
	}
	switch {
	case errors.Is(err, registry.ErrConflict): // another host was first
	case err != nil:
		why := strings.TrimPrefix(err.Error(), definition.ErrSwitch.Error()+": ")
		reason := fmt.Sprintf("keys cannot be rotated, as they should be every %s: %s", often, why)
		if r.report.Check(health.Keys, api.Warning, reason) {
			r.report.Log().Warn("keys cannot be rotated", "error", err)
		}
	case due && !first:
		r.report.Log().Info("rotating keys", "since", def.Since)
	default:
		r.report.Check(health.Keys, api.Passing, fmt.Sprintf("all hosts get new keys at %s, and every %s",
			def.Since.Add(every).Format(time.RFC3339), often))
	}
}

// replace stores a definition that was changed.
func (r *Runner) replace(ctx context.Context, old, changed registry.Network) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return r.deps.Store.Registry.PutNetwork(ctx, changed.Replacing(old))
}

// putEnded stores the definition after a switch.
func (r *Runner) putEnded(ctx context.Context, n registry.Network, def transition.Definition) error {
	changed, err := definition.WithTransition(n, def)
	if err != nil {
		return err
	}
	if err := r.replace(ctx, n, changed); err != nil {
		return err
	}
	r.report.Log().Info("the network was switched", "backend", def.Current.Type)
	r.report.Event(api.EventNetwork, api.Info, "the network was switched to backend "+def.Current.Type,
		map[string]string{"change": "switched"})
	return nil
}
