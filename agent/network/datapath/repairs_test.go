package datapath

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/flapping"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/registry"
)

// TestFlappingEnds: what another program changed again and again is forgotten when it stops.
func TestFlappingEnds(t *testing.T) {
	r, now := newLab(t), time.Now()
	change := []backend.Repair{{Part: backend.Routes, Fault: "route was missing", Detail: "10.5.2.0/24"}}
	for range 10 {
		r.r.checks.record(now, change)
		now = now.Add(time.Second)
	}
	r.r.checks.setPeers(backend.Report{Peers: 3}, true)
	r.check(health.Routes, api.Warning, "3 peers in place", "is being changed by another program again and again")
	if pause := r.r.checks.pauseAfterPass(settle, true); pause != flapping.LongestPause {
		t.Errorf("a pause of %s while another program changes it", pause)
	}
	r.r.checks.record(now.Add(flapping.EndsAfter+time.Second), nil)
	r.r.checks.setPeers(backend.Report{Peers: 3}, true)
	r.check(health.Routes, api.Passing, "3 peers")
	if q := r.r.checks.flapping.Describe(); q != "" {
		t.Errorf("two minutes later: %s", q)
	}
}

func TestPauseAfterPass(t *testing.T) {
	r := newLab(t).r
	pause := r.checks.pauseAfterPass(settle, true)
	if pause != 2*settle {
		t.Errorf("%s after one repair", pause)
	}
	for range 10 {
		pause = r.checks.pauseAfterPass(pause, true)
	}
	if pause != flapping.LongestPause {
		t.Errorf("%s after many", pause)
	}
	if pause = r.checks.pauseAfterPass(pause, false); pause != settle {
		t.Errorf("%s after a pass that repaired nothing", pause)
	}
}

// TestForwardingInHealth: health names a switch that is off and says what to do about it. A switch that the agent
// turned on is reported as a repair, except the first time.
func TestForwardingInHealth(t *testing.T) {
	l := newLab(t)
	s := backend.State{Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}, Underlay: backend.Underlay{Interface: "eth0"}}
	n := registry.Network{Backend: registry.Backend{Type: "vxlan", Object: json.RawMessage(`{"type":"vxlan","direct_routing":true}`)}}
	var found forwarding.State
	var fails error
	l.forward = func(links []string, set bool) (forwarding.State, error) {
		if fmt.Sprint(links) != "[leno-n eth0]" || set != l.r.checks.forward {
			t.Errorf("asked for %v, %t", links, set)
		}
		return found, fails
	}
	for _, tt := range []struct {
		name     string
		forward  bool
		found    forwarding.State
		fails    error
		status   string
		words    []string
		repaired string
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
		l.r.checks.forward, found, fails = tt.forward, tt.found, tt.fails
		var report backend.Report
		if l.r.checks.afterPass(n, s, true, &report, nil); fmt.Sprint(report.Repaired) != tt.repaired {
			t.Errorf("%s: repaired %s, want %s", tt.name, report.Repaired, tt.repaired)
		}
		l.check(health.Forwarding, tt.status, tt.words...)
	}
	n.Backend = registry.Backend{Type: "alloc", Object: json.RawMessage(`{"type":"alloc"}`)}
	l.r.checks.afterPass(n, s, true, &backend.Report{}, nil)
	all, _ := l.board.Report()
	if slices.ContainsFunc(all.Networks[0].Checks, func(c api.Check) bool { return c.Name == health.Forwarding }) {
		t.Error("a network without a datapath has a check of forwarding")
	}
}

// TestForwardingOfTheBridgeInHealth: health names the switch of a bridge of containers that another program turned off,
// and leaves it off: the bridge is that program's.
func TestForwardingOfTheBridgeInHealth(t *testing.T) {
	ns := nstest.New(t)
	ns.Sh(`ip link add leno-n type bridge; ip link add docker0 type bridge; ip addr add 10.5.1.1/24 dev docker0
sysctl -w net.ipv4.ip_forward=1`)
	l := newLab(t)
	l.options.Host.EnsureForwarding = new(forwarding.Switch).Ensure
	s := backend.State{Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}}
	pass := func() {
		ns.Do(func() { l.r.checks.afterPass(l.network(), s, true, &backend.Report{}, nil) })
	}
	ns.Sh("sysctl -w net.ipv4.conf.docker0.forwarding=0")
	pass()
	l.check(health.Forwarding, api.Warning, "net.ipv4.conf.docker0.forwarding is 0: containers cannot reach other hosts")
	if got := ns.Sh("sysctl -n net.ipv4.conf.docker0.forwarding"); got != "0\n" {
		t.Errorf("forwarding of the bridge is %q afterwards", got)
	}
	ns.Sh("sysctl -w net.ipv4.conf.docker0.forwarding=1")
	pass()
	l.check(health.Forwarding, api.Passing)
}

// TestForwardingOfDevices: the agent asks only for the switches of the devices through which packets come in. Those of
// other devices are the operator's.
func TestForwardingOfDevices(t *testing.T) {
	s := backend.State{Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.1.0/24")}, Underlay: backend.Underlay{Interface: "eth0"}}
	for kind, want := range map[string]string{"vxlan": "[leno-n]", "udp": "[leno-n]", "host-gw": "[eth0]"} {
		l := newLab(t)
		var asked []string
		l.forward = func(links []string, _ bool) (forwarding.State, error) {
			asked = links
			return forwarding.State{}, nil
		}
		l.r.checks.ensureForwarding(registry.Network{Backend: agenttest.Backend(t, kind, "")}, s)
		if fmt.Sprint(asked) != want {
			t.Errorf("%s: %v, want %s", kind, asked, want)
		}
	}
}

func TestSkippedPeersAreAWarning(t *testing.T) {
	l := newLab(t)
	l.r.checks.setPeers(backend.Report{Peers: 3, Skipped: []backend.Skip{{Node: "b", Reason: "no key"}}}, true)
	l.check(health.Routes, api.Warning, "3 peers", "1 skipped", `"b"`, "no key")
	l.r.checks.setPeers(backend.Report{Peers: 4}, true)
	l.check(health.Routes, api.Passing, "4 peers")
}
