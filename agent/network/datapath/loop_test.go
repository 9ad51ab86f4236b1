package datapath

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/registry"
)

// TestRunFollowsTheView: each view is applied at once, and a look at an unchanged kernel comes with the slow tick.
func TestRunFollowsTheView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t).built()
		stop := l.run()
		defer stop()
		if n, _ := l.applied(); n != 0 {
			t.Fatalf("%d passes before a view is known", n)
		}
		l.views.Set(l.view("b"))
		if n, got := l.applied(); n != 1 || got != "10.5.1.0/24 <- b" {
			t.Fatalf("pass %d: %s", n, got)
		}
		l.views.Set(l.view("b", "c"))
		if n, got := l.applied(); n != 2 || got != "10.5.1.0/24 <- b c" {
			t.Fatalf("pass %d: %s", n, got)
		}
		if got := l.r.Content(); len(got.Leases) != 3 {
			t.Errorf("the content has %d leases", len(got.Leases))
		}
		time.Sleep(slowTick + time.Second)
		if n, _ := l.applied(); n != 3 {
			t.Errorf("%d passes after a slow tick, want 3", n)
		}
		if fmt.Sprint(l.served) != "[10.5.1.0/24 true 10.5.1.0/24 true 10.5.1.0/24 true]" {
			t.Errorf("served %v", l.served)
		}
		l.check(health.Routes, api.Passing, "2 peers in place")
		l.check(health.Device, api.Passing, "leno-n is up with an MTU of 1450")
		if s := l.r.Status(); s.Applied.IsZero() || s.MTU != 1450 || s.Report.Peers != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// TestKernelChangesSettle: a burst of changes in the kernel leads to one pass, and no change is missed that comes while
// a pass runs.
func TestKernelChangesSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t).built()
		stop := l.run()
		defer stop()
		l.views.Set(l.view("b"))
		l.applied()
		for range 5 {
			l.kick()
			time.Sleep(settle / 10)
		}
		time.Sleep(settle)
		if n, _ := l.applied(); n != 2 {
			t.Fatalf("%d passes after a burst, want 2", n)
		}
		once := sync.OnceFunc(l.kick)
		l.edit(func() { l.onApply = once })
		l.views.Set(l.view("b", "c"))
		time.Sleep(2 * settle)
		if n, _ := l.applied(); n != 4 {
			t.Errorf("%d passes after a change during a pass, want 4", n)
		}
	})
}

// TestFailedPassIsRepeated: a pass that fails comes again with growing pauses, although its own writes change the
// kernel. Containers are served again if the datapath was in place before.
func TestFailedPassIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t).built()
		stop := l.run()
		defer stop()
		l.fail = backend.About(backend.Device, errors.New("no such kind"))
		l.onApply = l.kick
		l.views.Set(l.view("b"))
		time.Sleep(time.Minute)
		n, _ := l.applied()
		if n < 3 || n > 60 {
			t.Errorf("%d passes in a minute", n)
		}
		l.check(health.Device, api.Critical, "no such kind")
		if l.logged("operation failed on this host") != 1 || len(l.served) != 0 {
			t.Errorf("logged %d times, served %v", l.logged("operation failed on this host"), l.served)
		}
		l.edit(func() { l.fail, l.onApply = nil, nil })
		time.Sleep(time.Minute)
		l.applied()
		l.check(health.Device, api.Passing)
		if len(l.served) == 0 || l.served[0] != "10.5.1.0/24 true" {
			t.Errorf("served %v", l.served)
		}
		l.edit(func() { l.fail, l.served = errors.New("busy"), nil })
		l.views.Set(l.view("b", "c"))
		l.applied()
		if fmt.Sprint(l.served) != "[10.5.1.0/24 false]" {
			t.Errorf("after a failed pass: served %v", l.served)
		}
	})
}

