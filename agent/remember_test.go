package agent

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func TestRecall(t *testing.T) {
	n := registry.Network{Name: "n", Plan: mustPlan(t, "10.5.0.0/20"), Backend: mustBackend(t, "alloc", ""), CreateIndex: 7}
	own := testLease("a", 1, "sa", 1)
	b, c := testLease("b", 2, "sb", 20), testLease("c", 3, "", 30)
	with := func(l registry.Lease, change func(l *registry.Lease)) registry.Lease { change(&l); return l }
	type leases = []registry.Lease
	start := time.Now()
	for _, tt := range []struct {
		name  string
		store leases
		anew  bool // whether the definition is that of a new store
		later time.Duration
		want  string // by slot, such as "2:b20+" for node b, version 20 and a held lease
	}{
		{"all there", leases{own, b, c}, false, 0, "1:a1+ 2:b20+ 3:c30"},
		{"nothing there", leases{own}, false, 0, "1:a1+ 2:b20+ 3:c30"},
		{"nothing there for long", leases{own}, false, time.Minute, "1:a1+"},
		{"one there", leases{own, b}, false, 0, "1:a1+ 2:b20+ 3:c30"},
		{"one there with a new session", leases{own, testLease("b", 2, "sb2", 40)}, false, 0, "1:a1+ 2:b40+ 3:c30"},
		{"one lapsed since", leases{own, testLease("b", 2, "", 40)}, false, 0, "1:a1+ 2:b40 3:c30"},
		{"one has another slot", leases{own, testLease("b", 5, "sb", 40)}, false, 0, "1:a1+ 3:c30 5:b40+"},
		{"one is where it was before", leases{own, testLease("b", 5, "sb", 10)}, false, 0, "1:a1+ 2:b20+ 3:c30"},
		{"one as it was before", leases{own, testLease("b", 2, "", 10)}, false, 0, "1:a1+ 2:b20+ 3:c30"},
		{"its slot is whose it was before", leases{own, testLease("d", 2, "sd", 10)}, false, 0, "1:a1+ 2:b20+ 3:c30"},
		{"its slot is another's", leases{own, testLease("d", 2, "sd", 40)}, false, 0, "1:a1+ 2:d40+ 3:c30"},
		{"its name is another's", leases{own, with(testLease("d", 6, "sd", 40), func(l *registry.Lease) { l.Node = "b" })}, false, 0, "1:a1+ 3:c30 6:b40+"},
		{"its address is another's", leases{own, with(testLease("d", 6, "sd", 40), func(l *registry.Lease) {
			l.PublicIPs = append(l.PublicIPs, c.PublicIPs...)
		})}, false, 0, "1:a1+ 2:b20+ 6:d40+"},
		{"a new store", leases{own}, true, 0, "1:a1+ 2:b20+ 3:c30"},
		{"a new store, a slot is another's", leases{own, testLease("d", 2, "sd", 10)}, true, 0, "1:a1+ 2:d10+ 3:c30"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			first := remember(dir, n, time.Minute)
			if all, until := first.recall(n, leases{own, b, c}, start); len(all) != 3 || !until.IsZero() {
				t.Fatalf("recalled %+v of nothing", all)
			}
			must(t, first.keep(n, leases{own, b, c}, own))
			now := n
			if tt.anew {
				now.CreateIndex = 1
			}
			m := remember(dir, now, time.Minute)
			m.recall(now, tt.store, start)
			all, until := m.recall(now, tt.store, start.Add(tt.later))
			slices.SortFunc(all, func(a, b registry.Lease) int { return cmp.Compare(a.Slot, b.Slot) })
			var got []string
			for _, l := range all {
				text := fmt.Sprintf("%d:%s%d", l.Slot, l.Node, l.ModifyIndex)
				if l.Held() {
					text += "+"
				}
				got = append(got, text)
				if l.ModifyIndex == b.ModifyIndex && !l.SameValue(b) {
					t.Errorf("was %+v, is %+v", b, l)
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got %q, want %q", strings.Join(got, " "), tt.want)
			}
			if lacks := len(all) > len(tt.store); lacks && !until.Equal(start.Add(time.Minute)) {
				t.Errorf("until %s", until)
			}
		})
	}
}

