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
	// slowTick bounds how long anything can stay wrong that no event told of.
	slowTick = 20 * time.Second
	// settle lets a burst of kernel events end before the tables are read.
	settle = 100 * time.Millisecond
)

// reconcile makes the host agree with lease and snapshot, now and whenever one
// of them, the kernel or the underlay changes, and on a slow tick.
func (r *runner) reconcile(ctx context.Context, n registry.Network, p place) error {
	tick := time.NewTicker(slowTick)
	defer tick.Stop()
	backoff := retry.NewBackoff()
	calm := settle
	var (
		lease registry.Lease
		snap  snapshot
		state backend.State
		fresh bool // lease and peers were never applied

		known   = r.remember(n)
		peers   []registry.Lease // behind state
		settled <-chan time.Time // when peers that the store lacks may go
		again   snapshot         // the leases as read then
		doubted <-chan time.Time // when another host that is taken for this one may have gone

		due      time.Time        // when the peers may be written down again
		remember <-chan time.Time // at that time
		unsaved  bool
		unwell   = retry.NewBackoff() // while they cannot be written down
	)
	defer func() {
		if unsaved {
			r.rememberPeers(known, n, peers, lease)
		}
	}()
	// A change of the kernel counts until it was looked at, whatever else comes
	// with it.
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
			r.state("waiting for the leases of the other hosts")
		} else {
			if snap.read != nowSnap.read || !reflect.DeepEqual(lease, nowLease) {
				lease, snap, fresh = nowLease, nowSnap, true
				peers, settled = r.recall(known, n, snap)
				state.Subnets, state.Peers = lease.Subnets, peersOf(peers, lease)
				doubted = r.judge(snap.set.Leases, lease)
				unsaved = true
				r.carrier.carries = &recollected{n, lease, peers}
				p = r.relocate(n, p) // the ways to the peers are part of it
			}
			if u := p.underlay(); state.MTU != p.mtu || !reflect.DeepEqual(state.Underlay, u) {
				state.MTU, state.Underlay = p.mtu, u // which has been told
			}
			report, err := r.apply(ctx, n, lease, state, fresh)
			switch {
			case err != nil:
				// Its own writes would make it try at once, for ever.
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
			// The snapshot may be as old as the time is long: the store did not answer, or this process was stopped.
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

// judge says whether another host is taken for this one, and when to look again:
// that it fell silent is written by nobody.
func (r *runner) judge(leases []registry.Lease, own registry.Lease) <-chan time.Time {
	reason := conflicts(leases, own)
	r.suspect("leases", reason)
	if reason == "" {
		return nil
	}
	return time.After(freshEvery)
}

// apply makes one pass over datapath, firewall and files. wanted says that the
// state is another one than the last that was applied, so that writes are news
// and not drift.
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
			// It may be that only the containers of a subnet this host had before are
			// in the way, and they go once the file names the one it has.
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
		r.env.health.SetReady(r.local.Name, true)
		r.show(func(v *view) { v.local.State, v.local.ModifyIndex = "running", v.definition.ModifyIndex })
	}
	return report, err
}
