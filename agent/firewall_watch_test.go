package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// disturbs tells the agent that somebody changed rules, once it listens.
func (h *host) disturbs() {
	h.t.Helper()
	var changed func()
	eventually(h.t, func() error {
		h.wall.set(func(w *wall) { changed = w.changed })
		if changed == nil {
			return fmt.Errorf("%s does not watch the firewall", h.name)
		}
		return nil
	})
	changed()
}

// The rules are looked at when somebody changed any, within the promised 2 s,
// and however many changes there are not more often than once in lookSpan.
func TestFirewallWatched(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a")
	a.config.Firewall.Resync = time.Hour
	a.start().ready()
	a.disturbs()
	looks := a.wall.looks()
	began := time.Now()
	for time.Since(began) < 2500*time.Millisecond {
		a.disturbs()
		<-time.After(5 * time.Millisecond)
	}
	got := a.wall.looks() - looks
	if got < 1 || got > 4 {
		t.Errorf("%d looks in 2.5 s of changes", got)
	}
	// A last change is not lost.
	var before int
	eventually(t, func() error {
		if n := a.wall.looks(); n != before {
			before = n
			return errors.New("it still looks")
		}
		return nil
	})
	a.disturbs()
	a.more("looks", before, a.wall.looks)
}

// Where nobody tells of changes they are asked for, while such rules are in use.
func TestFirewallAsked(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a")
	a.config.Firewall.Resync = time.Hour
	a.wall.report.Silent = true
	a.start().ready()
	looks := a.wall.looks()
	a.wall.set(func(w *wall) { w.touched = true })
	a.more("looks", looks+1, a.wall.looks)
}

// Without any news the rules are looked at all the same.
func TestFirewallResync(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	a.config.Firewall.Resync = 50 * time.Millisecond
	a.wall.watch = errors.New("no rights to watch")
	a.start().ready()
	looks := a.wall.looks()
	a.more("looks", looks+3, a.wall.looks)
}

// While the store is away after a start, the rules of what stands are kept: those
// that the process before remembered.
func TestFirewallKeptWithoutStore(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a")
	a.config.Networks[0].Forward = true
	a.start().ready()
	subnet := a.subnet()
	must(t, a.stop())
	a.registry.set(registry.ErrUnavailable)
	a.remains = KernelState{Device: true, Up: true, Carrier: true, Addrs: []netip.Addr{subnet.Addr()}}
	looks := a.wall.looks()
	a.start()
	a.more("looks", looks, a.wall.looks)
	a.wall.set(func(w *wall) {
		for _, networks := range w.wanted[looks:] {
			if len(networks) != 1 || len(networks[0].Subnets) != 1 || networks[0].Subnets[0] != subnet {
				t.Errorf("wanted %+v", networks)
			}
		}
	})
	a.check(health.Firewall, api.Passing, "rules are in place")
	looks = a.wall.looks()
	a.disturbs()
	a.more("looks", looks, a.wall.looks)
}

// After a reboot nothing stands: rules of a subnet that nobody has confirmed are
// not written.
func TestFirewallUntouchedAfterReboot(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	a.start().ready()
	must(t, a.stop())
	a.registry.set(registry.ErrUnavailable)
	looks := a.wall.looks()
	a.start()
	a.check(health.Network, api.Critical)
	a.disturbs()
	a.check(health.Consul, api.Warning)
	if got := a.wall.looks(); got != looks {
		t.Errorf("%d looks", got-looks)
	}
}

func TestFirewallChecks(t *testing.T) {
	chosen := firewall.Choice{Kind: "iptables-nft", Reason: "it works"}
	for _, tt := range []struct {
		name   string
		report firewall.Report
		status string
		words  []string
	}{
		{"one kind", firewall.Report{Choice: chosen}, api.Passing, []string{"in place: iptables-nft, since it works"}},
		{"old ones stay", firewall.Report{Choice: chosen, Leftover: errors.New("no such program")}, api.Warning, []string{"could not be removed: no such program"}},
		{"changed now and then", firewall.Report{Choice: chosen, Healed: []string{"no jump"}}, api.Passing, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newHost(t, memory.New(), "a")
			a.config.Networks[0].Forward = true
			a.wall.report = tt.report
			a.start().ready()
			a.check(health.Firewall, tt.status, tt.words...)
			self, err := a.client.Self(t.Context())
			if err != nil || self.Firewall == nil || self.Firewall.Kind != "iptables-nft" {
				t.Errorf("self says %+v, %v", self.Firewall, err)
			}
		})
	}
	t.Run("changed again and again", func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.config.Networks[0].Forward = true
		a.config.Firewall.Resync = 20 * time.Millisecond
		a.wall.report = firewall.Report{Choice: chosen, Healed: []string{"no jump in FORWARD"}}
		a.start()
		a.check(health.Firewall, api.Warning, "changed by somebody else again and again", "no jump in FORWARD (")
	})
	t.Run("nothing asked for", func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.start().ready()
		a.check(health.Firewall, api.Passing, "no rules are asked for")
	})
}

