package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// A LostError ends an agent whose configuration says on_lost = "exit".
type LostError struct {
	Network  string
	Old, New string // such as "10.5.1.0/24"; New was taken instead of Old
}

func (e *LostError) Error() string {
	return fmt.Sprintf(`network %s: subnet %s was lost, %s taken instead, and on_lost is "exit"`, e.Network, e.Old, e.New)
}

// Acquire blocks until this host holds a lease. It calls claim again for each attempt, which returns the claim and the
// network's definition. The error is ErrReleased, a *WithdrawnError or ctx's.
func (k *Keeper) Acquire(ctx context.Context, claim func() (registry.Network, registry.Claim)) (registry.Lease, error) {
	backoff := k.o.Outage.NewLoop()
	resolver := &conflictResolver{keeper: k}
	before, _, _ := k.lease.Get()
	for {
		networksChanged := k.o.Networks()
		n, c := claim()
		resolver.network, c = n, resolver.complete(c)
		lease, err := k.acquireOnce(ctx, n, c)
		again := false
		if ctx.Err() == nil && !errors.As(err, new(*WithdrawnError)) {
			k.report.Used(report.Claim, err)
		}
		if err != nil && ctx.Err() == nil {
			again, err = resolver.resolve(ctx, c, err)
		}
		switch {
		case again:
			continue
		case err == nil:
			k.condition.suspect("claim", Suspicion{})
			k.condition.setHeld()
			reportTaken(k.report, before, lease)
			k.report.Changed()
			return lease, nil
		case errors.Is(err, ErrReleased), errors.As(err, new(*WithdrawnError)):
			return registry.Lease{}, err
		case ctx.Err() != nil:
			return registry.Lease{}, ctx.Err()
		}
		if !report.Away(err) {
			k.o.Answered()
		}
		reason := fmt.Sprintf("waiting for a lease: %v", registry.Reason(err))
		if revoked := k.revocation.subnet(); revoked.IsValid() {
			reason = fmt.Sprintf("%s was revoked, waiting for another lease: %v", revoked, registry.Reason(err))
		}
		k.report.Waiting(health.Lease, join(k.condition.withdrawal(), reason))
		k.condition.setProblem(reason)
		// Once a network that the store had lost is defined again, hosts that do not know of this one may take its
		// subnet.
		if err := backoff.Wait(ctx, err, networksChanged); err != nil {
			return registry.Lease{}, err
		}
	}
}

// acquireOnce makes one attempt to get a lease, and publishes the lease. If this host uses the claim's subnet and that
// belongs to another live host, the error is a *WithdrawnError, whether there is another subnet for this host or not.
func (k *Keeper) acquireOnce(ctx context.Context, n registry.Network, claim registry.Claim) (registry.Lease, error) {
	return k.releases.claim(ctx, func() (registry.Lease, error) {
		ctx, cancel := context.WithTimeout(ctx, claimTimeout)
		defer cancel()
		record, looked := k.revocation.lookFor(ctx, n, claim.Prefer)
		if isAnothers(record, claim) {
			return registry.Lease{}, k.supersede(claim.Prefer, record)
		}
		claim.Avoid = cmp.Or(k.revocation.subnet(), outgrown(n.Plan, claim.Prefer))
		lost, _, _ := k.loss.Get()
		claim.Lost, claim.Known = lost.at, lost.leases
		lease, err := k.o.Registry.Acquire(ctx, n, claim)
		k.report.Count(telemetry.LeaseClaims, 1, telemetry.Result(err))
		if err != nil {
			isAnswer := !report.Away(err) || errors.Is(err, registry.ErrDenied)
			if isAnswer && !looked && isRemembered(claim) { // another host may have taken the subnet by now
				record, _, _ = k.o.Registry.WatchLease(ctx, n, claim.Prefer, 0)
			}
			if errors.Is(err, registry.ErrHeld) {
				claim.Since = min(claim.Since, 1) // the record is not from before, whatever its version
			}
			if isAnothers(record, claim) {
				err = k.supersede(claim.Prefer, record)
			}
			return lease, err
		}
		k.revocation.forget(lease)
		// The store has just locked a record with this session, so an earlier report of its end no longer counts.
		if k.hasEnded(lease.Session) {
			k.ended.Clear()
		}
		k.lease.Set(lease)
		return lease, nil
	})
}

// hasEnded reports whether the session is the one that was last found to have ended.
func (k *Keeper) hasEnded(session string) bool {
	ended, _, _ := k.ended.Get()
	return ended == session
}

// reportTaken adds an event for a lease that this host did not have before. It adds none if the record was only written
// again, and leaves the event for another subnet to Moved.
func reportTaken(to *report.Reporter, before, now registry.Lease) {
	message := ""
	switch {
	case !before.Subnet().IsValid():
		message = fmt.Sprintf("this host holds %s", now.Subnet())
	case before.Subnet() == now.Subnet() && (before.Session != now.Session || before.CreateIndex != now.CreateIndex):
		message = fmt.Sprintf("this host holds %s again", now.Subnet())
	default:
		return
	}
	to.Event(api.EventLease, api.Info, message, map[string]string{
		"change": "taken",
		"subnet": now.Subnet().String(),
	})
}

// Moved handles a lease with another subnet than before. It logs and reports the change, which needs an operator: the
// containers must be restarted. If the configuration says on_lost = "exit", it instead saves the new subnet for the
// next process and returns a *LostError.
func (k *Keeper) Moved(n registry.Network, before netip.Prefix, now registry.Lease) error {
	if k.o.Settings.OnLost == config.OnLostExit {
		if err := k.o.Save(n, now); err != nil {
			k.report.Log().Warn("new subnet could not be saved to the state file", "subnet", now.Subnet(), "error", err)
		}
		err := &LostError{Network: k.o.Network, Old: before.String(), New: now.Subnet().String()}
		k.outcome.Set(err)
		return err
	}
	k.report.Log().Error("this host has another subnet now, its containers must be restarted",
		"subnet", now.Subnet(), "before", before)
	k.report.Event(api.EventLease, api.Critical,
		fmt.Sprintf("this host has %s now, before %s: its containers must be restarted", now.Subnet(), before),
		map[string]string{
			"change": "renumbered",
			"subnet": now.Subnet().String(),
			"before": before.String(),
		})
	k.condition.setFormerly(fmt.Sprintf("; it was %s until %s, containers from before must be restarted",
		before, time.Now().UTC().Format(time.RFC3339)))
	return nil
}