// TestFirstPassMeetsForeignRoutes: a new process serves a subnet although the kernel has other routes in the place of its
// own, such as those to the containers of the subnet before, but not if anything else fails.
func TestFirstPassMeetsForeignRoutes(t *testing.T) {
	route := backend.About(backend.Routes, fmt.Errorf("add route 10.5.2.0/24: %w: %w", unix.EEXIST, backend.ErrForeignRoute))
	for _, tt := range []struct {
		name        string
		fail, guard error
		want        string
	}{
		{"routes", errors.Join(route, route), nil, "[10.5.1.0/24 false]"},
		{"a route and the device", errors.Join(route, backend.About(backend.Device, errors.New("no such kind"))), nil, "[]"},
		{"a route and the socket", errors.Join(route, backend.About(backend.Routes, unix.EADDRINUSE)), nil, "[]"},
		{"a route and the guard", route, unix.EPERM, "[]"},
		{"a route of the guard", route, route, "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				l.r.o.Host.Guard = func(context.Context, kernel.Owner, bool) error { return tt.guard }
				l.r.o.Change = func(context.Context, registry.Network) error { return nil }
				stop := l.built().run()
				defer stop()
				l.fail = tt.fail
				v := l.view("b")
				v.Network.Encryption = registry.EncryptionRequired
				l.views.Set(v)
				l.applied()
				if got := fmt.Sprint(l.served); got != tt.want {
					t.Errorf("served %s, want %s", got, tt.want)
				}
				l.edit(func() { l.fail, l.served = nil, nil })
				l.r.o.Host.Guard = l.guard
				l.kick()
				time.Sleep(slowTick)
				l.applied()
				if got := fmt.Sprint(l.served); !strings.HasPrefix(got, "[10.5.1.0/24 true") {
					t.Errorf("once nothing fails, served %s", got)
				}
			})
		})
	}
}

// TestUncarriedPool: containers are served without the pools that the host cannot carry, and health says why. A network
// without another pool is not served.
func TestUncarriedPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t).built()
		var served []string
		l.r.o.Serve = func(_ context.Context, _ *peers.View, s backend.State, applied bool) error {
			served = append(served, fmt.Sprint(s.Subnets, " ", applied))
			return nil
		}
		stop := l.run()
		defer stop()
		v := l.view("b")
		v.Own.Subnets = append(v.Own.Subnets, netip.MustParsePrefix("fd00:5:0:1::/64"))
		lacking := backend.Uncarried{Pool: netip.MustParsePrefix("fd00:5::/48"), Reason: "IPv6 is disabled: sysctl x is 1"}
		l.result.Uncarried = []backend.Uncarried{lacking}
		l.views.Set(v)
		l.applied()
		l.check(health.Device, api.Warning, "pool fd00:5::/48 is not carried", "sysctl x is 1", "switch IPv6 on")
		l.check(health.Routes, api.Passing, "1 peers in place")
		l.edit(func() { l.result.Uncarried = nil })
		time.Sleep(slowTick + time.Second)
		l.applied()
		l.check(health.Device, api.Passing, "leno-n is up")
		if got := fmt.Sprint(served); got != "[[10.5.1.0/24] true [10.5.1.0/24 fd00:5:0:1::/64] true]" {
			t.Errorf("served %s", got)
		}
		lacking.Pool = netip.MustParsePrefix("10.5.0.0/16")
		v = l.view("b")
		l.edit(func() { l.result.Uncarried = []backend.Uncarried{lacking} })
		l.views.Set(v)
		l.applied()
		l.check(health.Device, api.Critical, "pool 10.5.0.0/16 is not carried")
		if got := served[len(served)-1]; got != "[10.5.1.0/24] false" {
			t.Errorf("served %s", got)
		}
	})
}