// A firewall that fails is tried again by the keeper, and the networks learn of
// it: none of them tries by itself.
func TestFirewallTriedAgain(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a")
	a.config.Networks[0].IPMasq = true
	a.config.Firewall.Resync = time.Hour
	a.start().ready()
	a.wall.setErr(errors.New("the lock is held"))
	looks := a.wall.looks()
	a.disturbs()
	a.check(health.Firewall, api.Critical, "the lock is held")
	a.more("looks", looks+3, a.wall.looks)
	var times []time.Time
	a.wall.set(func(w *wall) { times = w.times[looks:] })
	for i := 2; i < len(times); i++ {
		if gap := times[i].Sub(times[i-1]); gap < retry.FirstPause/2 {
			t.Errorf("tried again after %s", gap)
		}
	}
	a.wall.setErr(nil)
	a.check(health.Firewall, api.Passing)
}

func TestFirewallReloaded(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a")
	a.start().ready()
	c := a.config
	c.Firewall.Type, c.Firewall.RandomFully = "nftables", false
	must(t, a.agent.Reload(t.Context(), c))
	eventually(t, func() error {
		var last firewall.State
		a.wall.set(func(w *wall) { last = w.states[len(w.states)-1] })
		if last.Type != firewall.TypeNFTables || last.RandomFully || len(last.Networks) != 1 {
			return fmt.Errorf("applied %+v", last)
		}
		return nil
	})
}

// While a program hangs, nobody who only asks waits for it, nor does a network
// whose wishes are the same as at the last try, which failed.
func TestFirewallAskedWhileItHangs(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
	}{{"after it worked", nil}, {"after it failed", errors.New("no such table")}} {
		t.Run(tt.name, func(t *testing.T) {
			w := &wall{err: tt.err}
			k := keeperOf(w)
			n := firewall.Network{Name: "n", Forward: true}
			if err := k.put(t.Context(), n); !errors.Is(err, tt.err) {
				t.Fatal(err)
			}
			hangs := make(chan struct{})
			w.set(func(w *wall) { w.hangs = hangs })
			k.mu.Lock()
			k.again = time.Now()
			k.mu.Unlock()
			looked, asked := make(chan struct{}), make(chan struct{})
			go func() { defer close(looked); k.look(t.Context(), true) }()
			eventually(t, func() error {
				if w.looks() < 2 {
					return errors.New("no look")
				}
				return nil
			})
			go func() {
				defer close(asked)
				k.choice()
				k.stands("n")
				k.configure(k.config)
				if err := k.put(t.Context(), n); !errors.Is(err, tt.err) {
					t.Error(err)
				}
			}()
			select {
			case <-asked:
			case <-time.After(2 * time.Minute):
				t.Error("somebody waits for the program")
			}
			close(hangs)
			<-looked
			<-asked
		})
	}
}

// What failed waits for its time, whatever others change meanwhile; other wishes
// do not.
func TestFirewallBacksOff(t *testing.T) {
	w := &wall{err: errors.New("no such table")}
	k := keeperOf(w)
	_ = k.put(t.Context(), firewall.Network{Name: "n", Forward: true}) // fails
	k.again = time.Now().Add(time.Hour)
	k.look(t.Context(), true)
	if got := w.looks(); got != 1 {
		t.Errorf("%d looks too soon", got-1)
	}
	k.configure(config.Firewall{Type: "nftables"})
	k.look(t.Context(), true)
	if got := w.looks(); got != 2 {
		t.Errorf("%d looks for another type", got-1)
	}
}

// While rules are expected of a network that has not told yet, nothing is to be
// done, and that not all the time.
func TestFirewallWaitsForAnother(t *testing.T) {
	k := keeperOf(&wall{})
	k.want(firewall.Network{Name: "n", Forward: true})
	k.stands("n")
	k.expected.expect("m")
	if got := k.next(time.Now()); got < lookSpan/2 {
		t.Errorf("looks again in %s", got)
	}
}
