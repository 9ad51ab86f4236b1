package agent

import (
	"context"
	"reflect"
	"time"

	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/registry"
)

// slowTick bounds how long a fault can last that no event has announced.
const slowTick = 20 * time.Second

// followPeers publishes a view of the network for the datapath whenever the leases or this host's own lease change,
// and writes the peers down for the next process, until ctx ends.
func (r *runner) followPeers(ctx context.Context, n registry.Network, views *watch.Value[*peers.View]) error {
	tick := time.NewTicker(slowTick)
	defer tick.Stop()
	var (
		lease registry.Lease
		snap  snapshot
		seen  bool

		known   = r.remember(n)
		leases  []registry.Lease // the leases of the last view
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
			r.rememberPeers(known, n, leases, lease)
		}
	}()
	for {
		nowLease, _, leaseChanged := r.lease.Get()
		nowSnap, read, snapChanged := r.snapshot.Get()
		if again.read.After(nowSnap.read) {
			nowSnap = again
		}
		if now := r.inForce(n); now.CreateIndex != n.CreateIndex || now.ModifyIndex != n.ModifyIndex {
			unsaved = unsaved || now.CreateIndex != n.CreateIndex
			n = now
		}
		if !read {
			r.report.SetState("waiting for the leases of the other hosts")
		} else {
			if !seen || snap.read != nowSnap.read || !reflect.DeepEqual(lease, nowLease) {
				lease, snap, seen = nowLease, nowSnap, true
				leases, settled = r.recall(known, n, snap)
				doubted = r.judge(snap.set.Leases, lease)
				unsaved = true
				views.Set(&peers.View{Network: n, Own: lease, Leases: leases})
			}
			remember = nil
			if unsaved && !time.Now().Before(due) {
				next := rememberPause(len(leases))
				if unsaved = !r.rememberPeers(known, n, leases, lease); unsaved {
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
		case <-snapChanged:
		case <-remember:
		case <-settled:
			// The snapshot may be as old as the wait was long: the store did not answer, or this process was suspended.
			again, _ = r.leasesNow(ctx, n)
			settled = time.After(freshEvery)
		case <-doubted:
			now, _ := r.leasesNow(ctx, n)
			doubted = r.judge(now.set.Leases, lease)
		case <-tick.C:
		}
	}
}

// judge sets the check that says whether another host is taken for this one. If one is, it returns a channel that fires
// when the leases should be read again: no host writes a record when another one falls silent.
func (r *runner) judge(leases []registry.Lease, own registry.Lease) <-chan time.Time {
	reason := peers.Conflicts(leases, own)
	r.suspect("leases", reason)
	if reason == "" {
		return nil
	}
	return time.After(freshEvery)
}