// TestStartInSwitch: a host that starts while its network is switched to another backend is ready once each peer has a
// route over one of the backends. Packets do not have to use the new one, and a stopped switch is no different.
func TestStartInSwitch(t *testing.T) {
	for _, stopped := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t).built()
			l.result.Switch = &backend.Switch{To: "udp", Stopped: stopped, Unassigned: 1}
			stop := l.run()
			defer stop()
			l.views.Set(l.view("b", "c"))
			l.applied()
			l.edit(func() { l.result.Switch = &backend.Switch{To: "udp", Stopped: stopped, Moved: 1} })
			time.Sleep(2 * switchTick)
			l.applied()
			if len(l.served) < 2 || l.served[0] != "10.5.1.0/24 false" || l.served[1] != "10.5.1.0/24 true" {
				t.Errorf("stopped %t: served %v", stopped, l.served)
			}
		})
	}
}

// TestUnderlayMoves: the datapath and the claim follow the underlay. An underlay that is gone or down is kept.
func TestUnderlayMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t).built()
		stop := l.run()
		defer stop()
		l.views.Set(l.view("b"))
		l.applied()
		moves := func(change func()) {
			l.edit(change)
			l.kick()
			time.Sleep(settle)
			l.applied()
		}
		moves(func() { l.choice.Addrs = []netip.Addr{netip.MustParseAddr("192.0.2.9")} })
		moves(func() { l.choice.MTU = 1400 })
		if fmt.Sprint(l.moved) != "[192.0.2.9 true 192.0.2.9 false]" {
			t.Errorf("moved %v", l.moved)
		}
		last := func() backend.State { return l.passes[len(l.passes)-1].state }
		if s := last(); s.MTU != 1350 || s.Underlay.Addrs[0].String() != "192.0.2.9" {
			t.Errorf("applied %+v", s)
		}
		moves(func() { l.gone = errors.New("no device") })
		l.check(health.Underlay, api.Warning, "keeping eth0: no device")
		if s := last(); s.Underlay.Interface != "eth0" || s.MTU != 1350 || fmt.Sprint(s.Subnets) != "[10.5.1.0/24]" {
			t.Errorf("applied %+v", s)
		}
		if l.r.Status().HasUnderlay || !l.r.UsesLink("wan7") {
			t.Error("any device may become the underlay")
		}
		for _, addrs := range [][]netip.Addr{nil, {netip.MustParseAddr("2001:db8::1")}} { // what the kernel leaves of a device that is down
			moves(func() { l.gone, l.choice.Down, l.choice.Addrs = nil, true, addrs })
			l.check(health.Underlay, api.Warning, "keeping eth0", "eth0 is down")
			if s := last(); fmt.Sprint(s.Underlay.Addrs) != "[192.0.2.9]" || s.Underlay.Interface != "eth0" || s.MTU != 1350 {
				t.Errorf("applied %+v", s)
			}
		}
		moves(func() { l.choice.Down, l.choice.Addrs = false, []netip.Addr{netip.MustParseAddr("192.0.2.9")} })
		l.check(health.Underlay, api.Passing, "eth0")
		if len(l.moved) != 2 || l.logged("underlay can be used again") != 1 || l.r.UsesLink("wan7") {
			t.Errorf("moved %v, log:\n%s", l.moved, l.log.String())
		}
	})
}

