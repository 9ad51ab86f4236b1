package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestRenewByRequest: what the API answers to a request for a renewal.
func TestRenewByRequest(t *testing.T) {
	simulated(t, func(t *testing.T) {
		ctx := context.Background()
		a := newHost(t, memory.New(), "a")
		a.config.Lease.TTL, a.config.Lease.RenewMargin = time.Hour, time.Second // no renewal is due during the test
		a.start().ready()
		renewed := func() time.Time {
			n, err := a.client.Network(ctx, "n")
			if err != nil || n.Local == nil {
				t.Fatalf("%+v, %v", n, err)
			}
			return n.Local.Renewed
		}
		before := renewed()
		r, err := a.client.RenewLease(ctx, "n")
		if err != nil || r.Subnet != a.subnet() || !r.Renewed.After(before) || r.SafeUntil.Sub(r.Renewed) != time.Hour {
			t.Errorf("%+v after %s, %v", r, before, err)
		}
		if now := renewed(); !now.Equal(r.Renewed) {
			t.Errorf("renewed at %s, shown is %s", r.Renewed, now)
		}
		if n := a.registry.Count("own Renew"); n != 0 {
			t.Errorf("the agent's own token was used %d times", n)
		}

		_, err = a.client.RenewLease(ctx, "m")
		agenttest.WantCode(t, "an unknown network", err, http.StatusNotFound, "n")
		a.registry.SetOne("Renew", registry.ErrUnavailable)
		_, err = a.client.RenewLease(ctx, "n")
		agenttest.WantCode(t, "a store that is away", err, http.StatusServiceUnavailable)

		a.registry.SetOne("Renew", registry.ErrLeaseLost)
		_, err = a.client.RenewLease(ctx, "n")
		agenttest.WantCode(t, "a session that ended", err, http.StatusConflict, "takes the lease back")
		a.registry.SetOne("Renew", nil)

		b := newHost(t, a.store, "b")
		b.registry.SetOne("Acquire", registry.ErrDenied)
		b.start()
		eventually(t, func() error {
			h, err := b.client.Health(ctx)
			if err == nil && (len(h.Networks) == 0 || !failing(h.Networks[0].Checks, health.Lease)) {
				err = fmt.Errorf("%+v", h)
			}
			return err
		})
		_, err = b.client.RenewLease(ctx, "n")
		agenttest.WantCode(t, "a host without a lease", err, http.StatusConflict, "holds no lease", "waiting for a lease")
	})
}

func failing(checks []api.Check, name string) bool {
	for _, c := range checks {
		if c.Name == name {
			return c.Status != api.Passing
		}
	}
	return false
}

// TestChangedLeasesAreSeen: a lease that was just revoked or released is no longer listed.
func TestChangedLeasesAreSeen(t *testing.T) {
	simulated(t, func(t *testing.T) {
		ctx := context.Background()
		store := memory.New()
		a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
		a.applies(a.subnet().String() + " <- b@" + b.subnet().String())
		has := func(node string, subnet netip.Prefix) bool {
			list, err := a.client.Leases(ctx, "n")
			must(t, err)
			return slices.ContainsFunc(list.Leases, func(l api.Lease) bool { return l.Node == node && l.Subnet == subnet })
		}
		own, other := a.subnet(), b.subnet()
		if !has("a", own) || !has("b", other) {
			t.Fatal("the leases are not listed")
		}
		must(t, a.client.RevokeLease(ctx, "n", other))
		if has("b", other) {
			t.Error("a lease that was revoked is listed")
		}
		must(t, a.client.ReleaseLease(ctx, "n"))
		if has("a", own) {
			t.Error("a lease that was released is listed")
		}
	})
}
