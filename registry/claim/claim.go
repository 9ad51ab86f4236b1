// Package claim contains the order of a claim for a lease, once for all stores. A store implements the steps.
//
//  1. Keep the lease that the claim names, if this host still holds it as claimed. Nothing else is read.
//  2. Look at the network: first at what the client knows or can learn cheaply.
//  3. Choose a slot: see registry.Choose.
//  4. Create the marker of the network's leases, if the store has none.
//  5. If the claim takes a new slot, wait for hosts whose leases the store has lost: see LostLeases.
//  6. Take the slot in one transaction.
//  7. Remove other leases of this host.
//
// The transaction decides. It succeeds only if everything that the choice relied on is still as it was seen, so an old
// view can cost a refusal, but never gives two hosts one slot. After a refusal, and whenever an old view is not enough,
// the order begins again with the current state of the store.
package claim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/lenonet/leno/registry"
)

// ErrOutdated means that the store has changed since the view that a step relied on.
var ErrOutdated = errors.New("changed at the same time")

// View is one view of a network.
type View struct {
	registry.Situation
	Made uint64 // the index at which the network's marker was created, 0 for none
}

// Steps are the steps of one claim in one store. Run calls one at a time.
type Steps interface {
	// Keep keeps the lease on the claim's preferred subnet alive and returns it, if the record is exactly what the claim
	// would write and the claim's session holds it. Otherwise it returns false. The client removes other leases of this
	// host when it reads or renews leases next.
	Keep(ctx context.Context) (registry.Lease, bool, error)

	// Known returns a view that may be old, and false if there is none that a claim may rely on. It costs the same in a
	// small and in a large network, except that a client that knows nothing yet may read the leases once.
	Known(ctx context.Context) (View, bool, error)

	// Current returns the network as the store has it now. It returns ErrConflict if the network has another plan than
	// the claim's, and a *DeletedError if it was deleted.
	Current(ctx context.Context) (View, error)

	// Mark creates the network's marker. It returns ErrOutdated if there is one.
	Mark(ctx context.Context) error

	// Holders returns the hosts that have sessions, except those that are known to be younger than the network's marker.
	Holders(ctx context.Context) ([]registry.Holder, error)

	// Take carries out a choice made from the view that was returned last. It returns ErrOutdated if anything has changed
	// that the choice relied on: the record on the slot, the reservation of the slot, the marker or the definition.
	Take(ctx context.Context, choice registry.Choice) (registry.Lease, error)

	// Drop removes another lease of this host, which now has lease. It reports errors itself.
	Drop(ctx context.Context, other, lease registry.Lease)
}

const (
	// maxTries limits how often one claim chooses again. After each refusal another host has got a slot.
	maxTries = 64
	// The longest pause before a change is tried again doubles from firstPause to lastPause, so that hosts that change the
	// same records spread.
	firstPause = 20 * time.Millisecond
	lastPause  = 640 * time.Millisecond
)

// Run claims a slot of n and returns the lease. The errors are those of registry.Leases.
func Run(
	ctx context.Context, steps Steps, lost *LostLeases, n registry.Network, c registry.Claim,
) (registry.Lease, error) {
	if !c.OnlySlot {
		lease, ok, err := claimCheaply(ctx, steps, lost, n, c)
		if ok || err != nil && (errors.Is(err, registry.ErrUnavailable) || ctx.Err() != nil) {
			return lease, err
		}
	}
	var lease registry.Lease
	err := Retry(ctx, maxTries, func() error {
		view, err := steps.Current(ctx)
		if err == nil {
			lease, err = attempt(ctx, steps, lost, view, n, c, false)
		}
		return err
	})
	return lease, err
}

// Retry makes a change up to tries times, until its error is not ErrOutdated. If all are, the error is ErrConflict.
func Retry(ctx context.Context, tries int, change func() error) error {
	var err error
	for longest := firstPause; tries > 0; tries-- {
		if err = change(); !errors.Is(err, ErrOutdated) {
			return err
		}
		if err := registry.Sleep(ctx, rand.N(longest)); err != nil {
			return err
		}
		longest = min(2*longest, lastPause)
	}
	return fmt.Errorf("%w: %w", registry.ErrConflict, err)
}

