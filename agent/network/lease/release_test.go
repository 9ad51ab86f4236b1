package lease

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

const noLeaseToRelease = "network n: this host holds no lease to release: "

// TestRelease: the lease is released under the caller's token and not taken back. Another request names the first one
// as the cause.
func TestRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		lease := a.held()
		must(t, a.keeper.Release(t.Context(), a.registry.As("t")))
		if a.lease().Subnet().IsValid() || a.keeper.Outcome() == nil {
			t.Errorf("%+v", a.lease())
		}
		if value, _ := a.record(lease.Subnet()); value != "" {
			t.Errorf("record %s", value)
		}
		if own, under := a.registry.Count("own Release"), a.registry.Count("token t Release"); own != 0 || under != 1 {
			t.Errorf("released %d times under the agent's token, %d times under the caller's", own, under)
		}
		err := a.keeper.Release(t.Context(), a.registry.As("t"))
		wantRefusal(t, err, http.StatusConflict, noLeaseToRelease+ReleasedAdvice)
		_, err = a.keeper.Renew(t.Context(), a.registry.As("t"))
		wantRefusal(t, err, http.StatusConflict, "network n: this host holds no lease to renew: "+ReleasedAdvice)
		claims := len(a.registry.At("Acquire"))
		time.Sleep(time.Hour)
		if n := len(a.registry.At("Acquire")); n != claims {
			t.Errorf("claimed %d times since", n-claims)
		}
		a.end()
		wantStopped(t, a.keeper.Release(t.Context(), a.registry.As("t")))
	})
}

// TestReleaseIsRefused: a token without the right changes nothing, and the next request, from a caller with the right,
// succeeds.
func TestReleaseIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		lease := a.held()
		a.registry.SetOne("Release", registry.ErrDenied)
		for range 2 {
			if err := a.keeper.Release(t.Context(), a.registry.As("t")); !errors.Is(err, registry.ErrDenied) {
				t.Errorf("%v", err)
			}
		}
		if c := a.checked(health.Lease); c.Status != api.Passing {
			t.Errorf("%+v", c)
		}
		renewals := len(a.registry.At("Renew"))
		time.Sleep(time.Hour)
		if n := len(a.registry.At("Renew")) - renewals; n < 100 {
			t.Errorf("%d renewals since", n)
		}
		if now := a.held(); now.Session != lease.Session || a.keeper.Outcome() != nil || len(a.changes()) != 1 {
			t.Errorf("%+v, events %q", now, a.changes())
		}
		a.registry.SetOne("Release", nil)
		must(t, a.keeper.Release(t.Context(), a.registry.As("t")))
		if value, _ := a.record(lease.Subnet()); value != "" {
			t.Errorf("record %s", value)
		}
	})
}

// TestReleaseWithoutALease: a release before there is a lease names what the lease waits for. It does not blame the
// store.
func TestReleaseWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.registry.SetOne("Acquire", registry.ErrNetworkFull)
		a.start()
		synctest.Wait()
		err := a.keeper.Release(t.Context(), a.registry.As("t"))
		wantRefusal(t, err, http.StatusConflict, noLeaseToRelease+"waiting for a lease: network is full")
		if strings.Contains(err.Error(), registry.ErrUnavailable.Error()) {
			t.Errorf("the store is blamed: %v", err)
		}
		a.registry.SetOne("Acquire", nil)
		a.held()
	})
}

// TestReleaseWhileTheLeaseIsLost: a lease that is being taken back can be released.
func TestReleaseWhileTheLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		lease := a.held()
		a.registry.SetOne("Acquire", registry.ErrUnavailable)
		a.store.Delete(leaseKey(lease.Subnet()))
		a.check(health.Lease, api.Warning, "waiting for a lease")
		must(t, a.keeper.Release(t.Context(), a.registry.As("t")))
		a.registry.SetOne("Acquire", nil)
		time.Sleep(time.Hour)
		if value, _ := a.record(lease.Subnet()); value != "" {
			t.Errorf("record %s", value)
		}
	})
}

