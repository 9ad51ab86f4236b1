package peers

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
)

func TestMerge(t *testing.T) {
	n := testNetwork(t)
	own := agenttest.Lease("a", 1, "sa", 1)
	b, c := agenttest.Lease("b", 2, "sb", 20), agenttest.Lease("c", 3, "", 30)
	with := func(l registry.Lease, change func(l *registry.Lease)) registry.Lease { change(&l); return l }
	type leases = []registry.Lease
	start := time.Now()
	for _, tt := range []struct {
		name  string
		store leases
		again bool // whether the definition is that of a new store
		later time.Duration
		want  string // by slot, such as "2:b20+" for node b, version 20 and a held lease
	}{
		{"all there", leases{own, b, c}, false, 0, "1:a1+ 2:b20+ 3:c30"},
		{"nothing there", leases{own}, false, 0, "1:a1+ 2:b20+ 3:c30"},
		{"nothing there for long", leases{own}, false, time.Minute, "1:a1+"},
		{"one there", leases{own, b}, false, 0, "1:a1+ 2:b20+ 3:c30"},
		{"one there with a new session", leases{own, agenttest.Lease("b", 2, "sb2", 40)}, false, 0, "1:a1+ 2:b40+ 3:c30"},
		{"one lapsed since", leases{own, agenttest.Lease("b", 2, "", 40)}, false, 0, "1:a1+ 2:b40 3:c30"},
		{"one has another slot", leases{own, agenttest.Lease("b", 5, "sb", 40)}, false, 0, "1:a1+ 3:c30 5:b40+"},
		{"one is where it was before", leases{own, agenttest.Lease("b", 5, "sb", 10)}, false, 0, "1:a1+ 2:b20+ 3:c30 5:b10+"},
		{"one as it was before", leases{own, agenttest.Lease("b", 2, "", 10)}, false, 0, "1:a1+ 2:b20+ 3:c30"},
		{"its slot is whose it was before", leases{own, agenttest.Lease("d", 2, "sd", 10)}, false, 0, "1:a1+ 2:b20+ 3:c30"},
		{"its slot is another's", leases{own, agenttest.Lease("d", 2, "sd", 40)}, false, 0, "1:a1+ 2:d40+ 3:c30"},
		{"its name is another's", leases{own, with(agenttest.Lease("d", 6, "sd", 40), func(l *registry.Lease) {
			l.Node = "b"
		})}, false, 0, "1:a1+ 3:c30 6:b40+"},
		{"its address is another's", leases{own, with(agenttest.Lease("d", 6, "sd", 40), func(l *registry.Lease) {
			l.PublicIPs = append(l.PublicIPs, c.PublicIPs...)
		})}, false, 0, "1:a1+ 2:b20+ 6:d40+"},
		{"its address is another's, with another port", leases{own, with(agenttest.Lease("d", 6, "sd", 40), func(l *registry.Lease) {
			l.PublicIPs, l.Backend.Object = c.PublicIPs, []byte(`{"type":"alloc","listen_port":51820,"public_port":51830}`)
		})}, false, 0, "1:a1+ 2:b20+ 3:c30 6:d40+"},
		{"a new store", leases{own}, true, 0, "1:a1+ 2:b20+ 3:c30"},
		{"a new store, a slot is another's", leases{own, agenttest.Lease("d", 2, "sd", 10)}, true, 0, "1:a1+ 2:d10+ 3:c30"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			first := loadCache(dir, n, time.Minute)
			if all, until := first.Merge(n, leases{own, b, c}, start); len(all) != 3 || !until.IsZero() {
				t.Fatalf("merged %+v of nothing", all)
			}
			must(t, first.save(&View{Network: n, Own: own, Leases: leases{own, b, c}}))
			now := n
			if tt.again {
				now.CreateIndex = 1
			}
			m := loadCache(dir, now, time.Minute)
			m.Merge(now, tt.store, start)
			all, until := m.Merge(now, tt.store, start.Add(tt.later))
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

// TestMergeTwoOfAHost: if two leases of a host are remembered, the one that the host has now stays a peer, whichever
// of them the store gets back first.
func TestMergeTwoOfAHost(t *testing.T) {
	n := testNetwork(t)
	own := agenttest.Lease("a", 1, "sa", 1)
	created := func(l registry.Lease, index uint64) registry.Lease { l.CreateIndex = index; return l }
	before, now := created(agenttest.Lease("b", 2, "", 20), 10), created(agenttest.Lease("b", 5, "sb", 30), 30)
	for _, tt := range []struct {
		name          string
		before, store []registry.Lease
		want          string
	}{
		{"nothing back", []registry.Lease{before, now}, nil, "10.5.5.0/24"},
		{"the earlier as it was", []registry.Lease{before, now}, []registry.Lease{before}, "10.5.5.0/24"},
		{"the earlier as it was when it was held", []registry.Lease{before, now},
			[]registry.Lease{created(agenttest.Lease("b", 2, "sb", 15), 10)}, "10.5.5.0/24"},
		{"the earlier, lapsed since", []registry.Lease{before, now},
			[]registry.Lease{created(agenttest.Lease("b", 2, "", 45), 10)}, "10.5.5.0/24"},
		{"the earlier lapsed later than the present one was written",
			[]registry.Lease{created(agenttest.Lease("b", 2, "", 35), 10), now}, nil, "10.5.5.0/24"},
		{"both lapsed", []registry.Lease{before, created(agenttest.Lease("b", 5, "", 40), 30)}, []registry.Lease{before},
			"10.5.5.0/24"},
		{"the present one, written again", []registry.Lease{before, now},
			[]registry.Lease{created(agenttest.Lease("b", 5, "sb", 50), 50)}, "10.5.5.0/24"},
		{"the earlier one, written again", []registry.Lease{before, now},
			[]registry.Lease{created(agenttest.Lease("b", 2, "sb", 50), 50)}, "10.5.2.0/24"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, loadCache(dir, n, time.Minute).save(&View{Network: n, Own: own, Leases: append(tt.before, own)}))
			m, at := loadCache(dir, n, time.Minute), time.Now()
			m.Merge(n, []registry.Lease{own}, at)
			all, _ := m.Merge(n, append(tt.store, own), at)
			peers := Of(all, own, nil)
			if !slices.ContainsFunc(peers, func(p backend.Peer) bool { return p.Subnets[0].String() == tt.want }) {
				t.Errorf("peers %+v of %+v, want %s", peers, all, tt.want)
			}
		})
	}
}

// TestMergeStranger: a remembered record that is gone hides no other, whatever it says.
func TestMergeStranger(t *testing.T) {
	n := testNetwork(t)
	own, b, stranger := agenttest.Lease("a", 1, "sa", 1), agenttest.Lease("b", 2, "sb", 50), agenttest.Lease("b", 9, "sx", 80)
	dir, before := t.TempDir(), belief.NewSeniority(nil, nil)
	before.Update([]registry.Lease{b})
	known := []registry.Lease{b, stranger}
	must(t, loadCache(dir, n, time.Minute).save(&View{Network: n, Own: own, Leases: known, Seniority: before.Update(known)}))
	m := loadCache(dir, n, time.Minute)
	ranked := belief.NewSeniority(m.Leases, m.ranks)
	all, _ := m.Merge(n, []registry.Lease{own, b}, time.Now())
	var got []string
	for _, p := range backend.SortedPeers(Of(all, own, ranked.Update(all))) {
		got = append(got, p.Subnets[0].String())
	}
	if want := []string{"10.5.2.0/24", "10.5.9.0/24"}; !slices.Equal(got, want) {
		t.Errorf("peers %q, want %q", got, want)
	}
}

// TestMergeEnds: once the store has a host again, the store's word about that host counts.
func TestMergeEnds(t *testing.T) {
	n := registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/20")}
	m := &belief.Remembered{Leases: []registry.Lease{agenttest.Lease("b", 2, "sb", 20), agenttest.Lease("c", 3, "", 30)}, Settle: time.Minute}
	now := time.Now()
	for _, tt := range []struct {
		store []registry.Lease
		want  int
	}{
		{nil, 2},
		{[]registry.Lease{agenttest.Lease("b", 2, "sb", 40)}, 2},
		{nil, 1},
		{[]registry.Lease{agenttest.Lease("c", 3, "sc", 50)}, 1},
		{nil, 0},
	} {
		if all, _ := m.Merge(n, tt.store, now); len(all) != tt.want {
			t.Errorf("%+v: %+v", tt.store, all)
		}
	}
}

// TestMergeFlannel: a remembered host that runs flannel stays for as long as its lease lasts, also in the next process, since
// it may not write its record again sooner. Another record about it, or of its subnet, ends that.
func TestMergeFlannel(t *testing.T) {
	n := testNetwork(t)
	own, b, f := agenttest.Lease("a", 1, "sa", 1), agenttest.Lease("b", 2, "sb", 20), agenttest.Lease("f", 3, "flannel-1", 30)
	f.Foreign = true
	dir, start := t.TempDir(), time.Now()
	must(t, loadCache(dir, n, time.Minute).save(&View{Network: n, Own: own, Leases: []registry.Lease{own, b, f}}))
	for _, tt := range []struct {
		name  string
		later time.Duration
		store []registry.Lease
		want  []registry.Lease
		until time.Duration // since start, 0 for never
	}{
		{"at first", 0, nil, []registry.Lease{b, f}, time.Minute},
		{"settled", time.Minute, nil, []registry.Lease{f}, registry.FlannelTTL},
		{"its lease has ended", registry.FlannelTTL, nil, nil, 0},
		{"taken by another host", time.Minute, []registry.Lease{agenttest.Lease("c", 3, "sc", 40)}, []registry.Lease{agenttest.Lease("c", 3, "sc", 40)}, 0},
		{"taken over by leno", time.Minute, []registry.Lease{agenttest.Lease("f", 4, "sf", 40)}, []registry.Lease{agenttest.Lease("f", 4, "sf", 40)}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := loadCache(dir, n, time.Minute)
			m.Foreign = registry.FlannelTTL
			m.Merge(n, nil, start)
			all, until := m.Merge(n, tt.store, start.Add(tt.later))
			node := func(l registry.Lease) string { return fmt.Sprint(l.Node, l.Slot, l.Foreign) }
			if !slices.EqualFunc(all, tt.want, func(a, b registry.Lease) bool { return node(a) == node(b) }) {
				t.Errorf("got %+v, want %+v", all, tt.want)
			}
			want := time.Time{}
			if tt.until > 0 {
				want = start.Add(tt.until)
			}
			if !until.Equal(want) {
				t.Errorf("until %s, want %s", until, want)
			}
		})
	}
}