// claimCheaply claims without reading the current state of the network. ok is false if that was not enough, with or
// without an error.
func claimCheaply(
	ctx context.Context, steps Steps, lost *LostLeases, n registry.Network, c registry.Claim,
) (lease registry.Lease, ok bool, err error) {
	if c.Session != "" && c.Prefer != c.Avoid {
		if lease, ok, err = steps.Keep(ctx); ok {
			lost.Forget(n.Name)
		}
	}
	if ok || err != nil {
		return lease, ok, err
	}
	view, ok, err := steps.Known(ctx)
	if !ok || err != nil {
		return registry.Lease{}, false, err
	}
	lease, err = attempt(ctx, steps, lost, view, n, c, true)
	return lease, err == nil, err
}

// attempt claims a slot of the network as it is in view, which may be old.
func attempt(
	ctx context.Context, steps Steps, lost *LostLeases, view View, n registry.Network, c registry.Claim, old bool,
) (registry.Lease, error) {
	made := view.Made
	if made == 0 {
		made = math.MaxUint64 // this claim creates the marker
	}
	lost.note(n.Name, made, c, time.Now(), old)
	choice, err := registry.Choose(view.Situation, c, rand.Uint64N)
	if err == nil && old && needsCurrent(choice, n.Plan, c) {
		err = ErrOutdated
	}
	if err == nil && view.Made == 0 {
		err = steps.Mark(ctx)
	}
	if err != nil {
		return registry.Lease{}, err
	}
	if choice.TakesNew(n.Plan, c) {
		holders, err := steps.Holders(ctx)
		if err != nil {
			return registry.Lease{}, err
		}
		if err := lost.check(n.Name, holders, view.Leases, made, c, time.Now()); err != nil {
			return registry.Lease{}, err
		}
	}
	lease, err := steps.Take(ctx, choice)
	if err != nil {
		return registry.Lease{}, err
	}
	lost.Forget(n.Name)
	for _, other := range surplus(view.Leases, lease) {
		steps.Drop(ctx, other, lease)
	}
	return lease, nil
}

// needsCurrent reports whether a choice must not be made from a view that may be old: it takes another host's lapsed
// lease, or the slot to avoid, although a better one may be free by now.
func needsCurrent(choice registry.Choice, plan registry.Plan, c registry.Claim) bool {
	return choice.Existing != nil && !choice.Own || plan.Subnets(choice.Slot)[0] == c.Avoid
}

// surplus returns the other held records with the node id of a lease just taken, which must be removed. They were left
// by a claim whose outcome was never known, or by a store that was set back.
func surplus(leases []registry.Lease, taken registry.Lease) (out []registry.Lease) {
	for _, l := range leases {
		if l.NodeID == taken.NodeID && l.Slot != taken.Slot && l.Held() {
			out = append(out, l)
		}
	}
	return out
}

// Record returns the lease that a claim gets on a slot, and the value of its record. Other hosts check the record with
// the same rules: failing here is better than being skipped.
func Record(n registry.Network, c registry.Claim, slot uint64) (registry.Lease, []byte, error) {
	l := Lease(n, c, slot)
	value, err := registry.FormatLease(l)
	if err != nil {
		return l, nil, err
	}
	l, err = registry.ParseLease(n, registry.SubnetKey(l.Subnet()), value)
	return l, value, err
}

// Lease returns the lease that a claim gets on a slot, as far as it is known before the store has it.
func Lease(n registry.Network, c registry.Claim, slot uint64) registry.Lease {
	return registry.Lease{
		Network:   n.Name,
		Slot:      slot,
		Subnets:   n.Plan.Subnets(slot),
		Node:      c.Node,
		NodeID:    c.NodeID,
		PublicIPs: c.PublicIPs,
		MTU:       c.MTU,
		Backend:   c.Backend,
	}
}
