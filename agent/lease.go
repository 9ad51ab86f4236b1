package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// callTimeout bounds one short request to the store.
const callTimeout = retry.CallTimeout

// acquire blocks until this host holds a lease of n. It calls claim again for each attempt.
func (r *runner) acquire(ctx context.Context, n registry.Network, claim func() registry.Claim) (registry.Lease, error) {
	backoff := r.env.outage.NewLoop()
	others := &rivals{runner: r, network: n}
	before, _, _ := r.lease.Get()
	for {
		_, _, networks := r.env.networks.Get()
		c := others.amend(claim())
		lease, err := r.acquireOnce(ctx, n, c)
		again := false
		if ctx.Err() == nil {
			r.report.Used(report.Claim, err)
		}
		if err != nil && ctx.Err() == nil {
			again, err = others.meet(ctx, c, err)
		}
		switch {
		case again:
			continue
		case err == nil:
			r.suspect("claim", "")
			r.troubled("")
			r.reportLeaseTaken(before, lease)
			r.show(func(v *view) { v.local.Subnets = lease.Subnets })
			return lease, nil
		case errors.Is(err, errReleased):
			return registry.Lease{}, err
		case ctx.Err() != nil:
			return registry.Lease{}, ctx.Err()
		}
		if !report.Away(err) {
			r.settled()
		}
		reason := fmt.Sprintf("waiting for a lease: %v", err)
		if revoked := r.revokedSubnet(); revoked.IsValid() {
			reason = fmt.Sprintf("%s was revoked, waiting for another lease: %v", revoked, err)
		}
		r.report.Waiting(health.Lease, reason)
		r.troubled(reason)
		// Once a network that the store had lost is defined again, hosts that do not know of this one may take its
		// subnet.
		if err := backoff.Wait(ctx, err, networks); err != nil {
			return registry.Lease{}, err
		}
	}
}

// reportLeaseTaken adds an event for a lease that this host did not have before. It adds none if the record was only
// written again, and leaves the event for another subnet to moved.
func (r *runner) reportLeaseTaken(before, now registry.Lease) {
	message := ""
	switch {
	case !before.Subnet().IsValid():
		message = fmt.Sprintf("this host holds %s", now.Subnet())
	case before.Slot == now.Slot && (before.Session != now.Session || before.CreateIndex != now.CreateIndex):
		message = fmt.Sprintf("this host holds %s again", now.Subnet())
	default:
		return
	}
	r.report.Event(api.EventLease, api.Info, message, map[string]string{"change": "taken", "subnet": now.Subnet().String()})
}

