package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/lenonet/leno/registry"
)

// apply carries out the plan for one network. The error is one after which nothing else can succeed.
func (c *copier) apply(ctx context.Context, n *Network) error {
	if n.Result == Failed {
		return nil
	}
	if err := c.define(ctx, n); err != nil || n.Result == Failed {
		return err
	}
	for i := range n.Reservations {
		if r := &n.Reservations[i]; r.after == "" {
			if err := c.reserve(ctx, n, r); err != nil {
				return err
			}
		}
	}
	for _, there := range n.obsolete {
		// After a conflict, the host has returned there, which its claim finds out.
		if err := c.to.Expire(ctx, there); err != nil && !errors.Is(err, registry.ErrConflict) {
			return fmt.Errorf("destination: %w", err)
		}
	}
	for i := range n.Leases {
		if err := c.copyLease(ctx, n.there, &n.Leases[i]); err != nil {
			return err
		}
	}
	n.holdBack()
	for i := range n.Reservations {
		if err := c.reserve(ctx, n, &n.Reservations[i]); err != nil {
			return err
		}
	}
	return nil
}

// holdBack skips the reservations of slots whose leases cannot be copied: they would keep the leases' hosts from them.
func (n *Network) holdBack() {
	for i := range n.Reservations {
		r := &n.Reservations[i]
		for _, l := range n.Leases {
			if r.after == l.Subnet && l.Result == Failed {
				r.skip("the lease on it is not copied")
			}
		}
	}
}

// maxKept is the number of reservations that a network is defined with at most: a store writes them in one transaction.
const maxKept = 3000

// define puts the network with its reservations into the destination, except for those of slots that other hosts hold.
func (c *copier) define(ctx context.Context, n *Network) error {
	if n.Result != ToCopy {
		return nil
	}
	wanted := n.source
	wanted.CreateIndex, wanted.ModifyIndex = 0, 0
	var kept []registry.Reservation
	var copied []*Reservation
	for i := range n.Reservations {
		if r := &n.Reservations[i]; r.after == "" && r.Result == ToCopy && len(kept) < maxKept {
			kept, copied = append(kept, r.source), append(copied, r)
		}
	}
	err := c.to.PutNetwork(ctx, wanted, kept...)
	if err == nil {
		n.there, err = c.to.Network(ctx, n.Name)
	}
	if err != nil {
		return n.fail(ctx, err)
	}
	n.Result = Copied
	for _, r := range copied {
		r.Result = Copied
	}
	return nil
}

// reserve adds one reservation. A slot that another host holds in the source is reserved in spite of that, as there.
func (c *copier) reserve(ctx context.Context, n *Network, r *Reservation) error {
	if r.Result != ToCopy {
		return nil
	}
	if err := c.to.AddReservation(ctx, n.there, r.source, r.after != ""); err != nil {
		return r.fail(ctx, err)
	}
	r.Result = Copied
	return nil
}

// copyLease claims one lease on behalf of its host.
func (c *copier) copyLease(ctx context.Context, n registry.Network, l *Lease) error {
	if l.Result != ToCopy {
		return nil
	}
	_, err := c.to.Acquire(ctx, n, c.claim(l.source))
	switch {
	case err == nil:
		l.Result = Copied
		return nil
	case errors.Is(err, registry.ErrHeld):
		// The host itself has changed to the destination, or another call of Copy was faster.
		if there, _, readErr := c.to.WatchLease(ctx, n, l.source.Subnet(), 0); readErr == nil &&
			there.Held() && c.claim(l.source).Same(there) {
			l.Result = Present
			return nil
		}
	}
	return l.fail(ctx, err)
}
