package lease

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/clock"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestRenewals: the session is renewed a margin before its TTL ends, for as long as the lease is held.
func TestRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		_, err := a.keeper.acquireOnce(t.Context(), a.network(), a.own())
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go a.keeper.RenewSession(ctx)
		time.Sleep(10 * time.Minute)
		synctest.Wait() // a renewal is due at this very moment
		times, period := a.registry.At("Renew"), a.options.Settings.TTL-a.options.Settings.RenewMargin
		if len(times) < 29 || len(times) > 30 {
			t.Errorf("%d renewals", len(times))
		}
		for i, at := range times[1:] {
			if gap := at.Sub(times[i]); gap != period {
				t.Errorf("renewed after %s, want %s", gap, period)
			}
		}
		if last := a.keeper.Status().Renewed; last != times[len(times)-1] {
			t.Errorf("renewed at %s, says %s", times[len(times)-1], last)
		}
		a.keeper.Reset()
		time.Sleep(10 * time.Minute)
		if more := len(a.registry.At("Renew")) - len(times); more > 1 {
			t.Errorf("%d renewals without a lease", more)
		}
		if a.keeper.Status().Renewed.IsZero() {
			t.Error("the last renewal is forgotten")
		}
	})
}

// TestRenewedAfterSuspension: the timers of a host that was suspended stood still, so its session may be about to end.
func TestRenewedAfterSuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		var suspended atomic.Int64
		a.options.Settings = config.Lease{TTL: 10 * time.Minute, RenewMargin: time.Minute, Hold: time.Hour}
		a.options.Wall = func() time.Time { return time.Now().Add(time.Duration(suspended.Load())) }
		a.build()
		_, err := a.keeper.acquireOnce(t.Context(), a.network(), a.own())
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go a.keeper.RenewSession(ctx)
		for _, step := range []time.Duration{0, clock.Tolerance - 1, -time.Hour} {
			suspended.Add(int64(step))
			time.Sleep(time.Minute)
			if n := len(a.registry.At("Renew")); n > 0 {
				t.Fatalf("%d renewals after a step of %s", n, step)
			}
		}
		suspended.Add(int64(8 * time.Minute))
		time.Sleep(clockCheck + time.Second)
		if n := len(a.registry.At("Renew")); n != 1 {
			t.Errorf("%d renewals after the suspension", n)
		}
	})
}

// TestRenewalFails: the check and the log say since when the session has not been renewed, and the lease stays.
func TestRenewalFails(t *testing.T) {
	for _, err := range []error{registry.ErrUnavailable, registry.ErrDenied} {
		t.Run(err.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newHost(t, memory.New(), "a").start()
				lease := a.held()
				last := a.keeper.Status().Renewed
				a.registry.SetOne("Renew", err)
				want := fmt.Sprintf("%s: not renewed since %s, packets flow: %s",
					lease.Subnet(), last.UTC().Format(time.RFC3339), err)
				a.eventually("the check says so", func() bool {
					c := a.checked(health.Lease)
					return c.Status == api.Warning && c.Reason == want
				})
				if c := a.checked(health.Consul); c.Status != api.Warning || !strings.Contains(c.Reason, "renewing the lease") {
					t.Errorf("the store's check is %+v", c)
				}
				if !a.keeper.Status().IsHeld() { // nothing is lost yet
					t.Errorf("%+v", a.keeper.Status())
				}
				time.Sleep(90 * time.Second) // less than the session lives
				times := a.registry.At("Renew")
				for i, at := range times[1:] {
					if gap := at.Sub(times[i]); gap > a.options.Settings.RenewMargin/4 {
						t.Errorf("attempt %d came %s after the one before", i+1, gap)
					}
				}
				a.registry.SetOne("Renew", nil)
				a.check(health.Lease, api.Passing, lease.Subnet().String()+" is held")
				a.check(health.Consul, api.Passing)
				if now := a.lease(); now.Session != lease.Session || !a.keeper.Status().Renewed.After(last) {
					t.Errorf("%+v, renewed %s", now, a.keeper.Status().Renewed)
				}
				for _, line := range []string{"lease could not be renewed, trying again", "lease is renewed again"} {
					if n := strings.Count(a.log.String(), line); n != 1 {
						t.Errorf("%q is logged %d times", line, n)
					}
				}
			})
		})
	}
}

// TestLossIsSeenByRenewing: a renewal notices a loss when the watch does not work.
func TestLossIsSeenByRenewing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.registry.SetOne("WatchLease", registry.ErrUnavailable)
		lease := a.start().held()
		a.store.EndSession(lease.Session)
		a.check(health.Lease, api.Warning, "was lost (its session ended), taking it back")
		if now := a.held(); now.Session == lease.Session || now.Subnet() != lease.Subnet() {
			t.Errorf("%+v", now)
		}
	})
}

