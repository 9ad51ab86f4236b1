package paths

import (
	"net/netip"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/lenonet/leno/api"
)

func TestHistory(t *testing.T) {
	var h history
	began := time.Now()
	add := func(after time.Duration, sent, lost int, want ...int8) {
		t.Helper()
		before, points := h.shown, []int8(nil)
		if before != nil {
			points = slices.Clone(before.Loss)
		}
		h.add(began.Add(after), sent, lost)
		if h.shown == nil {
			if len(want) > 0 {
				t.Errorf("after %s: no history, want %v", after, want)
			}
			return
		}
		if !slices.Equal(h.shown.Loss, want) || h.shown.StepSeconds != 120 {
			t.Errorf("after %s: %+v, want %v", after, h.shown, want)
		}
		if want := began.Add(after.Truncate(historyStep)); sent > 0 && !h.shown.Last.Equal(want) {
			t.Errorf("after %s: the last point began at %s, want %s", after, h.shown.Last, want)
		}
		if before != nil && !slices.Equal(before.Loss, points) {
			t.Errorf("after %s: what was published is changed from %v to %v", after, points, before.Loss)
		}
	}
	add(0, 0, 0)
	add(0, 1, 0, 0)
	add(time.Minute, 1, 1, 50)
	add(2*time.Minute-1, 998, 0, 1) // rounded up
	add(2*time.Minute, 5, 5, 1, 100)
	add(3*time.Minute, 0, 0, 1, 100)
	add(9*time.Minute, 1, 0, 1, 100, -1, -1, 0)
	h.add(began.Add(1000*time.Hour), 2, 1)
	if got := h.shown.Loss; len(got) != historyPoints || got[0] != -1 || got[historyPoints-2] != -1 || got[historyPoints-1] != 50 {
		t.Errorf("after a long time: %v", got)
	}
}

// TestHistoryBounds: the histories of a thousand peers take less than a megabyte, also while a reader holds another
// version of each.
func TestHistoryBounds(t *testing.T) {
	var h history
	now := time.Now()
	for range 10 * historyPoints {
		h.add(now, 5, 5)
		now = now.Add(historyStep)
	}
	one := cap(h.shown.Loss) + int(unsafe.Sizeof(h)) + int(unsafe.Sizeof(*h.shown))
	if len(h.shown.Loss) != historyPoints || 1000*2*one > 1_000_000 {
		t.Errorf("%d points, and %d bytes for one peer", len(h.shown.Loss), one)
	}
}

// TestAddPaths: a history is there only where it is asked for, and only of peers in the datapath.
func TestAddPaths(t *testing.T) {
	s := simulate(t, 3)
	path := api.PeerPath{State: api.PathReached, History: &api.PathHistory{Loss: []int8{0}}}
	s.monitor.publish("n", map[netip.Prefix]api.PeerPath{s.peers[0].Subnets[0]: path, s.peers[1].Subnets[0]: path}, nil)
	s.peers[1].Skipped = "its address is used twice"
	for _, withHistory := range []bool{true, false} {
		peers := slices.Clone(s.peers)
		s.monitor.AddPaths("n", peers, withHistory)
		if p := peers[0].Path; p == nil || p.State != api.PathReached || (p.History != nil) != withHistory {
			t.Errorf("history %t: %+v", withHistory, p)
		}
		if peers[1].Path != nil || peers[2].Path != nil {
			t.Errorf("paths to a peer that is left out, or not tested: %+v", peers[1:])
		}
	}
	if s.monitor.Of("n")[s.peers[0].Subnets[0]].History == nil {
		t.Error("what is known is changed")
	}
}

// TestJudgeHistory: what a probe finds is in the history of the path, except for echo requests that the peer's rules drop.
func TestJudgeHistory(t *testing.T) {
	var p path
	now := time.Now()
	filtered := probed(way(peer4, 5, 0, 0))
	filtered.Reached = true
	for _, step := range []struct {
		result api.PeerProbe
		want   []int8
	}{
		{filtered, nil},
		{probed(way(peer4, 5, 4, 1450)), []int8{20}},
		{probed(way(peer4, 5, 0, 0)), []int8{20, 100}},
		{filtered, []int8{20, 100}},
	} {
		p.judge(step.result, now)
		now = now.Add(historyStep)
		if step.want == nil && p.shown.History == nil {
			continue
		}
		if p.shown.History == nil || !slices.Equal(p.shown.History.Loss, step.want) {
			t.Fatalf("%+v, want %v", p.shown.History, step.want)
		}
	}
}
