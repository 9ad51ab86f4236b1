package lease

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func TestAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		if c := a.checked(health.Lease); c.Status != api.Critical && c.Status != "" {
			t.Errorf("before the first claim: %+v", c)
		}
		a.start()
		lease := a.held()
		if c := a.checked(health.Lease); c.Reason != lease.Subnet().String()+" is held" {
			t.Errorf("check %q", c.Reason)
		}
		if c := a.checked(health.Conflict); c.Status != api.Passing {
			t.Errorf("%+v", c)
		}
		if got := a.changes(); !slices.Equal(got, []string{"taken " + lease.Subnet().String()}) {
			t.Errorf("events %q", got)
		}
		s := a.keeper.Status()
		if !s.IsHeld() || s.Lease.Session != lease.Session || s.Renewed.IsZero() || s.Revoked.IsValid() {
			t.Errorf("%+v", s)
		}
		a.restart().held()
		if again := a.lease(); again.Session != lease.Session || again.Subnet() != lease.Subnet() {
			t.Errorf("the next process has %+v, this one had %+v", again, lease)
		}
	})
}

// TestAcquireWaits: the check, the state and the log say why there is no lease. An answer of the store settles what was
// resumed; an error that is no answer does not.
func TestAcquireWaits(t *testing.T) {
	resumed := func(renewed time.Time) Resumed {
		return Resumed{netip.MustParsePrefix("10.5.9.0/24"), "before the reload", renewed}
	}
	for _, tt := range []struct {
		name     string
		err      error
		resumed  Resumed
		status   string
		reason   string
		answered bool
	}{
		{"full", registry.ErrNetworkFull, Resumed{}, api.Critical, "waiting for a lease: network is full", true},
		{"away", registry.ErrUnavailable, Resumed{}, api.Critical, "waiting for a lease: the store is unavailable", false},
		{"denied", registry.ErrDenied, Resumed{}, api.Critical, "waiting for a lease: permission denied", false},
		{"away, a datapath was resumed", registry.ErrUnavailable, resumed(time.Time{}), api.Warning,
			"10.5.9.0/24 stays in use as before the reload: waiting for a lease: the store is unavailable", false},
		{"away, what was resumed is overdue", registry.ErrUnavailable, resumed(time.Unix(0, 0)), api.Critical,
			"10.5.9.0/24 was not renewed since 1970-01-01T00:00:00Z, for longer than lease.hold: another host may have it " +
				"by now; waiting for a lease: the store is unavailable", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newHost(t, memory.New(), "a")
				a.resumed = tt.resumed
				a.registry.SetOne("Acquire", tt.err)
				a.start()
				synctest.Wait()
				if c := a.checked(health.Lease); c.Status != tt.status || c.Reason != tt.reason {
					t.Errorf("%s: %s", c.Status, c.Reason)
				}
				if got := a.keeper.report.State(); !strings.HasSuffix(tt.reason, got) || got == "" {
					t.Errorf("state %q", got)
				}
				if s := a.keeper.Status(); s.IsHeld() || s.Problem == "" {
					t.Errorf("%+v", s)
				}
				a.mu.Lock()
				answered := a.answered
				a.mu.Unlock()
				if (answered > 0) != tt.answered {
					t.Errorf("answered %d times", answered)
				}
				if failing := a.checked(health.Consul).Status == api.Warning; failing == tt.answered {
					t.Errorf("the store's check is %+v", a.checked(health.Consul))
				}
				a.registry.SetOne("Acquire", nil)
				a.held()
				if c := a.checked(health.Consul); c.Status != api.Passing {
					t.Errorf("the store's check is %+v", c)
				}
				if got := a.changes(); len(got) != 1 {
					t.Errorf("events %q", got)
				}
			})
		})
	}
}