// TestDefaultRouteMoves: a host without an underlay block stays where the other hosts are reached when the default route
// alone moves or disappears, and follows it otherwise.
func TestDefaultRouteMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t).built()
		stop := l.run()
		defer stop()
		l.views.Set(l.view("b"))
		l.applied()
		at := func(name, link, status string, change func()) {
			t.Helper()
			l.edit(change)
			l.kick()
			time.Sleep(settle)
			l.applied()
			if got := l.passes[len(l.passes)-1].state.Underlay.Interface; got != link {
				t.Errorf("%s: the underlay is %s, want %s", name, got, link)
			}
			l.check(health.Underlay, status, link)
		}
		lan := l.choice
		backup := lan
		backup.Interface, backup.Index, backup.Addrs = "wwan0", 3, []netip.Addr{netip.MustParseAddr("203.0.113.7")}
		lan.ToPeers = true
		at("it moves", "eth0", api.Passing, func() { l.choice, l.named = backup, lan })
		at("it is gone", "eth0", api.Passing, func() { l.gone = underlay.ErrNone })
		at("it is back", "eth0", api.Passing, func() { l.choice, l.gone = lan, nil })
		at("the other hosts are reached elsewhere", "wwan0", api.Warning, func() { l.choice, l.named.ToPeers = backup, false })
		l.check(health.Underlay, api.Warning, "the host has left eth0 [192.0.2.1]")
		at("it stays there", "wwan0", api.Warning, func() {})
		time.Sleep(departureShown + slowTick)
		at("it stays there for long", "wwan0", api.Passing, func() {})
		at("it is back on the LAN", "eth0", api.Warning, func() { l.choice, l.named = lan, underlay.Choice{} })
		at("it leaves and comes back", "wwan0", api.Passing, func() { l.choice = backup })
		if diff := cmp.Diff([]string{
			"underlay moved from eth0 [192.0.2.1] to wwan0 [203.0.113.7]",
			"underlay moved from wwan0 [203.0.113.7] to eth0 [192.0.2.1]",
			"underlay moved from eth0 [192.0.2.1] to wwan0 [203.0.113.7]",
		}, l.recorded()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if fmt.Sprint(l.moved) != "[203.0.113.7 true 192.0.2.1 true 203.0.113.7 true]" {
			t.Errorf("moved %v", l.moved)
		}
	})
}

// TestAddressMissingForAMoment: a host keeps its underlay while one of its addresses is missing for a moment, and moves
// when it stays away. An address that another one of its family replaces is followed at once.
func TestAddressMissingForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t).built()
		both := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
		has := func(addrs ...netip.Addr) {
			l.edit(func() { l.choice.Addrs = addrs })
			l.kick()
			time.Sleep(time.Second)
		}
		has(both...)
		stop := l.run()
		defer stop()
		l.views.Set(l.view("b"))
		expect := func(what, want string) {
			t.Helper()
			l.mu.Lock()
			defer l.mu.Unlock()
			if got := fmt.Sprint(l.passes[len(l.passes)-1].state.Underlay.Addrs, l.moved); got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		for range 2 {
			has(both[1])
			l.check(health.Underlay, api.Warning, "keeping eth0: its address 192.0.2.1 is missing")
			time.Sleep(addressPatience - 2*time.Second)
			has(both...)
			l.check(health.Underlay, api.Passing, "eth0")
			expect("back in time", "[192.0.2.1 2001:db8::1] []")
		}
		has(both[0])
		expect("without the second family", "[192.0.2.1 2001:db8::1] []")
		has(both...)
		replaced := netip.MustParseAddr("192.0.2.9")
		has(replaced, both[1])
		expect("another address", "[192.0.2.9 2001:db8::1] [192.0.2.9 true]")
		has(both[1])
		time.Sleep(addressPatience)
		expect("for good", "[2001:db8::1] [192.0.2.9 true 2001:db8::1 true]")
		l.check(health.Underlay, api.Passing, "eth0")
		has(replaced, both[1])
		expect("back later", "[192.0.2.9 2001:db8::1] [192.0.2.9 true 2001:db8::1 true 192.0.2.9 true]")
	})
}

