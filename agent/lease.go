package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// callTimeout bounds one short call to the store: without a leader it answers
// after up to 12 s.
const callTimeout = 15 * time.Second

// acquire blocks until this host holds a lease of n. claim is asked anew for
// each attempt.
func (r *runner) acquire(ctx context.Context, n registry.Network, claim func() registry.Claim) (registry.Lease, error) {
	retry := newPause()
	for {
		lease, err := r.acquireOnce(ctx, n, claim())
		if err == nil {
			r.check(checkLease, api.Passing, fmt.Sprintf("%s is held", lease.Subnet()))
			r.check(checkConflict, api.Passing, "nobody else uses this host's name or addresses")
			r.show(func(v *view) { v.local.Subnets, v.local.Renewed = lease.Subnets, time.Now() })
			return lease, nil
		}
		if ctx.Err() != nil {
			return registry.Lease{}, ctx.Err()
		}
		reason := fmt.Sprintf("waiting for a lease: %v", err)
		if errors.Is(err, registry.ErrDuplicateNode) || errors.Is(err, registry.ErrDuplicateAddress) {
			r.check(checkConflict, api.Critical, err.Error())
		}
		r.wait(checkLease, reason)
		if err := retry.wait(ctx); err != nil {
			return registry.Lease{}, err
		}
	}
}

func (r *runner) acquireOnce(ctx context.Context, n registry.Network, claim registry.Claim) (registry.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return r.env.registry.Acquire(ctx, n, claim)
}

// keep holds the lease that claim got: renews it, watches its record, rewrites
// it when the host's attributes change, and takes it back whenever it is lost.
// Packets are not its business: whatever happens here, the datapath stays.
func (r *runner) keep(ctx context.Context, n registry.Network, lease registry.Lease, claim registry.Claim) error {
	for {
		now, _, changed := r.claim.get()
		if reflect.DeepEqual(now, claim) {
			reason, err := r.hold(ctx, n, lease, changed)
			if err != nil {
				return err
			}
			if reason != "" {
				r.log.Warn("lease was lost, taking it back", "subnet", lease.Subnet(), "reason", reason)
				r.check(checkLease, api.Warning, fmt.Sprintf("%s was lost (%s), taking it back", lease.Subnet(), reason))
				r.reassert(ctx, n)
			}
		}
		next, err := r.acquire(ctx, n, func() registry.Claim {
			claim, _, _ = r.claim.get()
			mine := claim
			mine.Session, mine.Prefer = lease.Session, lease.Subnet()
			return mine
		})
		if err != nil {
			return err
		}
		if next.Slot != lease.Slot {
			if r.config.Lease.OnLost == config.OnLostExit {
				return &LostError{Network: n.Name, Old: lease.Subnet().String(), New: next.Subnet().String()}
			}
			r.log.Error("this host has another subnet now, its containers must be restarted",
				"subnet", next.Subnet(), "before", lease.Subnet())
		}
		lease = next
		r.lease.set(lease)
	}
}

// reassert puts the network's definition back into a store that was emptied
// under this host, when this host's configuration defines it. A network that
// was deleted on purpose leaves its leases in place, and so never comes here.
func (r *runner) reassert(ctx context.Context, n registry.Network) {
	if len(r.local.Pools) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := r.env.registry.Network(ctx, n.Name); !errors.Is(err, registry.ErrNetworkNotFound) {
		return
	}
	n.CreateIndex, n.ModifyIndex = 0, 0
	if err := r.env.registry.PutNetwork(ctx, n); err != nil && !errors.Is(err, registry.ErrNetworkExists) {
		r.log.Warn("network could not be put back into the store", "error", err)
		return
	}
	r.log.Warn("the store had lost the network, put back")
}

