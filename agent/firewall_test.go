package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

func keeperOf(w *wall) *firewallKeeper {
	return newFirewallKeeper(w, config.Defaults().Firewall, hclog.NewNullLogger(), health.New(time.Now, nil))
}

func TestFirewallKeeper(t *testing.T) {
	ctx := context.Background()
	w := &wall{}
	k := keeperOf(w)
	n := firewall.Network{Name: "n", Pools: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}}
	masq := n
	masq.IPMasq = true
	broken := errors.New("no such table")
	for _, step := range []struct {
		name string
		do   func() error
		err  error
		want []string // what Apply got by now
	}{
		{"first", func() error { return k.put(ctx, n) }, nil, []string{"n"}},
		{"the same", func() error { return k.put(ctx, n) }, nil, []string{"n"}},
		{"configured otherwise", func() error { k.configure(config.Firewall{Type: "nftables"}); return k.put(ctx, n) }, nil, []string{"n", "n"}},
		{"another wish", func() error { return k.put(ctx, masq) }, nil, []string{"n", "n", "n"}},
		{"another network", func() error { return k.put(ctx, firewall.Network{Name: "m"}) }, nil, []string{"n", "n", "n", "m n"}},
		{"failing", func() error { w.setErr(broken); return k.put(ctx, n) }, broken, []string{"n", "n", "n", "m n", "m n"}},
		{"and again, too soon", func() error { return k.put(ctx, n) }, broken, []string{"n", "n", "n", "m n", "m n"}},
		{"and again at its time", func() error { k.again = time.Now(); return k.put(ctx, n) }, broken, []string{"n", "n", "n", "m n", "m n", "m n"}},
		{"mended", func() error { w.setErr(nil); k.again = time.Now(); return k.put(ctx, n) }, nil, []string{"n", "n", "n", "m n", "m n", "m n", "m n"}},
		{"failing half-way", func() error { w.setErr(broken); return k.put(ctx, masq) }, broken, []string{"n", "n", "n", "m n", "m n", "m n", "m n", "m n"}},
		{"as before", func() error { w.setErr(nil); return k.put(ctx, n) }, nil, []string{"n", "n", "n", "m n", "m n", "m n", "m n", "m n", "m n"}},
		{"one gone", func() error { w.wanted = nil; return k.drop(ctx, "m") }, nil, []string{"n"}},
		{"never there", func() error { return k.drop(ctx, "x") }, nil, []string{"n"}},
		{"all gone", func() error { return k.drop(ctx, "n") }, nil, []string{"n", ""}},
	} {
		if err := step.do(); !errors.Is(err, step.err) {
			t.Errorf("%s: %v", step.name, err)
		}
		if diff := cmp.Diff(step.want, w.names()); diff != "" {
			t.Fatalf("%s: %s", step.name, diff)
		}
	}
}

// TestFirewallRemembers: after a restart the first network that is ready does
// not take the other's rules away.
func TestFirewallRemembers(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	a.config.Networks = append(a.config.Networks, a.second())
	a.start().ready()
	must(t, a.stop())
	began := len(a.wall.names())
	a.start().ready()
	for _, names := range a.wall.names()[began:] {
		if names != "m n" {
			t.Errorf("firewall of %q alone", names)
		}
	}
	a.wall.mu.Lock()
	first := a.wall.wanted[began]
	a.wall.mu.Unlock()
	if len(first) != 2 || len(first[0].Subnets) != 1 || first[1].Pools[0] != netip.MustParsePrefix("10.5.0.0/22") {
		t.Errorf("%+v", first)
	}
	// What is not configured any more is not remembered.
	must(t, a.stop())
	began = len(a.wall.names())
	a.config.Networks = a.config.Networks[:1]
	a.start().ready()
	if got := a.wall.names()[began:]; got[len(got)-1] != "n" {
		t.Errorf("firewall of %q", got)
	}
}

// hanging is rules whose program does not come back.
type hanging struct {
	wall
	hangs chan struct{} // nil for no longer, else Apply waits for it
}

func (h *hanging) Apply(ctx context.Context, s firewall.State) (firewall.Report, error) {
	if h.hangs != nil {
		<-h.hangs
	}
	return h.wall.Apply(ctx, s)
}