// TestUnderlayMovesBeforeAView: the claim follows the underlay and the check tells of it while the leases of the other
// hosts cannot be read.
func TestUnderlayMovesBeforeAView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t).built()
		stop := l.run()
		defer stop()
		moves := func(change func()) {
			t.Helper()
			synctest.Wait()
			l.edit(change)
			l.kick()
			time.Sleep(settle)
			if n, _ := l.applied(); n != 0 {
				t.Errorf("%d passes before a view is known", n)
			}
		}
		moves(func() { l.gone = errors.New("no device") })
		l.check(health.Underlay, api.Warning, "keeping eth0: no device")
		moves(func() { l.gone, l.choice.Addrs = nil, []netip.Addr{netip.MustParseAddr("192.0.2.9")} })
		l.check(health.Underlay, api.Passing, "eth0")
		if fmt.Sprint(l.moved) != "[192.0.2.9 true]" {
			t.Errorf("moved %v", l.moved)
		}
		l.views.Set(l.view("b"))
		if n, _ := l.applied(); n != 1 || l.passes[0].state.Underlay.Addrs[0].String() != "192.0.2.9" {
			t.Errorf("applied %+v", l.passes)
		}
	})
}

// TestResumeIsTheSameLoop: a resumed datapath is kept right, but nothing is served or claimed before the store has
// confirmed the lease.
func TestResumeIsTheSameLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t).built()
		l.r.Resume(t.Context(), l.view("b"), true)
		if n, got := l.applied(); n != 1 || got != "10.5.1.0/24 <- b" || l.passes[0].state.Partial {
			t.Fatalf("pass %d when Resume returns: %s", n, got)
		}
		if l.logged("datapath resumed") != 1 {
			t.Errorf("log:\n%s", l.log.String())
		}
		l.edit(func() { l.choice.Addrs = []netip.Addr{netip.MustParseAddr("192.0.2.9")} })
		l.kick()
		time.Sleep(settle)
		if n, _ := l.applied(); n != 2 || l.passes[1].state.Underlay.Addrs[0].String() != "192.0.2.9" {
			t.Errorf("%d passes after a change of the underlay", n)
		}
		if !l.r.StopResumed() || l.r.StopResumed() {
			t.Error("there was one resumed datapath")
		}
		l.kick()
		time.Sleep(time.Minute)
		if n, _ := l.applied(); n != 2 || len(l.served) != 0 || len(l.moved) != 0 || !l.r.Status().Applied.IsZero() {
			t.Errorf("%d passes, served %v, moved %v", n, l.served, l.moved)
		}
		stop := l.run()
		defer stop()
		l.views.Set(l.view("b", "c"))
		if n, got := l.applied(); n != 3 || got != "10.5.1.0/24 <- b c" || len(l.served) != 1 {
			t.Errorf("pass %d: %s, served %v", n, got, l.served)
		}
	})
}

// TestResumeWaitsIfPacketsFlow: a datapath that works without this process is examined after a second, and may have
// more than the files.
func TestResumeWaitsIfPacketsFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t).built()
		l.r.Resume(t.Context(), l.view("b"), false)
		if n, _ := l.applied(); n != 0 {
			t.Errorf("%d passes at once", n)
		}
		time.Sleep(resumeAfter)
		if n, _ := l.applied(); n != 1 || !l.passes[0].state.Partial {
			t.Errorf("%d passes after %s", n, resumeAfter)
		}
		l.r.StopResumed()
	})
}

// TestResumeWithoutAnUnderlay: Resume returns although there is no underlay, and the datapath follows when it comes.
func TestResumeWithoutAnUnderlay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t).built()
		l.gone = errors.New("no device")
		view := *l.view("b")
		view.Own.MTU = 1400 // saved
		l.r.Resume(t.Context(), &view, true)
		l.check(health.Underlay, api.Critical, "waiting for the underlay: no device")
		if n, _ := l.applied(); n != 0 || fmt.Sprint(l.saved) != "[10.5.1.0/24 1400]" {
			t.Errorf("%d passes without an underlay, served %v", n, l.saved)
		}
		l.edit(func() { l.gone = nil })
		l.kick()
		time.Sleep(settle)
		if n, _ := l.applied(); n != 1 {
			t.Errorf("%d passes with an underlay", n)
		}
		l.r.StopResumed()
	})
}