// TestLongClaim: a claim that takes a minute is not given up, because it would have to begin again.
func TestLongClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.registry.SetHanging(true)
		a.registry.SetOne("Acquire", registry.ErrUnavailable)
		a.start()
		time.Sleep(time.Minute)
		if s := a.keeper.Status(); s.Problem != "" {
			t.Error(s.Problem)
		}
		a.registry.SetHanging(false)
		a.registry.SetOne("Acquire", nil)
		a.held()
	})
}

// TestClaimFollowsTheDefinition: a claim that waits for the network to be defined again is made as soon as it is,
// before a host that knows nothing of the lease can take the subnet.
func TestClaimFollowsTheDefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.registry.SetOne("Acquire", registry.ErrUnavailable)
		a.start()
		time.Sleep(5*time.Minute + 10*time.Millisecond)
		a.registry.SetOne("Acquire", nil)
		synctest.Wait()
		if a.subnet().IsValid() {
			t.Fatal("the claim did not wait")
		}
		a.networks.Set(struct{}{})
		synctest.Wait()
		if !a.subnet().IsValid() {
			t.Error("no claim yet")
		}
	})
}

// TestClaimAfterALoss: a host that saw the store lose the network gives other hosts time to claim their subnets again,
// unless it claims its own.
func TestClaimAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a, b := newHost(t, store, "a").start(), newHost(t, store, "b")
		lease := a.held()
		a.end()
		// b knew the network, and has seen the sessions in it.
		empty(store)
		must(t, store.Client().PutNetwork(t.Context(), definition(t)))
		b.keeper.NoteLoss(3)
		if lossOf(b.keeper) != time.Now() {
			t.Errorf("lost at %s", lossOf(b.keeper))
		}
		if _, err := b.keeper.acquireOnce(t.Context(), b.network(), b.own()); !errors.Is(err, registry.ErrLeasesLost) {
			t.Errorf("a newcomer: %v", err)
		}
		if c := b.registry.Claimed(); c.Lost != lossOf(b.keeper) || c.Known != 3 {
			t.Errorf("claimed with a loss of %d leases at %s", c.Known, c.Lost)
		}
		a.build().start()
		if again := a.held(); again.Subnet() != lease.Subnet() {
			t.Errorf("%s, before %s", again.Subnet(), lease.Subnet())
		}
		time.Sleep(b.options.Settings.TTL)
		taken, err := b.keeper.acquireOnce(t.Context(), b.network(), b.own())
		if must(t, err); taken.Subnet() == lease.Subnet() {
			t.Errorf("the newcomer has %s, too", taken.Subnet())
		}
	})
}

// lossOf returns when a keeper noted the last loss.
func lossOf(k *Keeper) time.Time {
	last, _, _ := k.loss.Get()
	return last.at
}

// TestMoved: another subnet needs an operator, who sees it in the check until the keeper is reset.
func TestMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		before := a.held().Subnet()
		must(t, a.store.Client().Revoke(t.Context(), "n", before))
		a.eventually("another subnet", func() bool { return a.subnet() != before })
		now := a.held().Subnet()
		c := a.checked(health.Lease)
		want := now.String() + " is held; it was " + before.String() + " until "
		if !strings.HasPrefix(c.Reason, want) || !strings.HasSuffix(c.Reason, ", containers from before must be restarted") {
			t.Errorf("check %q", c.Reason)
		}
		if got := a.changes(); !slices.Equal(got, []string{
			"taken " + before.String(), "revoked " + before.String(), "renumbered " + now.String(),
		}) {
			t.Errorf("events %q", got)
		}
		a.keeper.Reset()
		a.keeper.lease.Set(a.lease())
		a.keeper.condition.setProblem("")
		if c := a.checked(health.Lease); strings.Contains(c.Reason, "until") {
			t.Errorf("after a reset: %q", c.Reason)
		}
	})
}