// hold blocks while the lease is ours. It returns why it is not any more, or ""
// when the claim changed and the record must follow.
func (r *runner) hold(ctx context.Context, n registry.Network, lease registry.Lease, claimChanged <-chan struct{}) (reason string, err error) {
	g, ctx := errgroup.WithContext(ctx)
	ended := errors.New("held no longer")
	g.Go(func() error {
		why, err := r.watchOwn(ctx, n, lease)
		if err == nil {
			reason, err = why, ended
		}
		return err
	})
	lost := make(chan string, 1)
	g.Go(func() error {
		why, err := r.renew(ctx, lease, claimChanged)
		if err == nil {
			lost <- why
			err = ended
		}
		return err
	})
	if err := g.Wait(); !errors.Is(err, ended) {
		return "", err
	}
	select {
	case why := <-lost:
		if reason == "" {
			reason = why
		}
	default:
	}
	return reason, nil
}

// renew keeps the session alive. It returns when the session is gone, or with
// "" when the claim changed.
func (r *runner) renew(ctx context.Context, lease registry.Lease, claimChanged <-chan struct{}) (string, error) {
	period := r.config.Lease.TTL - r.config.Lease.RenewMargin
	last, due := time.Now(), period
	retry := newPause()
	for {
		timer := time.NewTimer(due)
		select {
		case <-ctx.Done():
			timer.Stop()
			return "", ctx.Err()
		case <-claimChanged:
			timer.Stop()
			return "", nil
		case <-timer.C:
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := r.env.registry.Renew(call, lease)
		cancel()
		switch {
		case err == nil:
			last, due = time.Now(), period
			retry.reset()
			r.check(checkLease, api.Passing, fmt.Sprintf("%s is held", lease.Subnet()))
			r.show(func(v *view) { v.local.Renewed = last })
		case errors.Is(err, registry.ErrLeaseLost):
			return err.Error(), nil
		case ctx.Err() != nil:
			return "", ctx.Err()
		default:
			due = retry.next()
			if r.env.health.set(r.local.Name, checkLease, api.Warning,
				fmt.Sprintf("%s not renewed since %s, packets flow: %v", lease.Subnet(), last.UTC().Format(time.RFC3339), err)) {
				r.log.Warn("lease could not be renewed, trying again", "subnet", lease.Subnet(), "error", err)
			}
		}
	}
}

// watchOwn watches our record and returns why it is not ours any more.
func (r *runner) watchOwn(ctx context.Context, n registry.Network, lease registry.Lease) (string, error) {
	retry := newPause()
	var index uint64
	for {
		now, next, err := r.env.registry.WatchLease(ctx, n, lease.Subnet(), index)
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case errors.Is(err, registry.ErrLeaseNotFound):
			return "its record is gone", nil
		case errors.Is(err, registry.ErrInvalid):
			return fmt.Sprintf("its record was overwritten: %v", err), nil
		case err != nil:
			if err := retry.wait(ctx); err != nil {
				return "", err
			}
			continue
		case now.Session == "":
			return "its session ended", nil
		case now.Session != lease.Session:
			return fmt.Sprintf("host %q holds it", now.Node), nil
		case !now.SameValue(lease):
			return "its record was changed by somebody else", nil
		}
		index = next
		retry.reset()
	}
}

// previous is what this host held before, by its state file, else by its
// subnet file.
func (r *runner) previous() (session string, subnet netip.Prefix) {
	before, err := loadSaved(r.config.DataDir, r.local.Name)
	if err != nil {
		path := savedPath(r.config.DataDir, r.local.Name)
		r.log.Warn("starting without the state file, moved to .bad", "error", errors.Join(err, os.Rename(path, path+".bad")))
	}
	if len(before.Subnets) > 0 {
		return before.Session, before.Subnets[0]
	}
	return before.Session, subnetInFile(r.local.SubnetFile)
}

// wait shows and logs, once for each reason, what the runner waits for.
func (r *runner) wait(check, reason string) {
	status := api.Critical
	if _, held, _ := r.lease.get(); held {
		status = api.Warning // packets flow
	}
	if r.shown().local.State != reason {
		r.log.Warn("network waits", "reason", reason)
	}
	r.state(reason)
	r.check(check, status, reason)
}