// TestHandOver: an instance outlives its reconciler, with what it was given.
func TestHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t).built()
		stop := l.run()
		l.views.Set(l.view("b"))
		l.applied()
		stop()
		next := New(l.options, l.r.HandOver())
		if l.closed != 0 || l.r.Content() != nil || next.Content() == nil {
			t.Fatalf("closed %d times, content %v and %v", l.closed, l.r.Content(), next.Content())
		}
		l.r.Close()
		next.Drop()
		if next.Content() != nil || l.closed != 0 {
			t.Errorf("content %v, closed %d times", next.Content(), l.closed)
		}
		if err := next.Remove(t.Context(), state.Network{}, nil); err != nil {
			t.Fatal(err)
		}
		if n := len(l.passes); len(l.passes[n-1].state.Subnets) != 0 || l.closed != 1 {
			t.Errorf("removed with %+v, closed %d times", l.passes[n-1].state, l.closed)
		}
	})
}

// TestRetire: the datapath of another backend is removed, and of pools that do not overlap the present ones. What others
// have outside the present pools is removed, and the guard only if hosts are known to have had no subnet there.
func TestRetire(t *testing.T) {
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	d, c := carriage.Of(newLab(t).network().Carriage()), backend.Config{Pools: prefixes("10.5.0.0/16")}
	for _, tt := range []struct {
		name, kind string
		pools      []netip.Prefix
		used       []netip.Prefix
		removed    int
		replaced   []string
	}{
		{"the same", "recorder", c.Pools, nil, 0, nil},
		{"narrower", "recorder", prefixes("10.5.0.0/22"), nil, 0, nil},
		{"wider", "recorder", prefixes("10.4.0.0/15"), prefixes("10.5.1.0/24"), 0, []string{"[10.4.0.0/15] [10.5.0.0/16] true"}},
		{"wider, with a subnet outside", "recorder", prefixes("10.4.0.0/15"), prefixes("10.5.1.0/24", "10.4.1.0/24"), 0,
			[]string{"[10.4.0.0/15] [10.5.0.0/16] false"}},
		{"wider, with unknown subnets", "recorder", prefixes("10.4.0.0/15"), nil, 0, []string{"[10.4.0.0/15] [10.5.0.0/16] false"}},
		{"one more", "recorder", prefixes("10.5.0.0/16", "fd00:5::/48"), prefixes("10.5.1.0/24"), 0,
			[]string{"[10.5.0.0/16 fd00:5::/48] [10.5.0.0/16] true"}},
		{"others", "recorder", prefixes("10.6.0.0/16"), nil, 1, nil},
		{"another backend", "other", c.Pools, nil, 1, nil},
		{"a backend that this version does not know", "pigeon", prefixes("10.6.0.0/16"), nil, 0, nil},
		{"nothing", "", nil, nil, 0, nil},
	} {
		check := func(l *lab, closed int) {
			t.Helper()
			if len(l.passes) != tt.removed || l.closed != closed || !slices.Equal(l.replaced, tt.replaced) {
				t.Errorf("%d passes, closed %d times, replaced %q", len(l.passes), l.closed, l.replaced)
			}
		}
		var left state.Network
		if tt.kind != "" {
			b, err := registry.NewBackend(tt.kind, json.RawMessage(`{}`))
			if err != nil {
				t.Fatal(err)
			}
			left = state.Network{Carriage: registry.Carriage{Backend: b}, Pools: tt.pools}
		}
		t.Run("left: "+tt.name, func(t *testing.T) {
			l := newLab(t)
			l.r.o.RulePriority, l.r.used = 99, tt.used
			if err := l.r.Retire(t.Context(), d, c, left); err != nil {
				t.Fatal(err)
			}
			check(l, tt.removed)
			if want := fmt.Sprint(c.Pools, 99); len(tt.replaced) > 0 && !slices.Equal(l.rules, []string{want}) {
				t.Errorf("rules %q, want %s", l.rules, want)
			}
		})
		if _, ok := newLab(t).options.Host.Backends[tt.kind]; !ok {
			continue
		}
		t.Run("an instance: "+tt.name, func(t *testing.T) {
			l := newLab(t)
			l.r.used = tt.used
			built, config, err := l.r.Configure(left.Carriage, tt.pools)
			if err == nil {
				err = l.r.Build(built, config)
			}
			if err == nil {
				err = l.r.Retire(t.Context(), d, c, state.Network{})
			}
			if err != nil {
				t.Fatal(err)
			}
			check(l, 0)
		})
	}
}