// TestFirewallHangs: while a program hangs, whatever needs no other rules than
// stand goes on: datapaths are healed by those who put, and the API answers.
func TestFirewallHangs(t *testing.T) {
	ctx := context.Background()
	h := &hanging{}
	k := newFirewallKeeper(h, config.Defaults().Firewall, hclog.NewNullLogger(), health.New(time.Now, nil))
	n := firewall.Network{Name: "n"}
	must(t, k.put(ctx, n))
	h.hangs = make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() { k.look(ctx, true) })
	defer looking.Wait()
	defer close(h.hangs)
	for k.turn.TryLock() { // until it has begun
		k.turn.Unlock()
		runtime.Gosched()
	}
	done := make(chan error, 1)
	go func() { // ends with the test at the latest
		k.choice()
		k.stands("n")
		k.configure(config.Defaults().Firewall)
		done <- k.put(ctx, n)
	}()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(2 * time.Minute):
		t.Error("it waits for the program")
	}
}

func TestFirewallFails(t *testing.T) {
	t.Parallel()
	missing := fmt.Errorf("iptables: %w", firewall.ErrNotInstalled)
	for _, tt := range []struct {
		name   string
		masq   bool
		err    error
		status string
		ready  bool
	}{
		{"works", true, nil, api.Passing, true},
		{"not installed, not needed", false, missing, api.Warning, true},
		{"not installed and needed", true, missing, api.Critical, false},
		{"broken", false, errors.New("no such table"), api.Critical, false},
		{"not seen for a while", true, firewall.ErrUnseen, api.Warning, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newHost(t, memory.New(), "a")
			a.config.Networks[0].IPMasq = tt.masq
			a.wall.setErr(tt.err)
			a.start()
			reason := ""
			if tt.err != nil {
				reason = tt.err.Error()
			}
			a.check(health.Firewall, tt.status, reason)
			if tt.ready {
				a.ready()
				return
			}
			if a.agent.Ready() {
				t.Error("ready")
			}
			a.wall.setErr(nil)
			a.ready()
			a.check(health.Firewall, api.Passing)
		})
	}
}

// TestFirewallInstead: rules that stand in another kind than they should are a
// warning that names what is broken.
func TestFirewallInstead(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	a.config.Networks[0].IPMasq = true
	a.wall.report = firewall.Report{Choice: firewall.Choice{Kind: "nftables"}, Instead: errors.New("iptables-save hangs")}
	a.start().ready()
	a.check(health.Firewall, api.Warning, "iptables-save hangs")
}

// TestDropOfAnEarlierProcess: rules that nobody remembers go all the same, and
// nothing is asked of a host that has no firewall.
func TestDropOfAnEarlierProcess(t *testing.T) {
	w := &wall{}
	k := keeperOf(w)
	ctx := context.Background()
	must(t, k.drop(ctx, "left"))
	must(t, k.drop(ctx, "left"))
	if got := w.names(); len(got) != 1 || got[0] != "" {
		t.Errorf("applied %q, want the empty set once", got)
	}
	w.setErr(firewall.ErrNotInstalled)
	must(t, keeperOf(w).drop(ctx, "left"))
	k = keeperOf(w)
	k.wanted["mine"] = firewall.Network{Name: "mine"}
	if err := k.drop(ctx, "mine"); !errors.Is(err, firewall.ErrNotInstalled) {
		t.Errorf("rules there should be: %v", err)
	}
}

// TestRememberAndAsk: who starts the firewall and who asks the agent about itself
// take the same two locks, and never wait for each other.
func TestRememberAndAsk(t *testing.T) {
	h := newHost(t, memory.New(), "a").start()
	h.ready()
	a := h.agent
	asked := make(chan struct{})
	a.env.firewall.remember(a.current(), func(name string) (config.Network, bool) {
		go func() {
			defer close(asked)
			_ = a.self()
		}()
		select {
		case <-asked:
		case <-time.After(2 * time.Minute):
			t.Error("whoever asks the agent waits for the rules to be remembered")
			return config.Network{}, false
		}
		return a.wanted(name)
	})
	<-asked
}