func (r *runner) acquireOnce(ctx context.Context, n registry.Network, claim registry.Claim) (registry.Lease, error) {
	r.claiming.Lock()
	defer r.claiming.Unlock()
	if r.released != nil {
		return registry.Lease{}, errReleased
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r.lookForRevocation(ctx, n, claim.Prefer)
	claim.Avoid = cmp.Or(r.revokedSubnet(), outgrown(n.Plan, claim.Prefer))
	claim.Lost = r.lastLoss()
	lease, err := r.env.registry.Acquire(ctx, n, claim)
	r.report.Count(telemetry.LeaseClaims, 1, telemetry.Result(err))
	if err == nil {
		r.heldAgain(lease)
		// The store has just locked a record with this session, so an earlier report of its end no longer counts.
		if dead, _, _ := r.ended.Get(); dead == lease.Session {
			r.ended.Clear()
		}
		r.lease.Set(lease)
	}
	return lease, err
}

// keep holds the lease that acquire returned for claim: it watches the record, rewrites it when the host's attributes
// change, and takes the lease back whenever it is lost. It never touches the datapath, which stays whatever happens to
// the lease.
func (r *runner) keep(ctx context.Context, n registry.Network, lease registry.Lease, claim registry.Claim) error {
	backoff := r.env.outage.NewLoop()
	for {
		now, _, changed := r.claim.Get()
		if reflect.DeepEqual(now, claim) {
			reason, err := r.hold(ctx, n, lease, changed)
			if err != nil {
				return err
			}
			if reason != "" {
				r.lost(lease, reason)
				r.report.Count(telemetry.LeaseLosses, 1)
				// The pause avoids a race with another host that takes the lease again and again.
				if err := backoff.Wait(ctx, nil, nil); err != nil {
					return err
				}
			}
		}
		next, err := r.acquire(ctx, n, func() registry.Claim {
			claim, _, _ = r.claim.Get()
			mine := claim
			mine.Session, mine.Prefer, mine.Since, mine.Running = lease.Session, lease.Subnet(), lease.ModifyIndex, true
			return mine
		})
		if err != nil {
			return err
		}
		if next.Slot != lease.Slot {
			if err := r.moved(n, lease.Subnet(), next); err != nil {
				return err
			}
		}
		lease = next
	}
}

// trusted is how long a lease must be held before its last loss is forgotten.
const trusted = time.Minute

// hold blocks while this host holds the lease. It returns the reason for the loss, or "" if the claim has changed and
// the record must be written again.
func (r *runner) hold(ctx context.Context, n registry.Network, lease registry.Lease, claimChanged <-chan struct{}) (reason string, err error) {
	g, watching := errgroup.WithContext(ctx)
	over := errors.New("held no longer")
	g.Go(func() (err error) {
		if reason, err = r.watchOwn(watching, n, lease); err == nil {
			err = over
		}
		return err
	})
	dead := false
	g.Go(func() error {
		settled := time.NewTimer(trusted)
		defer settled.Stop()
		for {
			session, _, ended := r.ended.Get()
			if dead = session == lease.Session; dead {
				return over
			}
			select {
			case <-watching.Done():
				return watching.Err()
			case <-claimChanged:
				return over
			case <-ended:
			case <-settled.C:
				r.suspect("record", "")
			}
		}
	})
	if err := g.Wait(); !errors.Is(err, over) {
		return "", err
	}
	if reason == "" && dead {
		reason = "its session ended"
	}
	return reason, ctx.Err()
}

// renew keeps the session of the current lease alive until ctx ends, also while the runner of the network waits for
// something else.
func (r *runner) renew(ctx context.Context) {
	period := r.config.Lease.TTL - r.config.Lease.RenewMargin
	// There is time for another call before the session may end, even after one that hangs and the longest pause.
	margin := r.config.Lease.RenewMargin
	timeout := min(callTimeout, max(margin/2, time.Second))
	backoff := r.env.outage.NewLoop().Within(margin / 4)
	var session string
	var last, next time.Time
	for {
		lease, held, changed := r.lease.Get()
		if held && lease.Session != session {
			session, last = lease.Session, time.Now()
			next = last.Add(period)
			r.renewed(last, nil)
		}
		var due <-chan time.Time
		timer := time.NewTimer(time.Until(next))
		if dead, _, _ := r.ended.Get(); held && dead != session {
			due = timer.C
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-due:
			call, cancel := context.WithTimeout(ctx, timeout)
			started := time.Now()
			err := r.env.registry.Renew(call, lease)
			cancel()
			switch {
			case ctx.Err() != nil:
			case err == nil:
				r.renewal(started, telemetry.OK)
				last = started // not now: this process may have been suspended since
				next = last.Add(period)
				r.renewed(last, nil)
			case errors.Is(err, registry.ErrLeaseLost):
				r.renewal(started, lostResult)
				r.report.Used(report.Session, nil)
				r.ended.Set(session)
			default:
				r.renewal(started, telemetry.Failed)
				r.renewed(last, err)
				_ = backoff.Wait(ctx, err, changed)
				next = time.Now()
			}
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// renewed records the time of the last successful renewal and the failure since then; nil if there is none.
func (r *runner) renewed(last time.Time, err error) {
	reason := ""
	if err != nil {
		reason = fmt.Sprintf("not renewed since %s, packets flow: %v", last.UTC().Format(time.RFC3339), err)
	}
	r.mu.Lock()
	first, again := r.unrenewed == "" && reason != "", r.unrenewed != "" && reason == ""
	r.unrenewed = reason
	if last.After(r.view.local.Renewed) { // renewNow may have renewed it out of turn
		r.view.local.Renewed = last
	}
	r.mu.Unlock()
	r.reportLease()
	r.report.Used(report.Session, err)
	if first {
		r.log.Warn("lease could not be renewed, trying again", "error", err)
	}
	if again {
		r.log.Info("lease is renewed again")
	}
}

// troubled records why the lease is not held as it should be; "" clears the problem.
func (r *runner) troubled(reason string) {
	r.mu.Lock()
	before := r.trouble
	r.trouble = reason
	r.mu.Unlock()
	r.reportLease()
	if before != "" && reason == "" {
		lease, _, _ := r.lease.Get()
		r.log.Info("lease is held", "subnet", lease.Subnet())
	}
}

// reportLease updates the lease's health check. It does nothing while this host does not want a lease yet.
func (r *runner) reportLease() {
	lease, held, _ := r.lease.Get()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !held && r.trouble == "":
	case !held && r.resumed != nil:
		r.report.Check(health.Lease, api.Warning, fmt.Sprintf("%s is carried on as %s: %s", r.resumed.subnets[0], r.resumed.as, r.trouble))
	case !held:
		r.report.Check(health.Lease, api.Critical, r.trouble)
	case r.trouble != "" || r.unrenewed != "":
		r.report.Check(health.Lease, api.Warning, fmt.Sprintf("%s: %s", lease.Subnet(), cmp.Or(r.trouble, r.unrenewed)))
	default:
		r.report.Check(health.Lease, api.Passing, fmt.Sprintf("%s is held%s", lease.Subnet(), r.formerly))
	}
}

// suspect records for one source, such as "claim" or "record", that another host is mistaken for this one; "" clears
// the suspicion of that source.
func (r *runner) suspect(source, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.suspicions[source]
	if r.suspicions[source] = reason; reason == "" {
		delete(r.suspicions, source)
	}
	if reason != "" && before == "" {
		r.log.Error("another host is taken for this one", "conflict", reason)
	}
	if len(r.suspicions) == 0 {
		r.report.Check(health.Conflict, api.Passing, "no other host uses this host's name or addresses")
		return
	}
	r.report.Check(health.Conflict, api.Critical, strings.Join(slices.Sorted(maps.Values(r.suspicions)), "; "))
}

// watchOwn watches this host's record until the host no longer holds it, and returns the reason. It returns "" if the
// lease is still held but the record must be written again.
func (r *runner) watchOwn(ctx context.Context, n registry.Network, lease registry.Lease) (string, error) {
	backoff := r.env.outage.NewLoop()
	var index uint64
	for {
		now, next, err := r.env.registry.WatchLease(ctx, n, lease.Subnet(), index)
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case registry.RevokedFrom(err, lease.NodeID):
			r.revoke(lease.Subnet())
			return "it was revoked", nil
		case errors.Is(err, registry.ErrLeaseNotFound), errors.Is(err, registry.ErrLeaseRevoked): // revoked from another host
			r.gone(lease.Subnet())
			return "its record is gone", nil
		case errors.Is(err, registry.ErrInvalid):
			return fmt.Sprintf("its record was overwritten: %v", err), nil
		case err != nil:
			if err := backoff.Wait(ctx, err, nil); err != nil {
				return "", err
			}
			continue
		case now.Session == "":
			return "its session ended", nil
		case len(passing(now, lease)) > 0:
			r.suspect("record", fmt.Sprintf("a host at %v has the node id %s of this host %q at %v: was the data_dir copied?",
				passing(now, lease), lease.NodeID, lease.Node, lease.PublicIPs))
			return "", nil // the lease is held; writing our record again answers the other host
		case now.NodeID == lease.NodeID && !sharesAddress(now.PublicIPs, lease.PublicIPs):
			copied := fmt.Sprintf("host %q (%v) writes the record of this host %q (%v, node id %s): was the data_dir copied?",
				now.Node, now.PublicIPs, lease.Node, lease.PublicIPs, lease.NodeID)
			r.suspect("record", copied)
			return copied, nil
		case now.Session != lease.Session:
			return fmt.Sprintf("host %q (%v) holds it", now.Node, now.PublicIPs), nil
		case now.Node != lease.Node || now.NodeID != lease.NodeID:
			copied := fmt.Sprintf("host %q (%v, node id %s) writes it under the session of this host %q (%v, node id %s): was the data_dir copied?",
				now.Node, now.PublicIPs, now.NodeID, lease.Node, lease.PublicIPs, lease.NodeID)
			r.suspect("record", copied)
			return copied, nil
		case !now.SameValue(lease):
			return "its record was changed by another program", nil
		}
		index = next
	}
}

// previous adds to a claim what this host held before, from the state file: the session, the subnet, whether it was
// held lately, and the version of its record unless the network was created again since then. If the state file has no
// subnet, the subnet comes from the subnet file, or else from the time before this host left the network.
func (r *runner) previous(n registry.Network, c *registry.Claim) {
	before, err := state.Load(r.config.DataDir, r.local.Name)
	switch unread := (*fs.PathError)(nil); {
	case errors.As(err, &unread):
		r.log.Warn("starting without the state file, it cannot be read", "error", err)
	case err != nil:
		path := state.Path(r.config.DataDir, r.local.Name)
		r.log.Warn("starting without the state file, moved to .bad", "error", errors.Join(err, os.Rename(path, path+state.BadSuffix)))
	}
	if before.Revoked.IsValid() {
		r.setRevoked(before.Revoked)
	}
	c.Session = before.Session
	if len(before.Subnets) == 0 {
		if c.Prefer = state.SubnetInFile(r.local.SubnetFile); !c.Prefer.IsValid() {
			c.Prefer = r.env.former.Subnet(n.Name)
		}
		return
	}
	c.Prefer, c.Lately = before.Subnets[0], r.lately(before.Renewed)
	if before.Definition == n.CreateIndex {
		c.Since = before.Lease
	}
}

// lately reports whether a lease renewed at that time cannot have been given to another host yet.
func (r *runner) lately(renewed time.Time) bool { return time.Since(renewed) < r.config.Lease.Hold }
