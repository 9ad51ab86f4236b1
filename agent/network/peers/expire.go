package peers

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
)

// expireEvery is how often each host tries to remove and to restore records, on average. It is shorter where sessions
// are short.
const expireEvery = 20 * time.Second

// expireEach bounds how many records one host removes at a time: each attempt is a write in the store, and every host
// makes them. restoreEach bounds how many it restores, which is urgent: about restorers of the hosts try each.
const (
	expireEach  = 8
	restoreEach = 64
	restorers   = 8
)

// maintainRecords does, until ctx ends, what any host can do: it restores lost records, removes those that have been
// lapsed for longer than hold, counted from when this agent first saw them lapsed, and reads the reservations. Every
// host tries to remove a record. The first one succeeds, and the others fail because of the record's index.
func (f *Follower) maintainRecords(ctx context.Context, definition *watch.Value[registry.Network]) error {
	every := min(expireEvery, f.o.Settings.TTL/4) // two passes restore a lease, and newcomers wait for a TTL
	var lost map[netip.Prefix]bool
	var reservations time.Time // when to read them
	due := time.Now().Add(every/2 + rand.N(every))
	for {
		n, _, _ := definition.Get()
		if !time.Now().Before(reservations) {
			reservations = time.Now().Add(reservationsTick*3/4 + rand.N(reservationsTick/4))
			if err := f.checkReservations(ctx, n); err != nil {
				reservations = time.Now().Add(every/2 + rand.N(every))
			}
		}
		if !time.Now().Before(due) {
			lost = f.restoreLost(ctx, n, lost)
			f.expireOnce(ctx, n)
			due = time.Now().Add(every/2 + rand.N(every))
		}
		next := due
		if reservations.Before(due) {
			next = reservations
		}
		if err := retry.Sleep(ctx, time.Until(next)); err != nil {
			return err
		}
	}
}

// restoreLost restores leases that the store has lost: see belief.Restorable. before are the subnets that the last pass
// found lost, and restoreLost returns those that this one found.
func (f *Follower) restoreLost(
	ctx context.Context, n registry.Network, before map[netip.Prefix]bool,
) (found map[netip.Prefix]bool) {
	snap, _ := f.Snapshot()
	lost, found := belief.Restorable(snap.Set.Leases, f.o.Identity().NodeID, before)
	rand.Shuffle(len(lost), func(i, j int) { lost[i], lost[j] = lost[j], lost[i] })
	for _, l := range lost[:restoreShare(len(lost), snap.Set.Leases)] {
		if now, _ := f.Snapshot(); !isLost(now.Set.Leases, l.Subnet()) { // other hosts restore leases at the same time
			continue
		}
		call, cancel := context.WithTimeout(ctx, retry.CallTimeout)
		err := f.o.Registry.Restore(call, n, l, f.o.Settings.Hold)
		cancel()
		switch {
		case err == nil:
			f.o.Report.Log().Warn("lease that the store had lost restored for its host", "subnet", l.Subnet(), "host", l.Node)
		case !errors.Is(err, registry.ErrConflict) && !errors.Is(err, registry.ErrInvalid):
			f.o.Report.Log().Debug("lost lease could not be restored",
				"subnet", l.Subnet(), "host", l.Node, "error", err)
			return found
		}
	}
	return found
}

// restoreShare returns how many of so many lost leases this host restores in one pass.
func restoreShare(lost int, leases []registry.Lease) int {
	hosts := 1
	for _, l := range leases {
		if l.Held() && !l.Missing && !l.Foreign { // flannel restores none
			hosts++
		}
	}
	return min(lost, restoreEach, restorers*lost/hosts+1)
}

// isLost reports whether the lease on a subnet is lost.
func isLost(leases []registry.Lease, subnet netip.Prefix) bool {
	return slices.ContainsFunc(leases, func(l registry.Lease) bool { return l.Lost && l.Subnet() == subnet })
}

// expireOnce makes one pass. The snapshot may be late to show hosts that have come back, so it only decides whether the
// leases are read again.
func (f *Follower) expireOnce(ctx context.Context, n registry.Network) {
	log := f.o.Report.Log()
	snap, _ := f.Snapshot()
	if len(f.expired(snap.Set.Leases, time.Since(snap.Read))) == 0 {
		return
	}
	call, cancel := context.WithTimeout(ctx, retry.CallTimeout)
	now, _, err := f.o.Registry.WatchLeases(call, n, 0)
	cancel()
	if err != nil {
		log.Debug("lapsed leases could not be read", "error", err)
		return
	}
	leases := f.expired(now.Leases, 0)
	rand.Shuffle(len(leases), func(i, j int) { leases[i], leases[j] = leases[j], leases[i] })
	for _, l := range leases[:min(len(leases), expireEach)] {
		call, cancel := context.WithTimeout(ctx, retry.CallTimeout)
		err := f.o.Registry.Expire(call, l)
		cancel()
		switch {
		case err == nil:
			log.Info("lapsed lease removed", "subnet", l.Subnet(), "host", l.Node)
		case !errors.Is(err, registry.ErrConflict):
			log.Debug("lapsed lease could not be removed", "subnet", l.Subnet(), "host", l.Node, "error", err)
			return
		}
	}
}

// expired returns the leases that have been lapsed for at least hold. ago is the time since they were read.
func (f *Follower) expired(leases []registry.Lease, ago time.Duration) (out []registry.Lease) {
	for _, l := range leases {
		if !l.Held() && l.Lapsed+ago >= f.o.Settings.Hold {
			out = append(out, l)
		}
	}
	return out
}
