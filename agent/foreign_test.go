package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// others are the rules of other programs on a host of a test.
type others struct {
	mu    sync.Mutex
	found []foreign.Obstacle
	err   error
	looks int
	seen  []foreign.OverlayPath
}

func (o *others) find(_ context.Context, c []foreign.OverlayPath) ([]foreign.Obstacle, bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.looks++
	o.seen = c
	return o.found, false, o.err
}

func (o *others) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

func obstacle(network string, i int) foreign.Obstacle {
	return foreign.Obstacle{Network: network, Where: "iptables table raw chain PREROUTING", Rule: fmt.Sprintf("-d 10.5.34.%d/32 -j DROP", i),
		Effect: "drops packets", Advice: "start dockerd otherwise"}
}

// TestPartialRulesAreNoMatterOfHealth: an administrator's rule against some packets does
// not make a host unwell, nor does it hide another one.
func TestPartialRulesAreNoMatterOfHealth(t *testing.T) {
	o, h := &others{}, health.New(time.Now, nil)
	f := newForeignRules(hclog.NewNullLogger(), o.find, h)
	f.put(foreign.OverlayPath{Network: firewall.Network{Name: "a"}})
	check := func(status string, lacks string) {
		t.Helper()
		for range 2 { // what is new is looked at twice
			f.look(t.Context())
		}
		r, _ := h.Report()
		if c := r.Networks[0].Checks[0]; c.Name != health.ForeignRules || c.Status != status || strings.Contains(c.Reason, lacks) {
			t.Errorf("%+v, want %s without %q", c, status, lacks)
		}
	}
	partial := obstacle("a", 7)
	partial.Partial = true
	o.found = []foreign.Obstacle{partial}
	check(api.Passing, partial.Rule)
	o.found = []foreign.Obstacle{partial, obstacle("a", 8)}
	check(api.Warning, partial.Rule)
	if !o.found[0].Partial {
		t.Error("what the finder returned was changed")
	}
}

func TestForeignRules(t *testing.T) {
	o, h := &others{}, health.New(time.Now, nil)
	f := newForeignRules(hclog.NewNullLogger(), o.find, h)
	f.span = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.run(ctx) }()
	defer func() { cancel(); <-done }()

	verdict := func(network string) string {
		for _, n := range func() []api.NetworkHealth { r, _ := h.Report(); return r.Networks }() {
			for _, c := range n.Checks {
				if n.Network == network && c.Name == health.ForeignRules {
					return c.Status + ": " + c.Reason
				}
			}
		}
		return ""
	}
	await := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: a: %q, b: %q", what, verdict("a"), verdict("b"))
			}
		}
	}
	passing := func(network string) func() bool {
		return func() bool { return strings.HasPrefix(verdict(network), "passing: ") }
	}

	c := foreign.OverlayPath{Network: firewall.Network{Name: "a"}, Links: []string{"leno-a"}}
	f.put(c)
	await("nothing is in the way", passing("a"))

	// Somebody's rule is told of to the network that it hurts, and no other.
	f.put(foreign.OverlayPath{Network: firewall.Network{Name: "b"}})
	o.set(func() { o.found = []foreign.Obstacle{obstacle("b", 2)} })
	f.stir()
	await("a rule is in b's way", func() bool {
		return verdict("b") == `warning: iptables table raw chain PREROUTING: "-d 10.5.34.2/32 -j DROP": drops packets; start dockerd otherwise` && passing("a")()
	})

	// Many are not all named.
	o.set(func() {
		for i := range 20 {
			o.found = append(o.found, obstacle("b", i))
		}
	})
	f.stir()
	await("many", func() bool {
		return strings.Count(verdict("b"), "DROP") == foreignMost && strings.HasSuffix(verdict("b"), " …")
	})

	// What could not be read does not take back what could.
	o.set(func() { o.found, o.err = []foreign.Obstacle{obstacle("a", 3)}, errors.New("nft: no rights") })
	f.stir()
	await("a part", func() bool { return strings.HasPrefix(verdict("a"), "warning: ") && passing("b")() })

	// A network that was left has no check any more, also not by a look under way.
	f.drop("a")
	h.Reset("a")
	before := func() (n int) { o.set(func() { n = o.looks }); return n }
	n := before()
	f.stir()
	await("another look", func() bool { return before() > n && passing("b")() })
	if got := verdict("a"); got != "" {
		t.Errorf("a network that was left: %s", got)
	}

	// What is as before asks for no look.
	n = before()
	f.stir()
	await("the last look", func() bool { return before() > n })
	f.put(foreign.OverlayPath{Network: firewall.Network{Name: "b"}})
	if len(f.stirred) > 0 {
		t.Error("an unchanged network is looked at again")
	}
}

// The agent looks after the network it runs, and not after one that it left.
func TestForeignRulesOfARunningNetwork(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a")
	a.others.found = []foreign.Obstacle{obstacle("n", 2)}
	a.start()
	a.check(health.ForeignRules, api.Warning, "start dockerd otherwise")
	a.others.set(func() {
		if len(a.others.seen) != 1 || a.others.seen[0].Network.Name != "n" || len(a.others.seen[0].Network.Subnets) == 0 || !slices.Equal(a.others.seen[0].Links, []string{"leno-n"}) {
			t.Errorf("looked for %+v", a.others.seen)
		}
	})
}

// The log says once that rules are in the way, and once that they are not any more.
func TestForeignRulesLogged(t *testing.T) {
	var lines strings.Builder
	o := &others{found: []foreign.Obstacle{obstacle("a", 2)}}
	f := newForeignRules(hclog.New(&hclog.LoggerOptions{Output: &lines, Level: hclog.Info}), o.find, health.New(time.Now, nil))
	f.put(foreign.OverlayPath{Network: firewall.Network{Name: "a"}})
	for range 3 {
		f.look(t.Context())
	}
	o.found = nil
	for range 3 {
		f.look(t.Context())
	}
	if text := lines.String(); strings.Count(text, "[WARN]") != 1 || strings.Count(text, "[INFO]") != 1 || strings.Count(text, "\n") != 2 {
		t.Errorf("logged was\n%s", text)
	}
}

// However many rules there are, to look at them takes a part of the time only.
func TestForeignRulesRest(t *testing.T) {
	f := newForeignRules(hclog.NewNullLogger(), nil, health.New(time.Now, nil))
	for took, want := range map[time.Duration]time.Duration{
		10 * time.Millisecond: foreignSpan, time.Second: 10 * time.Second, time.Hour: foreignTick,
	} {
		if got := f.rest(took); got != want {
			t.Errorf("after %s: %s, want %s", took, got, want)
		}
	}
}
