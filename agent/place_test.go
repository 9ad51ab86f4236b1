package agent

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// looked waits until the underlay was selected more often than before, and returns how often it was.
func (h *host) looked(before int) int {
	h.t.Helper()
	var now int
	eventually(h.t, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if now = h.looks; now <= before {
			return errors.New("the underlay was not looked at again")
		}
		return nil
	})
	return now
}

// TestWaitingForTheUnderlayEndsWithAnEvent: each change of the kernel makes a host without an underlay look for one
// again. Nine pauses alone would take at least 12 s.
func TestWaitingForTheUnderlayEndsWithAnEvent(t *testing.T) {
	for name, prepare := range map[string]func(*host){
		"at the start": func(*host) {},
		"with a datapath to resume, without the store": func(a *host) {
			a.start().ready()
			a.remains = waiting(a.subnet())
			must(a.t, a.stop())
			a.registry.Set(errors.New("away"))
		},
	} {
		subtest(t, name, func(t *testing.T) {
			a := newHost(t, memory.New(), "a")
			prepare(a)
			a.move(a.place.Addrs, errors.New("no interface fits"))
			a.start()
			a.check(health.Underlay, api.Critical, "waiting for the underlay: no interface fits")
			if code, body := a.request("GET", "/readyz", ""); code != http.StatusServiceUnavailable || !strings.Contains(body, "no interface fits") {
				t.Errorf("readyz: %d %s", code, body)
			}
			if code, _ := a.health(); code != http.StatusServiceUnavailable {
				t.Errorf("healthz: %d", code)
			}
			if !a.agent.networks.usesLink("veth17") {
				t.Error("a device that may become the underlay does not count")
			}
			began, seen := time.Now(), 0
			for range 9 {
				a.kick()
				seen = a.looked(seen)
			}
			a.move(a.place.Addrs, nil)
			a.kick()
			a.check(health.Underlay, api.Passing, "eth0")
			if took := time.Since(began); took > time.Minute {
				t.Errorf("took %s", took)
			}
			a.registry.Set(nil)
			a.ready()
			if code, _ := a.request("GET", "/readyz", ""); code != http.StatusOK {
				t.Errorf("readyz of a host that is ready: %d", code)
			}
			if a.agent.networks.usesLink("veth17") {
				t.Error("any device counts, also with an underlay")
			}
		})
	}
}

// TestUnderlayGoneAndBackWhileTheDatapathFails: a host that lost its underlay looks for it again at each change, even
// while its datapath cannot be applied.
func TestUnderlayGoneAndBackWhileTheDatapathFails(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		a.ready()
		addrs := a.place.Addrs
		a.recorder.setFail(errors.New("no such device"))
		a.move(nil, errors.New("no route"))
		a.kick()
		a.check(health.Device, api.Critical, "no such device")
		began, seen := time.Now(), 0
		for range 9 {
			a.kick()
			seen = a.looked(seen)
		}
		a.recorder.setFail(nil)
		a.move(addrs, nil)
		a.kick()
		a.check(health.Underlay, api.Passing, "eth0")
		a.check(health.Device, api.Passing)
		if took := time.Since(began); took > time.Minute {
			t.Errorf("took %s", took)
		}
	})
}

// TestTheWaysToPeersAreLookedAt: when the peers change, the agent looks at the paths to their addresses, and applies
// the result together with the peers.
func TestTheWaysToPeersAreLookedAt(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a := newHost(t, store, "a")
		a.narrow = map[netip.Addr]int{netip.MustParseAddr("192.0.2.98"): 1400}
		a.start()
		a.ready()
		b := newHost(t, store, "b").start()
		a.applies(fmt.Sprintf("%s <- b@%s", a.subnet(), b.subnet()))
		a.recorder.mu.Lock()
		states := a.recorder.states
		a.recorder.mu.Unlock()
		if last := states[len(states)-1]; last.MTU != 1350 || last.Underlay.MTU != 1400 {
			t.Errorf("MTU %d of %d", last.MTU, last.Underlay.MTU)
		}
		eventually(t, func() error {
			if got := a.registry.Claimed().MTU; got != 1350 {
				return fmt.Errorf("claims an MTU of %d", got)
			}
			return nil
		})
		if !a.agent.networks.reaches(netip.MustParsePrefix("192.0.2.96/28")) || a.agent.networks.reaches(netip.MustParsePrefix("192.0.2.0/27")) {
			t.Error("routes to the peer do not count, or others do")
		}
		for link, want := range map[string]bool{"eth0": true, "eth1": false} {
			if got := a.agent.networks.usesLink(link); got != want {
				t.Errorf("%s counts: %v", link, got)
			}
		}
	})
}

func TestNamedInterfacesCount(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.config.Underlay.Interfaces = []string{"bond0", "eth0"}
		a.config.Underlay.InterfaceRegex = []string{"^wan"}
		a.start()
		a.ready()
		var got []string
		for _, link := range []string{"bond0", "wan7", "eth0", "eth1", "veth3"} {
			if a.agent.networks.usesLink(link) {
				got = append(got, link)
			}
		}
		if strings.Join(got, " ") != "bond0 wan7 eth0" {
			t.Errorf("count: %v", got)
		}
	})
}