// TestReleaseBetweenTwoRounds: the lease can be released while no round lasts, and the next one ends at once.
func TestReleaseBetweenTwoRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.keeper.report.SetState("between two rounds")
		err := a.keeper.Release(t.Context(), a.registry.As("t"))
		wantRefusal(t, err, http.StatusConflict, noLeaseToRelease+"between two rounds")
		_, err = a.keeper.acquireOnce(t.Context(), a.network(), a.own())
		must(t, err)
		time.AfterFunc(time.Second, func() { a.keeper.ConfirmRelease(nil) })
		must(t, a.keeper.Release(t.Context(), a.registry.As("t")))
		round, cancel := a.keeper.UntilReleased(t.Context())
		defer cancel()
		if synctest.Wait(); round.Err() == nil || a.keeper.Outcome() == nil {
			t.Error("another round begins")
		}
		a.keeper.Close()
		wantStopped(t, a.keeper.Release(t.Context(), a.registry.As("t")))
		a.keeper.Close()
	})
}

// TestReleaseWaitsForAClaim: a request during a claim waits, can be given up, and ends when the keeper is closed.
func TestReleaseWaitsForAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.registry.SetOne("Acquire", registry.ErrUnavailable)
		a.registry.SetHanging(true)
		claiming, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = a.keeper.acquireOnce(claiming, a.network(), a.own()) }()
		synctest.Wait()
		ctx, giveUp := context.WithTimeout(t.Context(), time.Second)
		defer giveUp()
		if err := a.keeper.Release(ctx, a.registry.As("t")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller gave up: %v", err)
		}
		time.AfterFunc(time.Second, a.keeper.Close)
		wantStopped(t, a.keeper.Release(t.Context(), a.registry.As("t")))
	})
}

func wantStopped(t *testing.T, err error) {
	t.Helper()
	wantRefusal(t, err, http.StatusServiceUnavailable,
		"network n: the lease cannot be released now: this host's part in the network is being stopped")
}

// TestStoppedDuringARelease: a request that was granted ends when the keeper is closed or its caller gives up, even if
// the release is not confirmed.
func TestStoppedDuringARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, closing := range []bool{true, false} {
			a := newHost(t, memory.New(), "a")
			_, err := a.keeper.acquireOnce(t.Context(), a.network(), a.own())
			must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if closing {
				time.AfterFunc(time.Second, a.keeper.Close)
			}
			err = a.keeper.Release(ctx, a.registry.As("t"))
			if cancel(); closing {
				wantStopped(t, err)
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
			if a.keeper.Outcome() == nil {
				t.Error("not released")
			}
			a.keeper.ConfirmRelease(nil) // does not block
		}
	})
}

// TestNoClaimAfterRelease: a released lease is not claimed again, although the watch may notice that the record is gone
// before the round has ended.
func TestNoClaimAfterRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.keeper.releases.grant()
		n := a.network()
		if _, err := a.keeper.Acquire(t.Context(), func() (registry.Network, registry.Claim) { return n, a.own() }); !errors.Is(err, ErrReleased) {
			t.Errorf("%v", err)
		}
		r := &conflictResolver{keeper: a.keeper, network: n}
		if _, err := r.send(t.Context(), a.own()); !errors.Is(err, ErrReleased) {
			t.Errorf("a challenge: %v", err)
		}
		if n := len(a.registry.At("Acquire")); n != 0 {
			t.Errorf("claimed %d times", n)
		}
	})
}

// TestReleaseNeverMeetsAClaim: no claim is under way during a release, and none follows.
func TestReleaseNeverMeetsAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 20 {
			a := newHost(t, memory.New(), "a")
			n := a.network()
			_, err := a.keeper.acquireOnce(t.Context(), n, a.own())
			must(t, err)
			var claiming, releasing atomic.Int32
			a.registry.SetBefore(func(call string) {
				mine, others := &claiming, &releasing
				switch call {
				case "Acquire":
				case "Release":
					mine, others = &releasing, &claiming
				default:
					return
				}
				mine.Add(1)
				time.Sleep(time.Millisecond)
				if others.Load() > 0 {
					t.Error("a claim and a release at the same time")
				}
				mine.Add(-1)
			})
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() {
					var err error
					for err == nil {
						_, err = a.keeper.acquireOnce(t.Context(), n, a.own())
					}
					if !errors.Is(err, ErrReleased) {
						t.Error(err)
					}
				})
			}
			all.Go(func() {
				<-a.keeper.releases.granted.Done()
				a.keeper.ConfirmRelease(nil)
			})
			if err := a.keeper.Release(t.Context(), a.registry.As("t")); err != nil {
				t.Error(err)
			}
			all.Wait()
			if value, _ := a.record(a.lease().Subnet()); value != "" {
				t.Errorf("claimed after the release: %s", value)
			}
		}
	})
}
