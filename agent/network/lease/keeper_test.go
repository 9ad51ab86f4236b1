package lease

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestRetire: a lease that is no slot of the network's plan is given up once its subnet is withdrawn, whether this process
// holds it or an earlier one did.
func TestRetire(t *testing.T) {
	for _, tt := range []struct {
		name    string
		plan    string
		held    bool // by this process
		gone    bool
		failing error
	}{
		{"held, another plan", "10.6.0.0/22", true, true, nil},
		{"held, another plan, the store is away", "10.6.0.0/22", true, false, registry.ErrUnavailable},
		{"held, a larger plan", "10.5.0.0/16", true, false, nil},
		{"of an earlier process, another plan", "10.6.0.0/22", false, true, nil},
		{"of an earlier process, the same plan", "10.5.0.0/22", false, false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newHost(t, memory.New(), "a")
				lease, err := a.keeper.acquireOnce(t.Context(), a.network(), a.own())
				must(t, err)
				before := state.Network{}
				if !tt.held {
					before = state.Network{Network: "n", Subnets: lease.Subnets, Session: lease.Session}
					a.build()
				}
				n := a.network()
				n.Plan = agenttest.Plan(t, tt.plan)
				a.registry.SetOne("Release", tt.failing)
				err = a.keeper.Retire(t.Context(), n, before, true)
				withdrawn, isWithdrawn := errors.AsType[*WithdrawnError](err)
				if isWithdrawn != (tt.gone || tt.failing != nil) || isWithdrawn && withdrawn.Subnet != lease.Subnet() {
					t.Errorf("%v", err)
				}
				if value, _ := a.record(lease.Subnet()); value == "" {
					t.Error("given up before it is withdrawn")
				}
				if isWithdrawn {
					before = state.Network{Network: "n", Subnets: lease.Subnets, Session: lease.Session}
					err = a.keeper.Retire(t.Context(), n, before, false)
				}
				want := "give up " + lease.Subnet().String() + ": "
				if !errors.Is(err, tt.failing) || err != nil && !strings.HasPrefix(err.Error(), want) {
					t.Errorf("%v", err)
				}
				if value, _ := a.record(lease.Subnet()); (value == "") != tt.gone {
					t.Errorf("record %q", value)
				}
				if kept := a.lease().Subnet().IsValid(); kept != (tt.held && !isWithdrawn) {
					t.Errorf("%+v", a.lease())
				}
			})
		})
	}
}

// TestRetireWithoutALease: a host that never had a lease has nothing to give up.
func TestRetireWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		must(t, a.keeper.Retire(t.Context(), a.network(), state.Network{}, false))
		must(t, a.keeper.GiveUp(t.Context(), state.Network{}))
		if n := len(a.registry.At("Release")); n != 0 {
			t.Errorf("%d releases", n)
		}
	})
}

// TestGiveUp: the lease that is held counts, not what an earlier process held.
func TestGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		before := a.rival("a", netip.Prefix{})
		saved := state.Network{Network: "n", Subnets: before.Subnets, Session: before.Session}
		must(t, a.keeper.GiveUp(t.Context(), saved))
		if value, _ := a.record(before.Subnet()); value != "" {
			t.Errorf("the lease of the process before stays: %s", value)
		}
		lease, err := a.keeper.acquireOnce(t.Context(), a.network(), a.own())
		must(t, err)
		must(t, a.keeper.GiveUp(t.Context(), saved))
		if value, _ := a.record(lease.Subnet()); value != "" || a.lease().Subnet() != lease.Subnet() {
			t.Errorf("record %q, lease %+v", value, a.lease())
		}
	})
}

// TestReset: a host that has left a network and joins it again starts as if it had never been in it, but remembers what
// it knows of the store.
func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		_, err := a.keeper.acquireOnce(t.Context(), a.network(), a.own())
		must(t, err)
		revoked := netip.MustParsePrefix("10.5.3.0/24")
		a.keeper.condition.setProblem("a problem")
		a.keeper.condition.setRenewed(time.Now(), errors.New("no answer"))
		a.keeper.revocation.revoked.Set(revoked)
		a.keeper.NoteLoss(0)
		a.keeper.Reset()
		a.keeper.report.Reset()
		s := a.keeper.Status()
		if s.IsHeld() || s.Problem != "" || s.Renewed.IsZero() || s.Revoked != revoked || lossOf(a.keeper).IsZero() {
			t.Errorf("%+v", s)
		}
		a.keeper.condition.update(func() {}) // sets no check of a lease that this host does not want
		if c := a.checked(health.Lease); c.Reason != "" && c.Reason != health.Starting {
			t.Errorf("%+v", c)
		}
		a.start()
		if lease := a.held(); lease.Subnet() == revoked {
			t.Errorf("on %s, which was revoked", lease.Subnet())
		}
		if avoided := a.registry.Claimed().Avoid; avoided != revoked {
			t.Errorf("avoided %s", avoided)
		}
		if c := a.checked(health.Lease); c.Status != api.Passing || !strings.HasSuffix(c.Reason, " is held") {
			t.Errorf("%+v", c)
		}
	})
}

// TestStatusOfALostLease: a lease that is being taken back is not held, but its subnet is still known.
func TestStatusOfALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		lease := a.held()
		a.registry.SetOne("Acquire", registry.ErrUnavailable)
		a.store.Delete(leaseKey(lease.Subnet()))
		a.check(health.Lease, api.Warning, lease.Subnet().String()+": waiting for a lease: ")
		s := a.keeper.Status()
		if s.IsHeld() || s.Lease.Subnet() != lease.Subnet() || !strings.HasPrefix(s.Problem, "waiting for a lease: ") {
			t.Errorf("%+v", s)
		}
	})
}
