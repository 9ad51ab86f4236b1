package network

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry/memory"
)

// looksAt announces nine changes of the kernel, one after another, and waits each time until the underlay was selected
// again.
func (m *member) looksAt() {
	m.t.Helper()
	count := func() int {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.looks
	}
	seen := 0
	for range 9 {
		m.kick()
		m.more("looks at the underlay", seen, count)
		seen = count()
	}
}

// TestWaitingForTheUnderlayEndsWithAnEvent: each change of the kernel makes a host without an underlay look for one
// again. Nine pauses alone would take at least 12 s.
func TestWaitingForTheUnderlayEndsWithAnEvent(t *testing.T) {
	for name, prepare := range map[string]func(*member){
		"at the start": func(*member) {},
		"with a datapath to resume, without the store": func(a *member) {
			a.start().ready()
			a.remains = waiting(a.subnet())
			a.stop()
			a.registry.Set(errors.New("away"))
		},
	} {
		simulated(t, name, func(t *testing.T) {
			a := newMember(t, memory.New(), "a")
			prepare(a)
			a.move(a.addrs, errors.New("no interface fits"))
			a.start()
			a.check(health.Underlay, api.Critical, "waiting for the underlay: no interface fits")
			if report, _ := a.deps.Reports.Health.Report(); report.Ready || report.Status != api.Critical {
				t.Errorf("%+v", report)
			}
			if !a.run.UsesLink("veth17") {
				t.Error("a device that may become the underlay does not count")
			}
			began := time.Now()
			a.looksAt()
			a.move(a.addrs, nil)
			a.check(health.Underlay, api.Passing, "eth0")
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("took %s", took)
			}
			a.registry.Set(nil)
			a.ready()
			if a.run.UsesLink("veth17") {
				t.Error("any device counts, also with an underlay")
			}
		})
	}
}

// TestUnderlayGoneAndBackWhileTheDatapathFails: a host that lost its underlay looks for it again at each change, even
// while its datapath cannot be applied.
func TestUnderlayGoneAndBackWhileTheDatapathFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a").start()
		a.ready()
		a.kernel.setFail(errors.New("no such device"))
		a.move(nil, errors.New("no route"))
		a.check(health.Device, api.Critical, "no such device")
		began := time.Now()
		a.looksAt()
		a.kernel.setFail(nil)
		a.move(a.addrs, nil)
		a.check(health.Underlay, api.Passing, "eth0")
		a.check(health.Device, api.Passing)
		if took := time.Since(began); took > time.Minute {
			t.Errorf("took %s", took)
		}
	})
}

// TestTheWaysToPeersAreLookedAt: when the peers change, the host looks at the paths to their addresses, and applies the
// result together with the peers.
func TestTheWaysToPeersAreLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a := newMember(t, store, "a")
		a.narrow = map[netip.Addr]int{netip.MustParseAddr("192.0.2.98"): 1400}
		a.start().ready()
		b := newMember(t, store, "b").start()
		a.applies(a.with(b))
		passes := a.kernel.applied()
		if last := passes[len(passes)-1]; last.MTU != 1350 || last.Underlay.MTU != 1400 {
			t.Errorf("MTU %d of %d", last.MTU, last.Underlay.MTU)
		}
		agenttest.Eventually(t, func() error {
			if got := a.registry.Claimed().MTU; got != 1350 {
				return fmt.Errorf("claims an MTU of %d", got)
			}
			return nil
		})
		if !a.run.Reaches(netip.MustParsePrefix("192.0.2.96/28")) || a.run.Reaches(netip.MustParsePrefix("192.0.2.0/27")) {
			t.Error("routes to the peer do not count, or others do")
		}
		for link, want := range map[string]bool{"eth0": true, "eth1": false} {
			if got := a.run.UsesLink(link); got != want {
				t.Errorf("%s counts: %v", link, got)
			}
		}
	})
}

// TestNamedInterfacesCount: changes of the interfaces that the configuration names count, and others do not.
func TestNamedInterfacesCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a")
		a.config.Underlay.Interfaces = []string{"bond0", "eth0"}
		a.config.Underlay.InterfaceRegex = []string{"^wan"}
		a.start().ready()
		var got []string
		for _, link := range []string{"bond0", "wan7", "eth0", "eth1", "veth3"} {
			if a.run.UsesLink(link) {
				got = append(got, link)
			}
		}
		if strings.Join(got, " ") != "bond0 wan7 eth0" {
			t.Errorf("count: %v", got)
		}
	})
}
