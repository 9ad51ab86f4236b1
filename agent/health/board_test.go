package health

import (
	"slices"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
)

func TestBoard(t *testing.T) {
	now := time.Unix(100, 0)
	h := New(func() time.Time { return now }, nil)
	h.SetReady("n", false)
	if r, _ := h.Report(); r.Status != api.Passing || r.Ready {
		t.Errorf("empty: %+v", r)
	}
	_, changed := h.Report()
	if !h.Set("n", Lease, api.Passing, "held") {
		t.Error("a new check did not count as a change")
	}
	select {
	case <-changed:
	default:
		t.Error("no reader was woken")
	}
	h.SetReady("n", true)
	if r, _ := h.Report(); r.Status != api.Passing || !r.Ready {
		t.Errorf("ready: %+v", r)
	}

	now = time.Unix(200, 0)
	if h.Set("n", Lease, api.Passing, "held") {
		t.Error("an unchanged check counted as a change")
	}
	if h.Set("n", Lease, api.Passing, "held still") {
		t.Error("another reason alone counted as a change of status")
	}
	r, _ := h.Report()
	if c := r.Networks[0].Checks[0]; c.Reason != "held still" || !c.Since.Equal(time.Unix(100, 0)) {
		t.Errorf("%+v", c)
	}
	h.Set("n", Lease, api.Warning, "not renewed")
	h.Set("", Consul, api.Passing, "answers")
	r, _ = h.Report()
	if r.Status != api.Warning || r.Networks[0].Status != api.Warning || !r.Networks[0].Checks[0].Since.Equal(now) {
		t.Errorf("%+v", r)
	}
	h.Set("m", Routes, api.Critical, "broken")
	if r, _ = h.Report(); r.Status != api.Critical || r.Ready {
		t.Errorf("%+v", r)
	}
	h.Forget("m")
	h.Clear("n", Lease)
	if r, _ = h.Report(); r.Status != api.Passing || len(r.Networks) != 1 || len(r.Networks[0].Checks) != 0 {
		t.Errorf("%+v", r)
	}
}

// TestResolve: the end of a fault of the agent is a change of status only if there was one.
func TestResolve(t *testing.T) {
	var changes []string
	h := New(time.Now, func(_ string, c api.Check) { changes = append(changes, c.Status) })
	for range 2 {
		h.Resolve("", Firewall, "right")
		h.Set("", Firewall, api.Warning, "wrong")
		h.Resolve("", Firewall, "right")
	}
	if r, _ := h.Report(); len(r.Checks) != 0 || !slices.Equal(changes, []string{api.Warning, api.Passing, api.Warning, api.Passing}) {
		t.Errorf("changes %q, checks %+v", changes, r.Checks)
	}
}

func TestDescribe(t *testing.T) {
	h := New(time.Now, nil)
	is := func(want string) {
		t.Helper()
		report, _ := h.Report()
		if got := Describe(report); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	h.Set("n", Lease, api.Passing, "held")
	is("all checks are passing")
	h.Set("", Consul, api.Warning, "away")
	h.Set("n", Routes, api.Critical, "broken")
	is("consul: away\nn routes: broken")
}
