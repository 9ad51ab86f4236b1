package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/claim"
)

// Acquire implements registry.Leases.
func (c *Client) Acquire(ctx context.Context, n registry.Network, wanted registry.Claim) (l registry.Lease, err error) {
	err = c.store.do(ctx, func() error {
		l, err = claim.Run(ctx, acquisition{c, n, wanted}, c.lost, n, wanted)
		return err
	})
	return l, registry.Wrap(err, "acquire lease in network %s", n.Name)
}

// acquisition is one call of Acquire. The store is locked during all of it, so it always sees the current state.
type acquisition struct {
	*Client
	network registry.Network
	claim   registry.Claim
}

var _ claim.Steps = acquisition{}

// Keep implements claim.Steps.
func (acquisition) Keep(context.Context) (registry.Lease, bool, error) {
	return registry.Lease{}, false, nil
}

// Known implements claim.Steps.
func (acquisition) Known(context.Context) (claim.View, bool, error) { return claim.View{}, false, nil }

// Current implements claim.Steps.
func (a acquisition) Current(context.Context) (claim.View, error) {
	s, n := a.store, a.network
	deleted := &registry.DeletedError{}
	switch now, err := s.networkLocked(n.Name); {
	case errors.As(err, &deleted):
		return claim.View{}, err
	case err == nil && !slices.Equal(now.Plan, n.Plan):
		return claim.View{}, fmt.Errorf("%w: the network has another plan now", registry.ErrConflict)
	}
	set, blocked := s.leasesLocked(n)
	a.clock.Observe(n.Name, set.Leases, time.Now())
	reservations, more := s.reservationsLocked(n)
	return claim.View{
		Situation: registry.Situation{Network: n, Leases: set.Leases, Bad: append(blocked, more...),
			Reservations: reservations.Reservations},
		Made: s.records[leasesDir+n.Name+"/"+marker].createIndex,
	}, nil
}

// Mark implements claim.Steps.
func (a acquisition) Mark(context.Context) error {
	a.store.markLocked(a.network.Name)
	return nil
}

// Holders implements claim.Steps.
func (a acquisition) Holders(context.Context) ([]registry.Holder, error) {
	return a.store.holdersLocked(a.network.Name), nil
}

// Take implements claim.Steps.
func (a acquisition) Take(_ context.Context, choice registry.Choice) (registry.Lease, error) {
	s := a.store
	want, value, err := claim.Record(a.network, a.claim, choice.Slot)
	if err != nil {
		return registry.Lease{}, err
	}
	candidates := []string{a.claim.Session}
	if choice.Own && choice.Existing.Held() {
		candidates = []string{choice.Existing.Session}
	}
	session, err := s.openLocked(a.network.Name, a.claim, candidates...)
	if err != nil {
		return registry.Lease{}, err
	}
	if own := choice.Existing; choice.Own && own.Session == session && own.SameValue(want) {
		return *own, nil
	}
	key := leaseKey(a.network.Name, want.Subnet())
	s.putLocked(key, value, session)
	set, _ := s.leasesLocked(a.network)
	for _, other := range registry.Former(set.Leases, want) {
		s.deleteLocked(leaseKey(other.Network, other.Subnet()))
	}
	return s.stamp(want, key), nil
}

// Drop implements claim.Steps.
func (a acquisition) Drop(_ context.Context, other, _ registry.Lease) {
	a.store.deleteLocked(leaseKey(other.Network, other.Subnet()))
}
