package lease

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// trustedAfter is how long a lease must be held before a conflict about its record is forgotten.
const trustedAfter = time.Minute

// Keep holds the lease that Acquire returned for claim: it watches the record, rewrites it after SetClaim, and takes
// the lease back whenever it is lost. It blocks until ctx ends, the lease is released by request (ErrReleased), another
// live host has the subnet (*WithdrawnError), or another subnet ends the process (*LostError). The definition must
// keep its plan; other changes of it leave the lease alone.
func (k *Keeper) Keep(ctx context.Context, definition *watch.Value[registry.Network], lease registry.Lease,
	claim registry.Claim) error {
	backoff := k.o.Outage.NewLoop()
	for {
		n, _, _ := definition.Get()
		now, _, changed := k.claim.Get()
		if reflect.DeepEqual(now, claim) {
			reason, err := k.hold(ctx, n, lease, changed)
			if err != nil {
				return err
			}
			if reason != "" {
				k.reportLoss(lease, reason)
				k.report.Count(telemetry.LeaseLosses, 1)
				// The pause avoids a race with another host that takes the lease again and again.
				if err := backoff.Wait(ctx, nil, nil); err != nil {
					return err
				}
			}
		}
		next, err := k.Acquire(ctx, func() (registry.Network, registry.Claim) {
			n, _, _ = definition.Get()
			claim, _, _ = k.claim.Get()
			return n, takeBack(claim, lease)
		})
		if err != nil {
			return err
		}
		if next.Subnet() != lease.Subnet() { // slots of two plans are not compared
			if err := k.Moved(n, lease.Subnet(), next); err != nil {
				return err
			}
		}
		lease = next
	}
}

// takeBack returns a claim for the lease that this host is using.
func takeBack(c registry.Claim, lease registry.Lease) registry.Claim {
	c.Session, c.Prefer, c.Since, c.Running = lease.Session, lease.Subnet(), lease.ModifyIndex, true
	return c
}

// hold blocks while this host holds the lease. It returns the reason for the loss, or "" if the claim has changed or
// the record must be written again for another reason.
func (k *Keeper) hold(
	ctx context.Context, n registry.Network, lease registry.Lease, claimChanged <-chan struct{},
) (reason string, err error) {
	trusted := time.AfterFunc(trustedAfter, func() { k.condition.suspect("record", Suspicion{}) })
	defer trusted.Stop()
	same, cancel := k.claim.Until(ctx, claimChanged)
	defer cancel()
	for {
		session, _, ended := k.ended.Get()
		if session == lease.Session {
			return "its session ended", nil
		}
		watching, cancel := k.ended.Until(same, ended)
		reason, err = k.watchRecord(watching, n, lease)
		isOver := watching.Err() == nil || !errors.Is(err, context.Canceled)
		cancel()
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case isOver:
			return reason, err
		case same.Err() != nil:
			return "", nil
		}
	}
}

// reportLoss logs and reports the loss of a lease. The caller then takes it back, or takes another one if it was
// revoked.
func (k *Keeper) reportLoss(lease registry.Lease, reason string) {
	subnet := lease.Subnet()
	if k.revocation.subnet() == subnet {
		k.report.Log().Error("lease was revoked, taking another subnet", "subnet", subnet)
		k.report.Event(api.EventLease, api.Critical, fmt.Sprintf("%s was revoked, taking another subnet", subnet),
			map[string]string{"change": "revoked", "subnet": subnet.String()})
		k.condition.setProblem(fmt.Sprintf("%s was revoked, taking another subnet", subnet))
		return
	}
	k.report.Log().Warn("lease was lost, taking it back", "subnet", subnet, "reason", reason)
	k.report.Event(api.EventLease, api.Warning, fmt.Sprintf("%s was lost, taking it back: %s", subnet, reason),
		map[string]string{"change": "lost", "subnet": subnet.String()})
	k.condition.setProblem(fmt.Sprintf("%s was lost (%s), taking it back", subnet, reason))
}