// TestRecallTwoOfAHost: if two leases of a host are remembered, the one that the host has now stays a peer, whichever
// of them the store gets back first.
func TestRecallTwoOfAHost(t *testing.T) {
	n := registry.Network{Name: "n", Plan: mustPlan(t, "10.5.0.0/20"), Backend: mustBackend(t, "alloc", ""), CreateIndex: 7}
	own := testLease("a", 1, "sa", 1)
	created := func(l registry.Lease, index uint64) registry.Lease { l.CreateIndex = index; return l }
	before, now := created(testLease("b", 2, "", 20), 10), created(testLease("b", 5, "sb", 30), 30)
	for _, tt := range []struct {
		name          string
		before, store []registry.Lease
		want          string
	}{
		{"nothing back", []registry.Lease{before, now}, nil, "10.5.5.0/24"},
		{"the earlier as it was", []registry.Lease{before, now}, []registry.Lease{before}, "10.5.5.0/24"},
		{"the earlier as it was when it was held", []registry.Lease{before, now}, []registry.Lease{created(testLease("b", 2, "sb", 15), 10)}, "10.5.5.0/24"},
		{"the earlier, lapsed since", []registry.Lease{before, now}, []registry.Lease{created(testLease("b", 2, "", 45), 10)}, "10.5.5.0/24"},
		{"the earlier lapsed later than the present one was written", []registry.Lease{created(testLease("b", 2, "", 35), 10), now}, nil, "10.5.5.0/24"},
		{"both lapsed", []registry.Lease{before, created(testLease("b", 5, "", 40), 30)}, []registry.Lease{before}, "10.5.5.0/24"},
		{"the present one, written again", []registry.Lease{before, now}, []registry.Lease{created(testLease("b", 5, "sb", 50), 50)}, "10.5.5.0/24"},
		{"the earlier one, written again", []registry.Lease{before, now}, []registry.Lease{created(testLease("b", 2, "sb", 50), 50)}, "10.5.2.0/24"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, remember(dir, n, time.Minute).keep(n, append(tt.before, own), own))
			m, at := remember(dir, n, time.Minute), time.Now()
			m.recall(n, []registry.Lease{own}, at)
			all, _ := m.recall(n, append(tt.store, own), at)
			peers := peers.Of(all, own)
			if len(peers) != 1 || peers[0].Subnets[0].String() != tt.want {
				t.Errorf("peers %+v of %+v, want %s", peers, all, tt.want)
			}
		})
	}
}

// TestRecallEnds: once the store has a host again, the store's word about that host counts.
func TestRecallEnds(t *testing.T) {
	n := registry.Network{Name: "n", Plan: mustPlan(t, "10.5.0.0/20")}
	m := &recollection{leases: []registry.Lease{testLease("b", 2, "sb", 20), testLease("c", 3, "", 30)}, stays: time.Minute}
	now := time.Now()
	for _, tt := range []struct {
		store []registry.Lease
		want  int
	}{
		{nil, 2},
		{[]registry.Lease{testLease("b", 2, "sb", 40)}, 2},
		{nil, 1},
		{[]registry.Lease{testLease("c", 3, "sc", 50)}, 1},
		{nil, 0},
	} {
		if all, _ := m.recall(n, tt.store, now); len(all) != tt.want {
			t.Errorf("%+v: %+v", tt.store, all)
		}
	}
}

