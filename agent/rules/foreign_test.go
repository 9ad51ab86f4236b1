package rules

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/health"
)

// others are the rules of other programs on a host of a test.
type others struct {
	mu    sync.Mutex
	found []foreign.Obstacle
	err   error
	takes time.Duration
	looks int
}

func (o *others) find(ctx context.Context, _ []foreign.OverlayPath) ([]foreign.Obstacle, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.looks++
	if o.takes > 0 {
		o.mu.Unlock()
		select {
		case <-time.After(o.takes):
		case <-ctx.Done():
		}
		o.mu.Lock()
	}
	return o.found, o.err
}

func (o *others) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

func (o *others) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.looks
}

func obstacle(network string, i int) foreign.Obstacle {
	return foreign.Obstacle{Network: network, Where: "iptables table raw chain PREROUTING", Rule: fmt.Sprintf("-d 10.5.34.%d/32 -j DROP", i),
		Effect: "drops packets", Advice: "start dockerd otherwise"}
}

func pathOf(network string) foreign.OverlayPath {
	return foreign.OverlayPath{Network: firewall.Network{Name: network}}
}

// monitoring runs a test in a synctest bubble with a ForeignMonitor that runs.
func monitoring(t *testing.T, log hclog.Logger, o *others, test func(t *testing.T, m *ForeignMonitor, board *health.Board)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		board := health.New(time.Now, nil)
		m := NewForeignMonitor(log, o.find, board)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		defer func() { cancel(); <-done }()
		test(t, m, board)
	})
}

// reported is enough time for a change to be looked at twice and reported.
const reported = 10 * time.Second

// TestPartialRules checks that an administrator's rule against some packets is no warning, and hides no other one.
func TestPartialRules(t *testing.T) {
	partial := obstacle("a", 7)
	partial.Partial = true
	o := &others{found: []foreign.Obstacle{partial}}
	monitoring(t, hclog.NewNullLogger(), o, func(t *testing.T, m *ForeignMonitor, board *health.Board) {
		m.Put(pathOf("a"))
		pass(reported)
		if got := check(board, "a", health.ForeignRules); !strings.HasPrefix(got, "passing: ") || strings.Contains(got, partial.Rule) {
			t.Errorf("check %q", got)
		}
		o.set(func() { o.found = []foreign.Obstacle{partial, obstacle("a", 8)} })
		m.Changed()
		pass(reported)
		if got := check(board, "a", health.ForeignRules); !strings.HasPrefix(got, "warning: ") || strings.Contains(got, partial.Rule) {
			t.Errorf("check %q", got)
		}
		if !o.found[0].Partial {
			t.Error("what the finder returned was changed")
		}
	})
}

func TestForeignMonitor(t *testing.T) {
	o := &others{}
	monitoring(t, hclog.NewNullLogger(), o, func(t *testing.T, m *ForeignMonitor, board *health.Board) {
		verdict := func(network string) string { return check(board, network, health.ForeignRules) }
		passes := func(network string) bool { return strings.HasPrefix(verdict(network), "passing: ") }
		expect := func(what string, ok bool) {
			t.Helper()
			if !ok {
				t.Fatalf("%s: a: %q, b: %q", what, verdict("a"), verdict("b"))
			}
		}
		pass(time.Hour)
		expect("no network", o.count() == 0)

		m.Put(foreign.OverlayPath{Network: firewall.Network{Name: "a"}, Links: []string{"leno-a"}})
		pass(reported)
		expect("nothing is in the way", passes("a"))

		// A rule is reported to the network that it harms, and to no other.
		m.Put(pathOf("b"))
		o.set(func() { o.found = []foreign.Obstacle{obstacle("b", 2)} })
		m.Changed()
		pass(reported)
		expect("a rule is in b's way", passes("a") &&
			verdict("b") == `warning: iptables table raw chain PREROUTING: "-d 10.5.34.2/32 -j DROP": drops packets; start dockerd otherwise`)

		// Many are not all named.
		o.set(func() {
			for i := range 20 {
				o.found = append(o.found, obstacle("b", i))
			}
		})
		m.Changed()
		pass(reported)
		expect("many", strings.Count(verdict("b"), "DROP") == foreignLimit && strings.HasSuffix(verdict("b"), " …"))

		// What could not be read does not take back what could.
		o.set(func() { o.found, o.err = []foreign.Obstacle{obstacle("a", 3)}, errors.New("nft: no rights") })
		m.Changed()
		pass(reported)
		expect("a part", strings.HasPrefix(verdict("a"), "warning: ") && passes("b"))

		// A network that was dropped has no check any more, also not by a look that had begun.
		o.set(func() { o.takes = time.Second })
		m.Changed()
		pass(settle + time.Second/2)
		looks := o.count()
		m.Drop("a")
		board.Reset("a")
		pass(reported)
		expect("a network that was dropped during a look", looks > 0 && verdict("a") == "" && passes("b"))
		m.Changed()
		pass(reported)
		expect("a network that was dropped", o.count() > looks && verdict("a") == "" && passes("b"))

		// An unchanged network asks for no look.
		looks = o.count()
		m.Put(pathOf("b"))
		if len(m.changed) > 0 {
			t.Error("an unchanged network is looked at again")
		}
		pass(reported)
		expect("unchanged", o.count() == looks)

		// Rules that cannot be read are read again after a minute.
		pass(10 * time.Minute)
		expect("a look a minute", o.count()-looks >= 8 && o.count()-looks <= 11)
	})
}