// TestMovedAndExit: the next process takes the subnet that this one got before it ended.
func TestMovedAndExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, saveErr := range []error{nil, errors.New("no space left")} {
			a := newHost(t, memory.New(), "a").configure(func(o *Options) { o.Settings.OnLost = config.OnLostExit }).start()
			before := a.held().Subnet()
			a.mu.Lock()
			a.saveErr = saveErr
			a.mu.Unlock()
			must(t, a.store.Client().Revoke(t.Context(), "n", before))
			err := <-a.exited
			var lost *LostError
			if !errors.As(err, &lost) || lost.Old != before.String() || lost.New != a.subnet().String() || lost.New == lost.Old {
				t.Fatalf("ended with %v", err)
			}
			if said := strings.Contains(a.log.String(), "new subnet could not be saved to the state file"); said != (saveErr != nil) {
				t.Errorf("log:\n%s", a.log)
			}
			if saveErr == nil {
				saved, err := a.options.State.Load()
				if err != nil || saved.Subnets[0].String() != lost.New || saved.Revoked.IsValid() {
					t.Errorf("saved %+v, %v", saved, err)
				}
			}
			if now := a.restart().held().Subnet(); now.String() != lost.New {
				t.Errorf("the next process has %s, want %s", now, lost.New)
			}
		}
	})
}

// TestTakenInAnOutage: while a host cannot reach the store, its lease is revoked and another host takes the subnet. The
// host takes another subnet, or ends, and leaves the other host's record alone.
func TestTakenInAnOutage(t *testing.T) {
	for _, onLost := range []string{config.OnLostRenumber, config.OnLostExit} {
		t.Run(onLost, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newHost(t, memory.New(), "a").configure(func(o *Options) { o.Settings.OnLost = onLost }).start()
				subnet := a.held().Subnet()
				a.registry.Set(registry.ErrUnavailable)
				must(t, a.store.Client().Revoke(t.Context(), "n", subnet))
				b := a.rival("b", subnet)
				if b.Subnet() != subnet {
					t.Fatalf("b has %s, want %s", b.Subnet(), subnet)
				}
				a.registry.Set(nil)
				if onLost == config.OnLostExit {
					var lost *LostError
					if err := <-a.exited; !errors.As(err, &lost) || lost.Old != subnet.String() || lost.New == lost.Old {
						t.Errorf("ended with %v", err)
					}
				} else {
					a.eventually("another subnet", func() bool { return a.subnet() != subnet })
					a.held()
				}
				if _, session := a.record(subnet); session != b.Session {
					t.Errorf("the subnet is held by %q, the other host's session is %q", session, b.Session)
				}
			})
		})
	}
}

func TestLostErrorNamesBothSubnets(t *testing.T) {
	err := &LostError{Network: "n", Old: "10.5.1.0/24", New: "10.5.2.0/24"}
	for _, word := range []string{"n", "10.5.1.0/24", "10.5.2.0/24", config.OnLostExit} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not name %s", err, word)
		}
	}
}

// TestOutgrownSubnet: a host whose subnet is outside the range for leases now must take another one.
func TestOutgrownSubnet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		n := a.network()
		n.Plan[0].Min, n.Plan[0].Max = netip.MustParseAddr("10.5.1.0"), netip.MustParseAddr("10.5.2.0")
		must(t, a.store.Client().PutNetwork(t.Context(), n))
		out := netip.MustParsePrefix("10.5.3.0/24")
		if got := outgrown(n.Plan, out); got != out {
			t.Errorf("outgrown: %s", got)
		}
		for _, in := range []string{"10.5.1.0/24", "10.6.1.0/24"} {
			if got := outgrown(n.Plan, netip.MustParsePrefix(in)); got.IsValid() {
				t.Errorf("%s is outgrown: %s", in, got)
			}
		}
		must(t, state.Save(a.dir, state.Network{Network: "n", Subnets: []netip.Prefix{out}, Renewed: time.Now()}))
		a.start()
		if now := a.held().Subnet(); now == out || a.registry.Claimed().Avoid != out {
			t.Errorf("took %s, avoiding %s", now, a.registry.Claimed().Avoid)
		}
	})
}