// TestFlannelSubnets: a host that runs flannel, whose subnets have different numbers in their pools, is remembered with
// them, unless the file is of another plan.
func TestFlannelSubnets(t *testing.T) {
	n := testNetwork(t)
	n.Plan = append(n.Plan, agenttest.Plan(t, "fd00:5::/52")...)
	own, f := agenttest.Lease("a", 1, "sa", 1), agenttest.Lease("f", 3, "flannel-1", 30)
	f.Foreign, f.Subnets = true, []netip.Prefix{n.Plan.Subnets(3)[0], n.Plan.Subnets(9)[1]}
	dir := t.TempDir()
	must(t, loadCache(dir, n, time.Minute).save(&View{Network: n, Own: own, Leases: []registry.Lease{f}}))
	if got := loadCache(dir, n, time.Minute).Leases; len(got) != 1 || !slices.Equal(got[0].Subnets, f.Subnets) || !got[0].Foreign {
		t.Errorf("remembered %+v", got)
	}
	taken := agenttest.Lease("d", 9, "sd", 40)
	taken.Subnets = n.Plan.Subnets(9)
	if all, _ := loadCache(dir, n, time.Minute).Merge(n, []registry.Lease{taken}, time.Now()); len(all) != 1 {
		t.Errorf("another host has one of its subnets: %+v", all)
	}
	n.Plan = append(n.Plan[:1:1], agenttest.Plan(t, "fd00:6::/52")...)
	if got := loadCache(dir, n, time.Minute).Leases; len(got) > 0 {
		t.Errorf("remembered %+v in %v", got, n.Plan.Prefixes())
	}
}

