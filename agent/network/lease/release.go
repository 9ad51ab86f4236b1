package lease

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// ErrReleased means that the lease was released by request. No claim follows.
var ErrReleased = errors.New("the lease was released by request")

// ReleasedAdvice is the state of a network whose lease was released by request, with what to do about it.
const ReleasedAdvice = "released by request, restart or reload the agent to join again"

// releases keeps claims and releases apart. Its contexts end when what they are named after has happened.
type releases struct {
	turn chan struct{} // has an element during every claim and every release

	granted context.Context // a release was granted; no claim may follow
	grant   context.CancelFunc
	left    context.Context // the host has left the network, or could not leave it: the cause says why
	leave   context.CancelCauseFunc
	closed  context.Context // no request will be served any more
	close   context.CancelFunc
}

func newReleases() releases {
	r := releases{turn: make(chan struct{}, 1)}
	r.granted, r.grant = context.WithCancel(context.Background())
	r.left, r.leave = context.WithCancelCause(context.Background())
	r.closed, r.close = context.WithCancel(context.Background())
	return r
}

// claim calls claim unless the lease was released. No release happens until claim has returned.
func (r *releases) claim(ctx context.Context, claim func() (registry.Lease, error)) (registry.Lease, error) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return registry.Lease{}, ctx.Err()
	}
	defer func() { <-r.turn }()
	if r.granted.Err() != nil {
		return registry.Lease{}, ErrReleased
	}
	return claim()
}

// Release releases this host's lease with the store of the caller. It blocks until the store has refused that, or until
// ConfirmRelease says whether the host has left the network.
func (k *Keeper) Release(ctx context.Context, store registry.Registry) error {
	stopped := api.Errorf(http.StatusServiceUnavailable,
		"network %s: the lease cannot be released now: this host's part in the network is being stopped", k.o.Network)
	select {
	case k.releases.turn <- struct{}{}:
	case <-k.releases.closed.Done():
		return stopped
	case <-ctx.Done():
		return ctx.Err()
	}
	err := stopped
	func() {
		defer func() { <-k.releases.turn }()
		if k.releases.closed.Err() == nil {
			err = k.release(ctx, store)
		}
	}()
	if err != nil {
		return err
	}
	select {
	case <-k.releases.left.Done():
		if err := context.Cause(k.releases.left); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("network %s: the lease was released, but the datapath cannot be removed from this host; "+
				"the agent tries again: %w", k.o.Network, err)
		}
		return nil
	case <-k.releases.closed.Done():
		return stopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// release makes the request to the store, which goes on when the caller gives up. The caller has the turn.
func (k *Keeper) release(ctx context.Context, store registry.Registry) error {
	lease, held, _ := k.lease.Get()
	if !held || k.releases.granted.Err() != nil {
		return noLease(k.o.Network, "release", k.report.State())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if err := store.Release(ctx, lease); err != nil {
		return err
	}
	k.releases.grant()
	return nil
}

// UntilReleased returns a context that ends with ctx, and when the lease is released by request. The caller must call
// cancel.
func (k *Keeper) UntilReleased(ctx context.Context) (_ context.Context, cancel func()) {
	ctx, end := context.WithCancel(ctx)
	stop := context.AfterFunc(k.releases.granted, end)
	return ctx, func() {
		stop()
		end()
	}
}

// Outcome returns what has ended the lease: ErrReleased after a release by request, or the *WithdrawnError or
// *LostError since the last call; nil if nothing has. A caller that ended Keep for another reason may not have seen
// that error. During a request Outcome blocks until the store has answered.
func (k *Keeper) Outcome() error {
	k.releases.turn <- struct{}{}
	defer func() { <-k.releases.turn }()
	if k.releases.granted.Err() != nil {
		return ErrReleased
	}
	err, _, _ := k.outcome.Get()
	k.outcome.Clear()
	return err
}

// ConfirmRelease answers the request that was granted: the host has left the network or, if err is not nil, could not
// leave it.
func (k *Keeper) ConfirmRelease(err error) { k.releases.leave(err) }

// Close makes Release return at once, because no request will be served any more. Calling it again does nothing.
func (k *Keeper) Close() { k.releases.close() }

// Retire gives up a lease whose subnets are not a slot of n's plan, because it belongs to another definition. Such a
// lease would block other leases forever. If the subnets are in use and not in the plan at all, they must be withdrawn
// first: the error is then a *WithdrawnError. before is what an earlier process held, which counts if this one holds no
// lease.
func (k *Keeper) Retire(ctx context.Context, n registry.Network, before state.Network, inUse bool) error {
	lease := k.heldOrBefore(before)
	if lease.Session == "" || isSlotOf(n.Plan, lease) {
		return nil
	}
	if inUse && !isPartOf(n.Plan, lease) {
		return k.Withdraw(lease.Subnet(), fmt.Sprintf("%s is no subnet of the network any more", lease.Subnet()), "")
	}
	if err := k.GiveUp(ctx, before); err != nil {
		return fmt.Errorf("give up %s: %w", lease.Subnet(), err)
	}
	k.lease.Clear()
	k.report.Changed()
	return nil
}

// GiveUp releases the lease that this host holds, or else the one that an earlier process held before. It does nothing
// if there is none. The value of Lease stays until Reset.
func (k *Keeper) GiveUp(ctx context.Context, before state.Network) error {
	lease := k.heldOrBefore(before)
	if lease.Session == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return k.o.Registry.Release(ctx, lease)
}

// heldOrBefore returns the lease that this host holds, or else the one of an earlier process, which this one has not
// taken over. The latter may be empty.
func (k *Keeper) heldOrBefore(before state.Network) registry.Lease {
	if lease, held, _ := k.lease.Get(); held {
		return lease
	}
	return before.LeaseOf(k.o.Identity())
}
