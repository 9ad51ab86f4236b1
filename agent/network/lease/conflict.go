package lease

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/registry"
)

const (
	// answerTime is how long a host may take to answer a challenge. A running host watches its record.
	answerTime = 3 * time.Second
	// challengeAgain is how long an answer counts. It is shorter than trustedAfter, so that both hosts keep reporting
	// the conflict.
	challengeAgain = 20 * time.Second
)

// Suspect records for one source, such as "leases", that another host is mistaken for this one; the zero Suspicion
// clears that of the source. The Keeper itself uses the sources "claim" and "record".
func (k *Keeper) Suspect(source string, s Suspicion) { k.condition.suspect(source, s) }

// A conflictResolver holds what one Acquire has learned about the records of other hosts that stand in its way.
type conflictResolver struct {
	keeper     *Keeper
	network    registry.Network
	lastAnswer time.Time // when the other host with this host's node id last showed that it is alive
	oldBelow   uint64    // records on our slot with a version below this are from before the store was set back
	gaveUpSlot bool      // a record on our slot counts whatever its version
}

// complete returns a claim completed with what was learned. A host whose subnet was withdrawn claims like one that
// never had it.
func (r *conflictResolver) complete(c registry.Claim) registry.Claim {
	c.Since = max(c.Since, r.oldBelow)
	if r.gaveUpSlot {
		c.Since = min(c.Since, 1)
	}
	if r.keeper.condition.withdrawal() != "" {
		c.Running, c.RecentUse, c.Since = false, false, 0
	}
	return c
}

// resolve handles a claim that failed with err because of another host's record. again is true if the claim may be
// repeated at once. Otherwise the returned error says why the claim cannot succeed yet; it may be err itself.
func (r *conflictResolver) resolve(ctx context.Context, c registry.Claim, err error) (again bool, _ error) {
	var rival *registry.RivalError
	if !errors.As(err, &rival) {
		return false, err
	}
	switch them := rival.Lease; {
	case errors.Is(err, registry.ErrSetBack) && !c.Running && !c.RecentUse:
		// This host was away for longer than lease.hold: the other one may have been given the subnet since.
		r.gaveUpSlot = true
		return true, nil
	case errors.Is(err, registry.ErrSetBack):
		return r.awaitExpiry(ctx, them, err)
	case them.NodeID == c.NodeID && time.Since(r.lastAnswer) > challengeAgain:
		answered, challengeErr := r.challenge(ctx, c, them)
		if challengeErr != nil {
			return false, challengeErr
		}
		if !answered {
			return true, nil
		}
		r.lastAnswer = time.Now()
	}
	r.keeper.condition.suspect("claim", Suspicion{Reason: err.Error()})
	return false, err
}

// challenge finds out whether the host is alive whose record has our node id but none of our addresses. Either this
// host has moved and the record is its own, or one of the two hosts is a copy of the other. challenge appends our
// addresses to those in the record, or those behind NAT if they have the public ones in common. A live host removes
// them again. Peers use the first address and see no difference.
func (r *conflictResolver) challenge(
	ctx context.Context, c registry.Claim, them registry.Lease,
) (answered bool, err error) {
	r.keeper.report.Waiting(health.Lease, fmt.Sprintf("waiting for a lease: the record of this host is from another "+
		"address, %s: asking whether that host is there", them.PublicIPs[0]))
	mine := c
	mine.Node, mine.MTU, mine.Backend = them.Node, them.MTU, them.Backend
	mine.Session, mine.Prefer = them.Session, them.Subnet()
	marks := slices.DeleteFunc(slices.Clone(c.PublicIPs),
		func(a netip.Addr) bool { return slices.Contains(them.PublicIPs, a) })
	if len(marks) == 0 {
		marks = registry.Lease{Backend: c.Backend}.LocalIPs()
	}
	mine.PublicIPs = slices.Concat(them.PublicIPs, marks)
	mine.Running, mine.RecentUse, mine.Since = false, false, 0
	challenged, err := r.send(ctx, mine)
	if err != nil {
		return false, err
	}
	if challenged.Slot != them.Slot {
		return false, fmt.Errorf("%w: the record of %s is not on %s any more",
			registry.ErrConflict, them.Node, them.Subnet())
	}
	wait, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	for index := challenged.ModifyIndex; ; {
		now, next, err := r.keeper.o.Registry.WatchLease(wait, r.network, them.Subnet(), index)
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case wait.Err() != nil, errors.Is(err, registry.ErrLeaseNotFound), errors.Is(err, registry.ErrLeaseRevoked):
			return false, nil
		case err != nil:
			return false, err
		case !now.Held() || now.NodeID != c.NodeID:
			return false, nil
		case !slices.ContainsFunc(marks, func(a netip.Addr) bool { return slices.Contains(now.PublicIPs, a) }):
			return true, nil
		}
		index = next
	}
}

// send sends a claim without recording the lease as held by this host.
func (r *conflictResolver) send(ctx context.Context, c registry.Claim) (registry.Lease, error) {
	return r.keeper.releases.claim(ctx, func() (registry.Lease, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return r.keeper.o.Registry.Acquire(ctx, r.network, c)
	})
}

// awaitExpiry blocks while our slot has a record that came back when the store was set back. The host of that record
// may run with another slot; then it removes the record when it writes its own lease again. It may no longer exist;
// then the record lapses. Or it may use the same slot as this host; then the slot is given to it.
func (r *conflictResolver) awaitExpiry(ctx context.Context, them registry.Lease, err error) (again bool, _ error) {
	k := r.keeper
	recreated, lookErr := r.isNetworkRecreated(ctx)
	if lookErr != nil {
		return false, lookErr
	}
	if recreated {
		// Versions start from the beginning again, so the record is not older.
		r.gaveUpSlot = true
		return true, nil
	}
	patience := k.o.Settings.TTL * 5 / 2 // a session that is not renewed ends after twice its TTL
	until := time.Now().Add(patience).UTC().Format(time.RFC3339)
	reason := fmt.Sprintf("%v; waiting until %s for that to end", err, until)
	k.report.Waiting(health.Lease, reason)
	k.condition.setProblem(reason)
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	backoff := k.o.Outage.NewLoop()
	for index := them.ModifyIndex; ; {
		now, next, err := k.o.Registry.WatchLease(wait, r.network, them.Subnet(), index)
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case wait.Err() != nil:
			r.gaveUpSlot = true
			return true, nil
		case errors.Is(err, registry.ErrLeaseNotFound), errors.Is(err, registry.ErrLeaseRevoked):
			return true, nil
		case err != nil:
			if err := backoff.Wait(ctx, err, wait.Done()); err != nil {
				return false, err
			}
			index = 0
			continue
		case now.NodeID == them.NodeID && now.CreateIndex == them.CreateIndex && !now.Held():
			r.oldBelow = now.ModifyIndex + 1
			return true, nil
		case now.ModifyIndex != them.ModifyIndex:
			return true, nil
		}
		index = next
	}
}

// isNetworkRecreated reports whether the network's key has been created again since the caller read the definition,
// even if the definition itself is the same. It returns false if the store has lost the definition.
func (r *conflictResolver) isNetworkRecreated(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	now, err := r.keeper.o.Registry.Network(ctx, r.network.Name)
	if errors.Is(err, registry.ErrNetworkNotFound) {
		return false, nil
	}
	return now.CreateIndex != r.network.CreateIndex, err
}
