package agent

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
	// answerTime is how long a host may take to answer a knock. A running host watches its record.
	answerTime = 3 * time.Second
	// knockAgain is how long an answer counts. It is shorter than trusted, so that both hosts keep reporting the
	// conflict.
	knockAgain = 20 * time.Second
)

// rivals holds what one attempt to get a lease has learned about the records that stand in its way.
type rivals struct {
	*runner
	network  registry.Network
	answered time.Time // when the other host with this host's node id last showed that it is alive
	before   uint64    // records on our slot with a version below this are from before the store was set back
	given    bool      // our slot belongs to another host now
}

// amend returns a claim completed with what was learned.
func (v *rivals) amend(c registry.Claim) registry.Claim {
	c.Since = max(c.Since, v.before)
	if v.given {
		c.Running, c.Lately, c.Since, c.Prefer = false, false, 0, netip.Prefix{}
	}
	return c
}

// meet handles a claim that failed with err because of another host's record. again is true if the claim may be
// repeated at once. Otherwise the returned error says why the claim cannot succeed yet; it may be err itself.
func (v *rivals) meet(ctx context.Context, c registry.Claim, err error) (again bool, _ error) {
	var rival *registry.RivalError
	if !errors.As(err, &rival) {
		return false, err
	}
	switch them := rival.Lease; {
	case errors.Is(err, registry.ErrSetBack):
		return v.outwait(ctx, them, err)
	case them.NodeID == c.NodeID && time.Since(v.answered) > knockAgain:
		answered, knockErr := v.knock(ctx, c, them)
		if knockErr != nil {
			return false, knockErr
		}
		if !answered {
			return true, nil
		}
		v.answered = time.Now()
	}
	v.suspect("claim", err.Error())
	return false, err
}

// knock finds out whether the host is alive whose record has our node id but none of our addresses. Either this host
// has moved and the record is its own, or one of the two hosts is a copy of the other. knock appends our addresses to
// those in the record. A live host removes them again. Peers use the first address and see no difference.
func (v *rivals) knock(ctx context.Context, c registry.Claim, them registry.Lease) (answered bool, err error) {
	v.report.Waiting(health.Lease, fmt.Sprintf("waiting for a lease: the record of this host is from another address, %s: asking whether that host is there", them.PublicIPs[0]))
	mine := c
	mine.Node, mine.MTU, mine.Backend, mine.Session, mine.Prefer = them.Node, them.MTU, them.Backend, them.Session, them.Subnet()
	mine.PublicIPs = slices.Concat(them.PublicIPs, c.PublicIPs)
	mine.Running, mine.Lately, mine.Since = false, false, 0
	knocked, err := v.write(ctx, mine)
	if err != nil {
		return false, err
	}
	if knocked.Slot != them.Slot {
		return false, fmt.Errorf("%w: the record of %s is not on %s any more", registry.ErrConflict, them.Node, them.Subnet())
	}
	wait, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	for index := knocked.ModifyIndex; ; {
		now, next, err := v.env.registry.WatchLease(wait, v.network, them.Subnet(), index)
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case wait.Err() != nil, errors.Is(err, registry.ErrLeaseNotFound), errors.Is(err, registry.ErrLeaseRevoked):
			return false, nil
		case err != nil:
			return false, err
		case !now.Held() || now.NodeID != c.NodeID:
			return false, nil
		case !sharesAddress(now.PublicIPs, c.PublicIPs):
			return true, nil
		}
		index = next
	}
}

// write sends a claim without recording the lease as held by this host.
func (v *rivals) write(ctx context.Context, c registry.Claim) (registry.Lease, error) {
	v.claiming.Lock()
	defer v.claiming.Unlock()
	if v.released != nil {
		return registry.Lease{}, errReleased
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return v.env.registry.Acquire(ctx, v.network, c)
}

// outwait blocks while our slot has a record that came back when the store was set back. The host of that record may
// run with another slot; then it removes the record when it writes its own lease again. It may no longer exist; then
// the record lapses. Or it may use the same slot as this host; then the slot is given to it.
func (v *rivals) outwait(ctx context.Context, them registry.Lease, err error) (again bool, _ error) {
	anew, lookErr := v.madeAnew(ctx)
	if lookErr != nil {
		return false, lookErr
	}
	if anew {
		// Versions start from the beginning again, so the record is not older.
		v.given = true
		return true, nil
	}
	patience := v.config.Lease.TTL * 5 / 2 // a session that is not renewed ends after twice its TTL
	reason := fmt.Sprintf("%v; waiting until %s for that to end", err, time.Now().Add(patience).UTC().Format(time.RFC3339))
	v.report.Waiting(health.Lease, reason)
	v.troubled(reason)
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	backoff := v.env.outage.NewLoop()
	for index := them.ModifyIndex; ; {
		now, next, err := v.env.registry.WatchLease(wait, v.network, them.Subnet(), index)
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case wait.Err() != nil:
			v.given = true
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
			v.before = now.ModifyIndex + 1
			return true, nil
		case now.ModifyIndex != them.ModifyIndex:
			return true, nil
		}
		index = next
	}
}

// madeAnew reports whether the network's key has been created again since this runner read the definition, even if the
// definition itself is the same. It returns false if the store has lost the definition.
func (v *rivals) madeAnew(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	now, err := v.env.registry.Network(ctx, v.network.Name)
	if errors.Is(err, registry.ErrNetworkNotFound) {
		return false, nil
	}
	return now.CreateIndex != v.network.CreateIndex, err
}

// passing returns the addresses that follow our own in our record. They belong to another host with our node id that
// asks whether this host is alive.
func passing(now, own registry.Lease) []netip.Addr {
	n := len(own.PublicIPs)
	if now.NodeID != own.NodeID || len(now.PublicIPs) <= n || !slices.Equal(now.PublicIPs[:n], own.PublicIPs) {
		return nil
	}
	return now.PublicIPs[n:]
}

func sharesAddress(a, b []netip.Addr) bool {
	return slices.ContainsFunc(a, func(one netip.Addr) bool { return slices.Contains(b, one) })
}
