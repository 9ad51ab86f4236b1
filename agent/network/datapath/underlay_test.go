package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/api"
)

func TestMTUReason(t *testing.T) {
	for _, tt := range []struct {
		state UnderlayState
		want  string
	}{
		{UnderlayState{Choice: underlay.Choice{MTU: 1500, MTUFrom: "eth0"}, MTU: 1450, overhead: "50 for VXLAN over IPv4"},
			"1450 = 1500 of eth0 - 50 for VXLAN over IPv4"},
		{UnderlayState{Choice: underlay.Choice{MTU: 1500, MTUFrom: "eth0"}, MTU: 1500}, "1500 of eth0"},
	} {
		if got := tt.state.mtuReason(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

// TestChangesOfTheUnderlayAreLogged: the log tells a change of the underlay from one that only concerns the lease, as each
// step of a switch makes. The lease follows both.
func TestChangesOfTheUnderlayAreLogged(t *testing.T) {
	attributes := func(l *lab) { l.attributes = `{"next":{"type":"other"}}` }
	lose := func(l *lab) { l.gone = errors.New("eth0 has no address") }
	for _, tt := range []struct {
		name   string
		change []func(l *lab) // one after another
		want   []string       // log lines
		moved  string
	}{
		{"nothing", nil, nil, "[]"},
		{"attributes", []func(*lab){attributes}, []string{"[DEBUG] attributes of the lease changed: backend=recorder"}, "[192.0.2.1 false]"},
		{"the overhead", []func(*lab){func(l *lab) { l.overhead = 80 }},
			[]string{`[INFO]  MTU of the overlay changed: mtu=1420 because="1420 = 1500 of eth0 - 80 for a test"`}, "[192.0.2.1 false]"},
		{"the MTU of the underlay", []func(*lab){func(l *lab) { l.choice.MTU = 1400 }},
			[]string{`[INFO]  underlay changed: link=eth0 addresses=[192.0.2.1] mtu=1400 devices=eth0 because=test`}, "[192.0.2.1 false]"},
		{"the address", []func(*lab){func(l *lab) { l.choice.Addrs = []netip.Addr{netip.MustParseAddr("192.0.2.9")} }},
			[]string{`[INFO]  underlay changed: link=eth0 addresses=[192.0.2.9] mtu=1500 devices=eth0 because=test`}, "[192.0.2.9 true]"},
		{"the address and the attributes", []func(*lab){func(l *lab) {
			l.choice.Addrs = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
			attributes(l)
		}}, []string{`[INFO]  underlay changed: link=eth0 addresses=[192.0.2.9] mtu=1500 devices=eth0 because=test`}, "[192.0.2.9 true]"},
		{"the attributes while there is no underlay", []func(*lab){lose, func(l *lab) {
			l.gone = nil
			attributes(l)
		}}, []string{
			"[INFO]  underlay can be used again: link=eth0",
			"[DEBUG] attributes of the lease changed: backend=recorder",
		}, "[192.0.2.1 false]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t).built()
				stop := l.run()
				l.views.Set(l.view("b"))
				l.applied()
				l.log.Reset()
				for _, change := range append(tt.change, func(*lab) {}) {
					l.edit(func() { change(l) })
					l.kick()
					time.Sleep(2 * settle)
				}
				stop()
				var got []string
				for line := range strings.Lines(l.log.String()) {
					_, line, _ = strings.Cut(strings.TrimSpace(line), " ") // the time
					if strings.Contains(line, "changed") || strings.Contains(line, "again") {
						got = append(got, line)
					}
				}
				if fmt.Sprint(got) != fmt.Sprint(tt.want) {
					t.Errorf("logged %q, want %q", got, tt.want)
				}
				if fmt.Sprint(l.moved) != tt.moved {
					t.Errorf("moved %v, want %s", l.moved, tt.moved)
				}
			})
		})
	}
}

// TestUnderlayAtStart: a host without an underlay block that starts while the default route has moved stays where an
// earlier process was and the other hosts are reached. If it does not, an event and a warning name both underlays.
func TestUnderlayAtStart(t *testing.T) {
	previous := Previous{
		Interface: "eth0",
		Addrs:     []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Peers:     []netip.Addr{netip.MustParseAddr("192.0.2.2")},
	}
	const moved = "underlay moved from eth0 [192.0.2.1] to wwan0 [203.0.113.7]"
	for _, tt := range []struct {
		name     string
		previous Previous
		change   func(l *lab, was *underlay.Choice)
		settings config.Underlay
		link     string
		events   []string
	}{
		{name: "the peers are reached", previous: previous, link: "eth0"},
		{name: "they are not reached", previous: previous, change: func(_ *lab, was *underlay.Choice) { was.ToPeers = false },
			link: "wwan0", events: []string{moved}},
		{name: "another address", previous: previous, link: "wwan0", events: []string{moved},
			change: func(_ *lab, was *underlay.Choice) { was.Addrs = []netip.Addr{netip.MustParseAddr("198.51.100.7")} }},
		{name: "the device is down", previous: previous, link: "wwan0", events: []string{moved},
			change: func(_ *lab, was *underlay.Choice) { was.Down = true }},
		{name: "no default route", previous: previous, link: "eth0",
			change: func(l *lab, _ *underlay.Choice) { l.gone = underlay.ErrNone }},
		{name: "a bridge took the address over", previous: previous, link: "br0", change: func(l *lab, was *underlay.Choice) {
			l.choice, *was = *was, underlay.Choice{}
			l.choice.Interface, l.choice.Index = "br0", 4
		}},
		{name: "settings", previous: previous, settings: config.Underlay{InterfaceRegex: []string{"wwan"}}, link: "wwan0"},
		{name: "the first start", link: "wwan0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				l.named = l.choice
				l.named.ToPeers = true
				l.choice.Interface, l.choice.Index, l.choice.Addrs = "wwan0", 3, []netip.Addr{netip.MustParseAddr("203.0.113.7")}
				if tt.change != nil {
					tt.change(l, &l.named)
				}
				l.options.Underlay, l.options.Previous = tt.settings, func() Previous { return tt.previous }
				l.r = New(l.options, nil)
				p, err := l.built().r.AwaitUnderlay(t.Context(), l.network())
				if err != nil {
					t.Fatal(err)
				}
				if p.Choice.Interface != tt.link {
					t.Errorf("the underlay is %s, want %s", p.Choice.Interface, tt.link)
				}
				if diff := cmp.Diff(tt.events, l.recorded()); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				if tt.events == nil {
					l.check(health.Underlay, api.Passing, tt.link)
				} else {
					l.check(health.Underlay, api.Warning, "the host has left eth0 [192.0.2.1]")
				}
			})
		})
	}
}