func TestRememberedPeers(t *testing.T) {
	n := registry.Network{Name: "n", Plan: mustPlan(t, "10.5.0.0/20"), Backend: mustBackend(t, "alloc", ""), CreateIndex: 7}
	own, b := testLease("a", 1, "sa", 1), testLease("b", 2, "sb", 20)
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, path string, n *registry.Network)
		want   int
	}{
		{"as written", func(*testing.T, string, *registry.Network) {}, 1},
		{"missing", func(t *testing.T, path string, _ *registry.Network) { must(t, os.Remove(path)) }, 0},
		{"broken", func(t *testing.T, path string, _ *registry.Network) { must(t, os.WriteFile(path, []byte("{"), 0o600)) }, 0},
		{"of another version", func(t *testing.T, path string, _ *registry.Network) {
			must(t, os.WriteFile(path, []byte(`{"version":9,"network":"n"}`), 0o600))
		}, 0},
		{"of another plan", func(t *testing.T, _ string, n *registry.Network) { n.Plan = mustPlan(t, "10.6.0.0/20") }, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, n := t.TempDir(), n
			m := remember(dir, n, time.Minute)
			must(t, m.keep(n, []registry.Lease{own, b}, own))
			before, err := os.Stat(state.PeersPath(dir, "n"))
			must(t, err)
			must(t, m.keep(n, []registry.Lease{own, b}, own))
			must(t, remember(dir, n, time.Minute).keep(n, []registry.Lease{own, b}, own))
			if again, err := os.Stat(state.PeersPath(dir, "n")); err != nil || !os.SameFile(before, again) {
				t.Errorf("written again: %v", err)
			}
			tt.change(t, state.PeersPath(dir, "n"), &n)
			if got := remember(dir, n, time.Minute).leases; len(got) != tt.want {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestRestartWhileTheStoreIsFilled: an agent starts again before every host has written its lease into a store that was
// emptied. The peers that the kernel knows stay until the store has settled.
func TestRestartWhileTheStoreIsFilled(t *testing.T) {
	t.Parallel()
	store := memory.New()
	a, b, c := newHost(t, store, "a"), newHost(t, store, "b").start(), newHost(t, store, "c").start()
	a.config.Lease.TTL, a.config.Lease.RenewMargin = 2*time.Second, 1900*time.Millisecond
	a.start()
	b.ready()
	c.ready()
	peers := []*host{b, c}
	slices.SortFunc(peers, func(a, b *host) int { return a.subnet().Addr().Compare(b.subnet().Addr()) })
	subnet, lost := a.subnet(), c.subnet()
	without := fmt.Sprintf("%s <- b@%s", subnet, b.subnet())
	want := fmt.Sprintf("%s <- %s@%s, %s@%s", subnet, peers[0].name, peers[0].subnet(), peers[1].name, peers[1].subnet())
	a.applies(want)
	must(t, a.stop())
	must(t, c.stop())
	store.Delete(leaseKey(lost))
	began := len(a.recorder.tries())
	a.start().ready()
	a.more("applies", began, func() int { return len(a.recorder.tries()) })
	a.applies(want)
	a.applies(without)
	states := a.recorder.all()
	if got := states[slices.Index(states, want):]; !slices.Equal(got, []string{want, without}) {
		t.Errorf("applied %q", got)
	}

	// After a release, nothing is remembered.
	must(t, a.client.ReleaseLease(t.Context(), "n"))
	a.applies("zero")
	eventually(t, func() error {
		if exists(state.PeersPath(a.config.DataDir, "n")) {
			return errors.New("the peers are still remembered")
		}
		return nil
	})
}

// TestRememberedPeersStayWhileTheStoreIsAway: the time for which remembered peers stay passes while the store does not
// answer, or while the process is stopped. What the store said before is no reason to remove them: their hosts may have
// written their leases since.
func TestRememberedPeersStayWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	store := memory.New()
	a, c := newHost(t, store, "a"), newHost(t, store, "c").start()
	a.config.Lease.TTL, a.config.Lease.RenewMargin = 2*time.Second, 1900*time.Millisecond
	a.start().ready()
	c.ready()
	subnet, lost := a.subnet(), c.subnet()
	want := fmt.Sprintf("%s <- c@%s", subnet, lost)
	a.applies(want)
	must(t, a.stop())
	must(t, c.stop())
	store.Delete(leaseKey(lost))
	began := len(a.recorder.tries())
	a.start().ready()
	a.more("applies", began, func() int { return len(a.recorder.tries()) })
	a.applies(want)
	started := time.Now()
	a.registry.set(registry.ErrUnavailable)
	eventually(t, func() error {
		if got := a.recorder.last(); got != want {
			return fmt.Errorf("applied %q", got)
		}
		if passed := time.Since(started); passed < settleTime(a.config.Lease)+freshEvery {
			return fmt.Errorf("%s have passed", passed)
		}
		return nil
	})
	if got := a.recorder.last(); got != want {
		t.Errorf("while the store is away: %q, want %q", got, want)
	}
	a.registry.set(nil)
	a.applies(subnet.String() + " <- ")
}

// TestPeersAreRememberedSoon: peers are written down soon, so that even a process that is killed has remembered them.
func TestPeersAreRememberedSoon(t *testing.T) {
	t.Parallel()
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	b := newHost(t, store, "b").start()
	b.ready()
	eventually(t, func() error {
		n := registry.Network{Name: "n", Plan: mustPlan(t, "10.5.0.0/22")}
		if known := remember(a.config.DataDir, n, 0).leases; len(known) != 1 {
			return fmt.Errorf("%d leases", len(known))
		}
		return nil
	})
	for leases, want := range map[int]time.Duration{0: time.Second, 100: time.Second, 1000: 6 * time.Second, 100_000: time.Minute} {
		if got := rememberPause(leases); got != want {
			t.Errorf("%d leases: %s, want %s", leases, got, want)
		}
	}
}
