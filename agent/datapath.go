package agent

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

const (
	// slowTick bounds how long a fault can last that no event has announced.
	slowTick = 20 * time.Second
	// settle is the time in which a burst of kernel events can end before the tables are read.
	settle = 100 * time.Millisecond
)

// reconcile makes the host agree with its lease and the snapshot of all leases until ctx ends: at once, whenever one of
// them, the kernel or the underlay changes, and on a slow tick.
func (r *runner) reconcile(ctx context.Context, n registry.Network, p place) error {
	tick := time.NewTicker(slowTick)
	defer tick.Stop()
	backoff := retry.NewBackoff()
	calm := settle
	var (
		lease registry.Lease
		snap  snapshot
		state backend.State
		fresh bool // lease and peers were not applied yet

		known   = r.remember(n)
		peers   []registry.Lease // the leases that state.Peers is made from
		settled <-chan time.Time // fires when peers that the store lacks may go
		again   snapshot         // the leases as read when settled fired
		doubted <-chan time.Time // fires when another host that is taken for this one may have gone

		due      time.Time        // when the file of the peers may be written again
		remember <-chan time.Time // fires at due
		unsaved  bool
		unwell   = retry.NewBackoff() // pauses while the peers cannot be written
	)
	defer func() {
		if unsaved {
			r.rememberPeers(known, n, peers, lease)
		}
	}()
	// A change of the kernel's tables stays pending until they have been read, whatever else changes at the same time.
	_, _, kernel := r.env.kernel.Get()
	for {
		nowLease, _, leaseChanged := r.lease.Get()
		nowSnap, read, snapChanged := r.snapshot.Get()
		if again.read.After(nowSnap.read) {
			nowSnap = again
		}
		kernelChanged := kernel
		if now := r.inForce(n); now.CreateIndex != n.CreateIndex || now.ModifyIndex != n.ModifyIndex {
			unsaved = unsaved || now.CreateIndex != n.CreateIndex
			n = now
		}
		var failed <-chan time.Time
		if !read {
			r.report.SetState("waiting for the leases of the other hosts")
		} else {
			if snap.read != nowSnap.read || !reflect.DeepEqual(lease, nowLease) {
				lease, snap, fresh = nowLease, nowSnap, true
				peers, settled = r.recall(known, n, snap)
				state.Subnets, state.Peers = lease.Subnets, peersOf(peers, lease)
				doubted = r.judge(snap.set.Leases, lease)
				unsaved = true
				r.carrier.carries = &recollected{n, lease, peers}
				p = r.relocate(n, p) // the choice depends on the routes to the peers
			}
			if u := p.underlay(); state.MTU != p.mtu || !reflect.DeepEqual(state.Underlay, u) {
				state.MTU, state.Underlay = p.mtu, u // the log says so already
			}
			report, err := r.apply(ctx, n, lease, state, fresh)
			switch {
			case err != nil:
				// Without these pauses, the writes of a failed attempt would start the next one at once, for ever.
				pause := backoff.Next()
				failed, calm = time.After(pause), r.patience(pause)
			default:
				calm = r.calmer(calm, len(report.Healed) > 0)
				backoff.Reset()
				fresh = false
			}
			remember = nil
			if unsaved && !time.Now().Before(due) {
				next := rememberPause(len(peers))
				if unsaved = !r.rememberPeers(known, n, peers, lease); unsaved {
					next = max(next, unwell.Next())
				}
				due = time.Now().Add(next)
			}
			if unsaved {
				remember = time.After(time.Until(due))
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-leaseChanged:
			continue
		case <-snapChanged:
			continue
		case <-failed:
		case <-remember:
			continue
		case <-settled:
			// The snapshot may be as old as the wait was long: the store did not answer, or this process was suspended.
			again, _ = r.leasesNow(ctx, n)
			settled = time.After(freshEvery)
			continue
		case <-doubted:
			now, _ := r.leasesNow(ctx, n)
			doubted = r.judge(now.set.Leases, lease)
			continue
		case <-tick.C:
		case <-kernelChanged:
			if err := retry.Sleep(ctx, calm); err != nil {
				return err
			}
		}
		_, _, kernel = r.env.kernel.Get()
		p = r.relocate(n, p)
	}
}

// judge sets the check that says whether another host is taken for this one. If one is, it returns a channel that fires
// when the leases should be read again: no host writes a record when another one falls silent.
func (r *runner) judge(leases []registry.Lease, own registry.Lease) <-chan time.Time {
	reason := conflicts(leases, own)
	r.suspect("leases", reason)
	if reason == "" {
		return nil
	}
	return time.After(freshEvery)
}

// apply makes one pass over the datapath, the firewall and the files. wanted is true if s differs from the state that
// was applied last, so that writes are expected and not repairs.
func (r *runner) apply(ctx context.Context, n registry.Network, lease registry.Lease, s backend.State, wanted bool) (backend.Report, error) {
	started, stood := time.Now(), !r.shown().local.Applied.IsZero()
	report, err := r.carrier.apply(ctx, s)
	if ctx.Err() != nil {
		return report, ctx.Err()
	}
	r.looked(started, report, err)
	r.checkDatapath(n, s, &report, err)
	r.show(func(v *view) {
		v.report, v.local.Peers, v.local.Notes, v.flapping = report, report.Peers, report.Notes, r.flapping.Count()
		if err == nil {
			v.local.Applied = time.Now()
		}
	})
	if err != nil {
		if stood {
			// The only obstacle may be the containers of a subnet that this host had before. They go away once the
			// subnet file names the present one.
			_, also := r.serve(ctx, n, lease, s)
			err = errors.Join(err, also)
		}
		return report, err
	}
	if report.Writes > 0 && wanted {
		r.log.Info("datapath applied", "peers", report.Peers, "writes", report.Writes, "took", time.Since(started).Round(time.Microsecond))
	}
	usable, err := r.serve(ctx, n, lease, s)
	if usable {
		r.report.SetReady(true)
		r.report.SetState("running")
		r.show(func(v *view) { v.local.ModifyIndex = v.definition.ModifyIndex })
	}
	return report, err
}