func TestLoadCache(t *testing.T) {
	n := testNetwork(t)
	own, b := agenttest.Lease("a", 1, "sa", 1), agenttest.Lease("b", 2, "sb", 20)
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, path string, n *registry.Network)
		want   int
	}{
		{"as written", func(*testing.T, string, *registry.Network) {}, 1},
		{"missing", func(t *testing.T, path string, _ *registry.Network) { must(t, os.Remove(path)) }, 0},
		{"broken", func(t *testing.T, path string, _ *registry.Network) {
			must(t, os.WriteFile(path, []byte("{"), 0o600))
		}, 0},
		{"of another version", func(t *testing.T, path string, _ *registry.Network) {
			must(t, os.WriteFile(path, []byte(`{"version":9,"network":"n"}`), 0o600))
		}, 0},
		{"of another plan", func(t *testing.T, _ string, n *registry.Network) { n.Plan = agenttest.Plan(t, "10.6.0.0/20") }, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, n := t.TempDir(), n
			m := loadCache(dir, n, time.Minute)
			b.Foreign = true
			must(t, m.save(&View{Network: n, Own: own, Leases: []registry.Lease{own, b}}))
			before, err := os.Stat(state.PeersPath(dir, "n"))
			must(t, err)
			must(t, m.save(&View{Network: n, Own: own, Leases: []registry.Lease{own, b}}))
			must(t, loadCache(dir, n, time.Minute).save(&View{Network: n, Own: own, Leases: []registry.Lease{own, b}}))
			if again, err := os.Stat(state.PeersPath(dir, "n")); err != nil || !os.SameFile(before, again) {
				t.Errorf("written again: %v", err)
			}
			tt.change(t, state.PeersPath(dir, "n"), &n)
			if got := loadCache(dir, n, time.Minute).Leases; len(got) != tt.want || tt.want > 0 && !got[0].Foreign {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestSavePause(t *testing.T) {
	for leases, want := range map[int]time.Duration{
		0:       time.Second,
		100:     time.Second,
		1000:    6 * time.Second,
		100_000: time.Minute,
	} {
		if got := savePause(leases); got != want {
			t.Errorf("%d leases: %s, want %s", leases, got, want)
		}
	}
}