// TestUnannouncedRule checks that a rule whose change nothing announces, such as the first one in iptables-legacy, is
// reported within two intervals, and so is its end.
func TestUnannouncedRule(t *testing.T) {
	o := &others{}
	monitoring(t, hclog.NewNullLogger(), o, func(t *testing.T, m *ForeignMonitor, board *health.Board) {
		m.Put(pathOf("a"))
		pass(90 * time.Second)
		for _, step := range []struct {
			found []foreign.Obstacle
			want  string
		}{{[]foreign.Obstacle{obstacle("a", 2)}, "warning: "}, {nil, "passing: "}} {
			o.set(func() { o.found = step.found })
			pass(10 * time.Second)
			if got := check(board, "a", health.ForeignRules); !strings.HasPrefix(got, step.want) {
				t.Errorf("check %q, want %s", got, step.want)
			}
		}
	})
}

// A rule that is gone at the next look, as those that Docker puts before leno's when it starts, is not reported.
func TestForeignRuleForAMoment(t *testing.T) {
	var lines strings.Builder
	o := &others{found: []foreign.Obstacle{obstacle("a", 2)}}
	log := hclog.New(&hclog.LoggerOptions{Output: &lines, Level: hclog.Info})
	monitoring(t, log, o, func(t *testing.T, m *ForeignMonitor, board *health.Board) {
		m.Put(pathOf("a"))
		pass(time.Second)
		if got := check(board, "a", health.ForeignRules); o.count() != 1 || !strings.HasPrefix(got, "passing: ") {
			t.Errorf("%d looks, check %q", o.count(), got)
		}
		o.set(func() { o.found = nil })
		pass(reported)
		if got := check(board, "a", health.ForeignRules); o.count() < 2 || !strings.HasPrefix(got, "passing: ") || lines.String() != "" {
			t.Errorf("%d looks, check %q, logged was\n%s", o.count(), got, lines.String())
		}
	})
}

// The log says once that rules are in the way, and once that they are not any more.
func TestForeignRulesLogged(t *testing.T) {
	var lines strings.Builder
	o := &others{found: []foreign.Obstacle{obstacle("a", 2)}}
	log := hclog.New(&hclog.LoggerOptions{Output: &lines, Level: hclog.Info})
	monitoring(t, log, o, func(t *testing.T, m *ForeignMonitor, _ *health.Board) {
		m.Put(pathOf("a"))
		for range 3 {
			m.Changed()
			pass(reported)
		}
		o.set(func() { o.found = nil })
		for range 3 {
			m.Changed()
			pass(reported)
		}
		if text := lines.String(); strings.Count(text, "[WARN]") != 1 || strings.Count(text, "[INFO]") != 1 || strings.Count(text, "\n") != 2 {
			t.Errorf("logged was\n%s", text)
		}
	})
}

// However many rules there are, looking at them takes only a part of the time.
func TestForeignPause(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		10 * time.Millisecond: foreignPause, time.Second: 10 * time.Second, time.Hour: foreignMaxPause,
	} {
		if got := pauseAfter(took); got != want {
			t.Errorf("after %s: %s, want %s", took, got, want)
		}
	}
	o := &others{takes: time.Second}
	monitoring(t, hclog.NewNullLogger(), o, func(t *testing.T, m *ForeignMonitor, _ *health.Board) {
		m.Put(pathOf("a"))
		for range 110 {
			m.Changed()
			pass(time.Second)
		}
		if got := o.count(); got < 9 || got > 11 {
			t.Errorf("%d looks of a second each in 110 s of changes", got)
		}
	})
}