// TestConfigureRefuses: a definition whose backend this version does not have cannot be used.
func TestConfigureRefuses(t *testing.T) {
	l := newLab(t)
	n := l.network()
	n.Backend.Type = "pigeon"
	if _, _, err := l.r.Configure(n.Carriage(), n.Plan.Prefixes()); err == nil || !strings.Contains(err.Error(), `no backend "pigeon"`) {
		t.Errorf("%v", err)
	}
}

// TestDefinitionOfTheView: the backends change with the definition of a view, before the view is applied, and not with a
// version of the same content. If they cannot, Run ends and nothing is applied.
func TestDefinitionOfTheView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		var calls []string
		impossible := errors.New("the port is taken")
		l.options.Change = func(_ context.Context, n registry.Network) error {
			l.edit(func() {
				calls = append(calls, fmt.Sprintf("after %d passes: %s%s", len(l.passes), n.Backend.Options(), n.Encryption))
			})
			d, c, err := l.r.Configure(n.Carriage(), n.Plan.Prefixes())
			if err == nil {
				err = l.r.Build(d, c)
			}
			if n.Encryption != "" {
				err = impossible
			}
			return err
		}
		l.r = New(l.options, nil)
		l.built()
		u, err := l.r.AwaitUnderlay(t.Context(), l.network())
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- l.r.Run(t.Context(), l.network(), l.views, u) }()
		view := func(change func(n *registry.Network)) {
			v := l.view("b")
			change(&v.Network)
			l.views.Set(v)
			synctest.Wait()
		}
		blue := func(n *registry.Network) {
			n.Backend, err = registry.NewBackend("recorder", json.RawMessage(`{"colour":"blue"}`))
		}
		view(func(*registry.Network) {})
		view(func(n *registry.Network) { n.ModifyIndex = 9 })
		view(blue)
		if l.closed != 1 {
			t.Errorf("%d backends were closed", l.closed)
		}
		view(func(n *registry.Network) { blue(n); n.Encryption = "required" })
		if err := <-ended; !errors.Is(err, impossible) {
			t.Errorf("Run returned %v", err)
		}
		if n, _ := l.applied(); n != 3 {
			t.Errorf("%d passes", n)
		}
		want := []string{`after 2 passes: {"colour":"blue"}`, `after 3 passes: {"colour":"blue"}required`}
		if diff := cmp.Diff(want, calls); diff != "" {
			t.Error(diff)
		}
	})
}

// TestShownDevice: a device is shown for a backend that has one, until the datapath is removed.
func TestShownDevice(t *testing.T) {
	for kind, want := range map[string]string{"recorder": "leno-n", "routes": ""} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t).built()
			l.r.o.Host.Backends["recorder"] = backend.Type{Name: kind, Device: kind == "recorder"}
			stop := l.run()
			l.views.Set(l.view("b"))
			l.applied()
			stop()
			if got := l.r.Status().Link; got != want {
				t.Errorf("%s: the device is %q, want %q", kind, got, want)
			}
			if err := l.r.Remove(t.Context(), state.Network{}, nil); err != nil || l.r.Status().Link != "" {
				t.Errorf("%s: after the removal the device is %q, %v", kind, l.r.Status().Link, err)
			}
		})
	}
}
