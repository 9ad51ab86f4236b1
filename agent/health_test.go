package agent

import (
	"testing"
	"time"

	"github.com/lenonet/leno/api"
)

func TestHealthReport(t *testing.T) {
	now := time.Unix(100, 0)
	h := newHealth(func() time.Time { return now })
	h.ready("n", false)
	if r, _ := h.report(); r.Status != api.Passing || r.Ready {
		t.Errorf("empty: %+v", r)
	}
	_, changed := h.report()
	if !h.set("n", checkLease, api.Passing, "held") {
		t.Error("a new check did not count as a change")
	}
	select {
	case <-changed:
	default:
		t.Error("nobody was woken")
	}
	h.ready("n", true)
	if r, _ := h.report(); r.Status != api.Passing || !r.Ready {
		t.Errorf("ready: %+v", r)
	}

	now = time.Unix(200, 0)
	if h.set("n", checkLease, api.Passing, "held") {
		t.Error("an unchanged check counted as a change")
	}
	if h.set("n", checkLease, api.Passing, "held still") {
		t.Error("another reason alone counted as a change of status")
	}
	r, _ := h.report()
	if c := r.Networks[0].Checks[0]; c.Reason != "held still" || !c.Since.Equal(time.Unix(100, 0)) {
		t.Errorf("%+v", c)
	}
	h.set("n", checkLease, api.Warning, "not renewed")
	h.set("", checkConsul, api.Passing, "answers")
	r, _ = h.report()
	if r.Status != api.Warning || r.Networks[0].Status != api.Warning || !r.Networks[0].Checks[0].Since.Equal(now) {
		t.Errorf("%+v", r)
	}
	h.set("m", checkRoutes, api.Critical, "broken")
	if r, _ = h.report(); r.Status != api.Critical || r.Ready {
		t.Errorf("%+v", r)
	}
	h.forget("m")
	h.clear("n", checkLease)
	if r, _ = h.report(); r.Status != api.Passing || len(r.Networks) != 1 || len(r.Networks[0].Checks) != 0 {
		t.Errorf("%+v", r)
	}
}
