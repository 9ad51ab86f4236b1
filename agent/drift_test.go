package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/flapping"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestQuarrel checks that a program that undoes repairs is named in health and slows the agent down, and has no other
// effect.
func TestQuarrel(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	r := mustRunner(t, a)
	a.recorder.setReport(backend.Report{Writes: 1, Healed: []backend.Repair{{Part: backend.Device, Fault: "device had another MTU", Detail: "1400 instead of 1450"}}})
	a.recorder.hook(func(backend.State) { a.kick() })
	a.kick()
	a.check(health.Device, api.Warning, "is being changed by another program again and again", "device had another MTU: 1400 instead of 1450 (", "healed each time")
	tries := a.recorder.tries()
	a.more("applies", len(tries)+1, func() int { return len(a.recorder.tries()) })
	tries = a.recorder.tries()
	last := tries[len(tries)-1].Sub(tries[len(tries)-2])
	if last < flapping.LongestPause || last > flapping.LongestPause+time.Second {
		t.Errorf("a pass after %s, want one after %s", last, flapping.LongestPause)
	}
	a.recorder.hook(nil)
	a.recorder.setReport(backend.Report{})
	must(t, a.stop())
	r.healed(time.Now().Add(flapping.EndsAfter+time.Second), nil)
	if q := r.flapping.Describe(); q != "" {
		t.Errorf("two minutes later: %s", q)
	}
	r.checkPeers(backend.Report{Peers: 3})
	a.check(health.Routes, api.Passing, "3 peers")
}

func TestCalmer(t *testing.T) {
	r := newHost(t, memory.New(), "a").part()
	calm := r.calmer(settle, true)
	if calm != 2*settle {
		t.Errorf("%s after one repair", calm)
	}
	for range 10 {
		calm = r.calmer(calm, true)
	}
	if calm != flapping.LongestPause {
		t.Errorf("%s after many", calm)
	}
	if calm = r.calmer(calm, false); calm != settle {
		t.Errorf("%s after a pass that healed nothing", calm)
	}
}

// TestForwardingInHealth: health names a switch that is off and says what to do about it. A switch that the agent
// turned on is reported as a repair, except the first time.
func TestForwardingInHealth(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	s := backend.State{Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}, Underlay: backend.Underlay{Interface: "eth0"}}
	n := registry.Network{Backend: registry.Backend{Type: "vxlan", Object: json.RawMessage(`{"direct_routing":true}`)}}
	var found forwarding.State
	var fails error
	r := h.part()
	r.env.ensureForwarding = func(_ netip.Addr, links []string, set bool) (forwarding.State, error) {
		if fmt.Sprint(links) != "[leno-n eth0]" || set != r.local.Forward {
			t.Errorf("asked for %v, %t", links, set)
		}
		return found, fails
	}
	for _, tt := range []struct {
		name    string
		forward bool
		found   forwarding.State
		fails   error
		status  string
		words   []string
		healed  string
	}{
		{"switched on at the start", true, forwarding.State{Set: []string{"net.ipv4.ip_forward"}}, nil, api.Passing, nil, "[]"},
		{"on", true, forwarding.State{}, nil, api.Passing, nil, "[]"},
		{"another program switched it off", true, forwarding.State{Set: []string{"net.ipv4.ip_forward"}}, nil, api.Passing, nil, "[forwarding was off: net.ipv4.ip_forward]"},
		{"not ours to switch", false, forwarding.State{Off: []string{"net.ipv4.ip_forward"}}, nil, api.Warning,
			[]string{"net.ipv4.ip_forward is 0", "forward = false"}, "[]"},
		{"it would cost routes", true, forwarding.State{Off: []string{"net.ipv6.conf.all.forwarding"}, Advertised: []string{"eth0"}}, nil, api.Warning,
			[]string{"net.ipv6.conf.all.forwarding is 0", "on eth0", "set net.ipv6.conf.eth0.accept_ra to 2"}, "[]"},
		{"it would cost routes, and is not ours to switch", false, forwarding.State{Off: []string{"net.ipv6.conf.all.forwarding"}, Advertised: []string{"eth0"}}, nil, api.Warning,
			[]string{"net.ipv6.conf.all.forwarding is 0", "set net.ipv6.conf.eth0.accept_ra to 2, and only then", "forward = false"}, "[]"},
		{"switched on after that", true, forwarding.State{Set: []string{"net.ipv6.conf.all.forwarding"}}, nil, api.Passing, nil, "[]"},
		{"it has cost routes", true, forwarding.State{Advertised: []string{"eth0"}}, nil, api.Warning,
			[]string{"ignores the routers that advertise on eth0", "set net.ipv6.conf.eth0.accept_ra to 2"}, "[]"},
		{"another program switched it off later", true, forwarding.State{Set: []string{"net.ipv6.conf.all.forwarding"}}, nil, api.Passing, nil, "[forwarding was off: net.ipv6.conf.all.forwarding]"},
		{"no rights", true, forwarding.State{}, errors.New("read-only file system"), api.Warning, []string{"read-only"}, "[]"},
	} {
		r.local.Forward, found, fails = tt.forward, tt.found, tt.fails
		var report backend.Report
		if r.checkDatapath(n, s, &report, nil); fmt.Sprint(report.Healed) != tt.healed {
			t.Errorf("%s: healed %s, want %s", tt.name, report.Healed, tt.healed)
		}
		h.check(health.Forwarding, tt.status, tt.words...)
	}
}

// TestForwardingOfDevices: the agent asks only for the switches of the devices through which packets come in. Those of
// other devices are the operator's.
func TestForwardingOfDevices(t *testing.T) {
	s := backend.State{Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}, Underlay: backend.Underlay{Interface: "eth0"}}
	for kind, want := range map[string]string{"vxlan": "[leno-n]", "udp": "[leno-n]", "host-gw": "[eth0]"} {
		r := newHost(t, memory.New(), "a").part()
		var asked []string
		r.env.ensureForwarding = func(_ netip.Addr, links []string, _ bool) (forwarding.State, error) {
			asked = links
			return forwarding.State{}, nil
		}
		r.forwarding(registry.Network{Backend: registry.Backend{Type: kind, Object: json.RawMessage(`{}`)}}, s)
		if fmt.Sprint(asked) != want {
			t.Errorf("%s: %v, want %s", kind, asked, want)
		}
	}
}

// TestWatchIsTakenUpAgain checks that a watch that failed starts again, and that the agent looks for changes made
// before that.
func TestWatchIsTakenUpAgain(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	a := h.build()
	opened, failing := 0, errors.New("no buffer space available")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a.o.WatchKernel = func(ctx context.Context, _ func(string) bool, _ func(netip.Prefix) bool, changed func()) error {
		opened++
		changed() // as the real watch does
		if opened < 3 {
			return failing
		}
		cancel()
		return nil
	}
	_, _, first := a.env.kernel.Get()
	if err := a.watchKernel(ctx); !errors.Is(err, context.Canceled) || opened != 3 {
		t.Errorf("%v after %d watches", err, opened)
	}
	select {
	case <-first:
	default:
		t.Error("no watcher was woken")
	}
}
