package network

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
	"github.com/lenonet/leno/registry/transfer"
)

// TestChangeOfStore moves two hosts to another store and back, one after the other. Neither ever drops its route to the
// other, and both keep their subnets.
func TestChangeOfStore(t *testing.T) {
	for _, tt := range []struct {
		name   string
		writes int  // of other programs in the second store before, which set its indexes apart
		lapsed bool // the copies have lapsed when the hosts change
	}{
		{"lower indexes", 0, false},
		{"lower indexes, copies lapsed", 0, true},
		{"higher indexes", 1000, false},
		{"higher indexes, copies lapsed", 1000, true},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			first, second := memory.New(), memory.New()
			for i := range tt.writes {
				second.Put("other", fmt.Append(nil, i))
			}
			a, b := newMember(t, first, "a").start(), newMember(t, first, "b").start()
			a.ready()
			b.ready()
			want := map[*member]string{a: a.with(b), b: b.with(a)}
			before := map[*member]int{}
			for m := range want {
				m.applies(want[m])
				before[m] = len(m.kernel.states())
			}
			for i, stores := range [][2]*memory.Store{{first, second}, {second, first}} {
				from, to := stores[0], stores[1]
				report, err := transfer.Copy(t.Context(), from.Client(), to.Client(), transfer.Options{Hold: a.config.Lease.Hold})
				if err != nil || report.Failures() > 0 {
					t.Fatalf("%+v, %v", report, err)
				}
				if tt.lapsed {
					endSessions(t, to, "")
				}
				for _, m := range []*member{a, b} {
					subnet := m.subnet()
					m.stop()
					endSessions(t, from, m.name)
					m.connect(to)
					m.config.Consul.KVPrefix = fmt.Sprint("store", i)
					m.remains = waiting(subnet)
					m.start().ready()
					if got := m.subnet(); got != subnet {
						t.Errorf("%s had %s, has %s", m.name, subnet, got)
					}
				}
				a.applies(want[a])
				b.applies(want[b])
			}
			for m := range want {
				tries := m.kernel.tries()
				m.kick()
				m.more("passes", tries, m.kernel.tries)
				if all := m.kernel.states(); slices.ContainsFunc(all[before[m]-1:], func(s string) bool { return s != want[m] }) {
					t.Errorf("%s applied %q, want only %q", m.name, all[before[m]-1:], want[m])
				}
			}
		})
	}
}

// TestWrongLocation restarts a host with a configuration that names another location of a store, in which there is no
// network. It writes nothing there, keeps its datapath and says what is wrong, until the configuration is corrected or
// the network is defined. Without the location in its state, as before, it restores the network.
func TestWrongLocation(t *testing.T) {
	for _, tt := range []struct {
		name    string
		deleted bool                  // the host remembers the deletion of the network
		local   func(*config.Network) // changes the block
		saved   func(*state.Network)  // changes the state
		writes  bool
	}{
		{"with pools", false, func(*config.Network) {}, nil, false},
		{"without pools", false, func(n *config.Network) { n.Pools, n.Backend = nil, nil }, nil, false},
		{"away for too long", false, func(*config.Network) {}, func(s *state.Network) {
			s.Renewed = s.Renewed.Add(-registry.DeletionKept)
		}, false},
		{"deleted", true, func(*config.Network) {}, nil, false},
		{"state of an earlier version", false, func(*config.Network) {}, func(s *state.Network) { s.Store = "" }, true},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			first, wrong := memory.New(), memory.New()
			a, b := newMember(t, first, "a").start(), newMember(t, first, "b").start()
			a.applies(a.with(b))
			before := a.kernel.last()
			a.remains = waiting(a.subnet())
			if tt.deleted {
				a.remove()
				a.check(health.Network, api.Critical, "was deleted at")
				before = a.kernel.last()
				a.remains = datapath.KernelState{}
			}
			a.stop()
			if tt.saved != nil {
				s, err := state.Load(a.config.DataDir, "n")
				must(t, err)
				tt.saved(&s)
				must(t, state.Save(a.config.DataDir, s))
			}
			tt.local(&a.config.Networks[0])
			a.connect(wrong)
			a.config.Consul.KVPrefix = "wrong"
			a.start()
			if tt.writes {
				a.ready()
				return
			}
			says := []string{"consul kv_prefix=leno,", "consul kv_prefix=wrong", "not defined"}
			a.check(health.Network, api.Critical, says...)
			_, last, _ := a.deps.Reports.Events.After(0, "n")
			time.Sleep(10 * time.Minute)
			a.check(health.Network, api.Critical, says...)
			if all, _, _ := a.deps.Reports.Events.After(last, "n"); len(all) > 0 {
				t.Errorf("events since: %+v", all)
			}
			if keys := wrong.Keys(""); len(keys) > 0 {
				t.Errorf("it wrote %q", keys)
			}
			if got := a.kernel.last(); got != before {
				t.Errorf("it applied %q, want %q", got, before)
			}
			a.stop()
			if tt.deleted {
				a.config.Consul.KVPrefix = "leno"
				a.connect(first)
				a.start().check(health.Network, api.Critical, "was deleted at")
				a.stop()
				return
			}
			a.start().check(health.Network, api.Critical, says...)
			n := b.inStore()
			n.CreateIndex, n.ModifyIndex = 0, 0
			must(t, wrong.Client().PutNetwork(t.Context(), n))
			a.ready()
			a.stop()
			empty(wrong)
			a.start().ready() // the network was lost in the location that the host knows now
			a.stop()
			a.config.Consul.KVPrefix = "leno"
			a.connect(first)
			a.start().applies(a.with(b))
		})
	}
}

// TestJoinDuringAMove: a host that joins in the new store gets none of the subnets of the hosts that have not changed
// yet, and has routes to them.
func TestJoinDuringAMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := memory.New(), memory.New()
		a, b := newMember(t, first, "a").start(), newMember(t, first, "b").start()
		a.ready()
		b.ready()
		_, err := transfer.Copy(t.Context(), first.Client(), second.Client(), transfer.Options{Hold: a.config.Lease.Hold})
		must(t, err)
		endSessions(t, second, "")
		c := newMember(t, second, "c").start()
		if got, want := c.subnet(), free(a, b); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		c.applies(c.with(a, b))
	})
}

// endSessions ends the session of a host's lease of network n, or of all leases without a name.
func endSessions(t *testing.T, s *memory.Store, node string) {
	t.Helper()
	n, err := s.Client().Network(t.Context(), "n")
	must(t, err)
	set, _, err := s.Client().WatchLeases(t.Context(), n, 0)
	must(t, err)
	for _, l := range set.Leases {
		if l.Session != "" && (node == "" || l.Node == node) {
			s.EndSession(l.Session)
		}
	}
}