// TestSessionSaidToBeGone: a store that has just come back may not know a living session yet. The host keeps the
// session, and renews it from then on.
func TestSessionSaidToBeGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		lease := a.held()
		a.registry.SetOne("Renew", registry.ErrLeaseLost)
		a.check(health.Lease, api.Warning, "its session ended")
		a.registry.SetOne("Renew", nil)
		if now := a.held(); now.Session != lease.Session {
			t.Errorf("session %s, was %s", now.Session, lease.Session)
		}
		renewals := len(a.registry.At("Renew"))
		time.Sleep(10 * time.Minute)
		if n := len(a.registry.At("Renew")) - renewals; n < 25 {
			t.Errorf("%d renewals since", n)
		}
		a.held()
	})
}

// TestSessionComesBackToLife: a session was found dead, and a store that was set back has it again, with the lease. The
// host renews it from then on.
func TestSessionComesBackToLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.registry.SetOne("WatchLease", registry.ErrUnavailable)
		lease := a.start().held()
		backup := a.store.Backup()
		a.store.EndSession(lease.Session)
		a.eventually("a new session", func() bool { return a.lease().Session != lease.Session })
		a.held()
		a.registry.SetOne("WatchLease", nil)
		watches := len(a.registry.At("WatchLease"))
		a.eventually("the watch works", func() bool { return len(a.registry.At("WatchLease")) > watches+1 })
		a.store.Restore(backup)
		a.eventually("the session of before", func() bool { return a.lease().Session == lease.Session })
		a.held()
		time.Sleep(10 * time.Minute)
		if now := a.held(); now.Session != lease.Session {
			t.Errorf("session %q, want %q", now.Session, lease.Session)
		}
	})
}

// TestRenewNow: a host renews on request although no renewal is due, under the caller's token, and reports until when
// its lease is safe. A session that has ended is replaced.
func TestRenewNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").slow()
		_, err := a.keeper.Renew(t.Context(), a.registry.As("t"))
		wantRefusal(t, err, http.StatusConflict, "network n: this host holds no lease to renew: "+health.Starting)
		a.registry.SetOne("WatchLease", registry.ErrUnavailable) // the watch would notice the end of the session, too
		lease := a.start().held()
		time.Sleep(time.Minute)
		r, err := a.keeper.Renew(t.Context(), a.registry.As("t"))
		if err != nil || r.Subnet != lease.Subnet() || !r.Renewed.Equal(time.Now()) ||
			r.SafeUntil.Sub(r.Renewed) != a.options.Settings.TTL {
			t.Errorf("%+v, %v", r, err)
		}
		if got := a.keeper.Status().Renewed; !got.Equal(r.Renewed) {
			t.Errorf("renewed at %s, says %s", r.Renewed, got)
		}
		if own, under := a.registry.Count("own Renew"), a.registry.Count("token t Renew"); own != 0 || under != 1 {
			t.Errorf("renewed %d times under the agent's token, %d times under the caller's", own, under)
		}
		a.registry.SetOne("Renew", registry.ErrUnavailable)
		if _, err := a.keeper.Renew(t.Context(), a.registry.As("t")); !errors.Is(err, registry.ErrUnavailable) {
			t.Errorf("a store that is away: %v", err)
		}
		a.held()
		a.registry.SetOne("Renew", nil)
		a.store.EndSession(lease.Session)
		_, err = a.keeper.Renew(t.Context(), a.registry.As("t"))
		wantRefusal(t, err, http.StatusConflict,
			"renew lease "+lease.Subnet().String()+": lease is not held any more; the agent takes the lease back")
		if now := a.held(); now.Session == lease.Session {
			t.Errorf("%+v", now)
		}
	})
}

// TestRenewalOutOfTurn: the time of a renewal by request is not replaced by an earlier one.
func TestRenewalOutOfTurn(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	now := time.Now()
	a.keeper.condition.setRenewed(now, nil)
	a.keeper.condition.setRenewed(now.Add(-time.Second), errors.New("no answer"))
	if got := a.keeper.Status().Renewed; !got.Equal(now) {
		t.Errorf("renewed %s, want %s", got, now)
	}
}

// wantRefusal checks the code and the message of an API error.
func wantRefusal(t *testing.T, err error, code int, messages ...string) {
	t.Helper()
	var refusal *api.Error
	if !errors.As(err, &refusal) || refusal.Code != code || !slices.Contains(messages, refusal.Message) {
		t.Errorf("got %v, want %d with one of %q", err, code, messages)
	}
}
