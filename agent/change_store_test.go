package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/internal/testkit/faulty"
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
		subtest(t, tt.name, func(t *testing.T) {
			first, second := memory.New(), memory.New()
			for i := range tt.writes {
				second.Put("other", fmt.Append(nil, i))
			}
			a, b := newHost(t, first, "a").start(), newHost(t, first, "b").start()
			a.ready()
			b.ready()
			ofA, ofB := fmt.Sprintf("%s <- b@%s", a.subnet(), b.subnet()), fmt.Sprintf("%s <- a@%s", b.subnet(), a.subnet())
			a.applies(ofA)
			b.applies(ofB)
			before := map[*host]int{a: len(a.recorder.all()), b: len(b.recorder.all())}
			for _, stores := range [][2]*memory.Store{{first, second}, {second, first}} {
				from, to := stores[0], stores[1]
				report, err := transfer.Copy(t.Context(), from.Client(), to.Client(), transfer.Options{Hold: a.config.Lease.Hold})
				if err != nil || report.Failures() > 0 {
					t.Fatalf("%+v, %v", report, err)
				}
				if tt.lapsed {
					endSessions(t, to, "")
				}
				for _, h := range []*host{a, b} {
					subnet := h.subnet()
					must(t, h.stop())
					endSessions(t, from, h.name)
					h.store, h.registry, h.remains = to, faulty.New(to.Client()), waiting(subnet)
					h.start()
					h.ready()
					if got := h.subnet(); got != subnet {
						t.Errorf("%s had %s, has %s", h.name, subnet, got)
					}
				}
				a.applies(ofA)
				b.applies(ofB)
			}
			for h, want := range map[*host]string{a: ofA, b: ofB} {
				passes := func() int { return len(h.recorder.tries()) }
				n := passes()
				h.kick()
				h.more("passes", n, passes)
				if all := h.recorder.all(); slices.ContainsFunc(all[before[h]-1:], func(s string) bool { return s != want }) {
					t.Errorf("%s applied %q, want only %q", h.name, all[before[h]-1:], want)
				}
			}
		})
	}
}

// TestJoinDuringAMove: a host that joins in the new store gets none of the subnets of the hosts that have not changed
// yet, and has routes to them.
func TestJoinDuringAMove(t *testing.T) {
	simulated(t, func(t *testing.T) {
		first, second := memory.New(), memory.New()
		a, b := newHost(t, first, "a").start(), newHost(t, first, "b").start()
		a.ready()
		b.ready()
		_, err := transfer.Copy(t.Context(), first.Client(), second.Client(), transfer.Options{Hold: a.config.Lease.Hold})
		must(t, err)
		endSessions(t, second, "")
		c := newHost(t, second, "c").start()
		peers := []string{"a@" + a.subnet().String(), "b@" + b.subnet().String()}
		if a.subnet().Addr().Compare(b.subnet().Addr()) > 0 {
			slices.Reverse(peers)
		}
		c.applies(fmt.Sprintf("%s <- %s", free(a, b), strings.Join(peers, ", ")))
	})
}

// endSessions ends the session of a host's lease of network n, or of all leases without a name.
func endSessions(t *testing.T, s *memory.Store, node string) {
	t.Helper()
	ctx := context.Background()
	n, err := s.Client().Network(ctx, "n")
	must(t, err)
	set, _, err := s.Client().WatchLeases(ctx, n, 0)
	must(t, err)
	for _, l := range set.Leases {
		if l.Session != "" && (node == "" || l.Node == node) {
			s.EndSession(l.Session)
		}
	}
}
