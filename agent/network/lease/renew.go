package lease

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/lenonet/leno/agent/clock"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// clockCheck is how often the wall clock is compared with the monotonic one.
const clockCheck = 5 * time.Second

// RenewalLost is the result label of a renewal that found that the session had ended.
const RenewalLost = "lost"

// RenewSession keeps the session of the current lease alive until ctx ends, also while its caller waits for something
// else. It renews at once when the wall clock has jumped ahead: the host was suspended, and the timer of the next
// renewal stood still. It also keeps the lease's health check up to date, and that of a resumed subnet.
func (k *Keeper) RenewSession(ctx context.Context) {
	margin := k.o.Settings.RenewMargin
	period := k.o.Settings.TTL - margin
	// There is time for another call before the session may end, even after one that hangs and the longest pause.
	timeout := min(callTimeout, max(margin/2, time.Second))
	backoff := k.o.Outage.NewLoop().Within(margin / 4)
	var session string
	var last, next time.Time
	jumps := clock.Jumps{Wall: k.o.Wall}
	jumps.Next()
	tick := time.NewTicker(clockCheck)
	defer tick.Stop()
	k.condition.update(func() {}) // a subnet may be resumed
	for {
		lease, held, changed := k.lease.Get()
		if held && lease.Session != session {
			session, last = lease.Session, time.Now()
			next = last.Add(period)
			k.condition.setRenewed(last, nil)
		}
		var due <-chan time.Time
		if held && !k.hasEnded(session) {
			due = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-tick.C:
			k.condition.update(func() {}) // it may be overdue
			if jump := jumps.Next(); jump > 0 && held {
				k.report.Log().Info("the clock jumped ahead, as after a suspension: renewing the lease at once", "by", jump)
				next = time.Now()
			}
		case <-due:
			call, cancel := context.WithTimeout(ctx, timeout)
			started := time.Now()
			err := k.o.Registry.Renew(call, lease)
			cancel()
			switch {
			case ctx.Err() != nil:
			case err == nil:
				countRenewal(k.report, started, telemetry.OK)
				last = started // not now: this process may have been suspended since
				next = last.Add(period)
				k.condition.setRenewed(last, nil)
			case errors.Is(err, registry.ErrLeaseLost):
				countRenewal(k.report, started, RenewalLost)
				k.report.Used(report.Session, nil)
				k.ended.Set(session)
			default:
				countRenewal(k.report, started, telemetry.Failed)
				k.condition.setRenewed(last, err)
				_ = backoff.Wait(ctx, err, changed)
				next = time.Now()
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// countRenewal counts a renewal and its duration.
func countRenewal(to *report.Reporter, started time.Time, result string) {
	to.Time(telemetry.LeaseRenewal, time.Since(started))
	to.Count(telemetry.LeaseRenewals, 1, result)
}

// Renew renews the session before it is due, with the caller's store. A session that has ended is replaced by Keep.
func (k *Keeper) Renew(ctx context.Context, store registry.Registry) (api.Renewal, error) {
	lease, held, _ := k.lease.Get()
	if !held {
		return api.Renewal{}, noLease(k.o.Network, "renew", k.report.State())
	}
	asked := time.Now() // the session lives for at least a TTL from now
	err := store.Renew(ctx, lease)
	if errors.Is(err, registry.ErrLeaseLost) {
		k.ended.Set(lease.Session)
		return api.Renewal{}, api.Errorf(http.StatusConflict, "%v; the agent takes the lease back", err)
	}
	if err != nil {
		return api.Renewal{}, err
	}
	k.condition.setRenewed(asked, nil)
	return api.Renewal{
		Subnet:    lease.Subnet(),
		Renewed:   asked.UTC(),
		SafeUntil: asked.Add(k.o.Settings.TTL).UTC(),
	}, nil
}