// watchRecord watches this host's record until the host no longer holds it, and returns the reason. It returns "" if
// the lease is still held but the record must be written again.
func (k *Keeper) watchRecord(ctx context.Context, n registry.Network, lease registry.Lease) (string, error) {
	backoff := k.o.Outage.NewLoop()
	var index uint64
	for {
		now, next, err := k.o.Registry.WatchLease(ctx, n, lease.Subnet(), index)
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case registry.RevokedFrom(err, lease.NodeID):
			k.revocation.revoke(lease.Subnet())
			return "it was revoked", nil
		case errors.Is(err, registry.ErrLeaseNotFound), errors.Is(err, registry.ErrLeaseRevoked): // from another host
			k.revocation.absent = lease.Subnet()
			return "its record is gone", nil
		case errors.Is(err, registry.ErrInvalid):
			return fmt.Sprintf("its record was overwritten: %v", err), nil
		case err != nil:
			if err := backoff.Wait(ctx, err, nil); err != nil {
				return "", err
			}
			continue
		}
		if claim, _, _ := k.claim.Get(); isAnothers(now, takeBack(claim, lease)) {
			return "", k.supersede(lease.Subnet(), now)
		}
		v := judge(now, lease)
		if v.conflict != "" {
			k.condition.suspect("record", Suspicion{Reason: v.conflict})
		}
		if v.over {
			return v.reason, nil
		}
		index = next
	}
}

// A verdict says what a record in the store means for the host that holds its lease.
type verdict struct {
	over     bool   // the lease is lost, or the record must be written again
	reason   string // for the loss, "" if the lease is still held
	conflict string // which host is mistaken for this one, "" for none
}

// judge compares this host's record as the store has it now with this host's lease.
func judge(now, own registry.Lease) verdict {
	lost := func(format string, args ...any) verdict {
		return verdict{over: true, reason: fmt.Sprintf(format, args...)}
	}
	copied := func(format string, args ...any) verdict {
		v := lost(format+": was the data_dir copied?", args...)
		v.conflict = v.reason
		return v
	}
	// An older version has what this host said before. It comes back when the store is set back.
	isOlder := now.ModifyIndex < own.ModifyIndex
	switch others := challengers(now, own); {
	case now.Session == "":
		return lost("its session ended")
	case len(others) > 0:
		v := copied("a host at %v has the node id %s of this host %q at %v",
			others, own.NodeID, own.Node, own.PublicIPs)
		v.reason = "" // the lease is held; writing our record again answers the other host
		return v
	case now.NodeID == own.NodeID && !registry.SameMachine(now, own) && !isOlder:
		return copied("host %q (%v) writes the record of this host %q (%v, node id %s)",
			now.Node, now.PublicIPs, own.Node, own.PublicIPs, own.NodeID)
	case now.Session != own.Session:
		return lost("host %q (%v) holds it", now.Node, now.PublicIPs)
	case (now.Node != own.Node || now.NodeID != own.NodeID) && !isOlder:
		return copied("host %q (%v, node id %s) writes it under the session of this host %q (%v, node id %s)",
			now.Node, now.PublicIPs, now.NodeID, own.Node, own.PublicIPs, own.NodeID)
	case !now.SameValue(own):
		return lost("its record was changed by another program")
	}
	return verdict{}
}

// challengers returns the addresses that follow our own in our record. They belong to another host with our node id
// that asks whether this host is alive: see conflictResolver.challenge. An older version of the record may have more
// addresses because this host had them; it comes back when the store is set back.
func challengers(now, own registry.Lease) []netip.Addr {
	n := len(own.PublicIPs)
	if now.NodeID != own.NodeID || len(now.PublicIPs) <= n || !slices.Equal(now.PublicIPs[:n], own.PublicIPs) ||
		now.ModifyIndex < own.ModifyIndex {
		return nil
	}
	return now.PublicIPs[n:]
}
