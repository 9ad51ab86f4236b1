package paths

import (
	"math"
	"slices"
	"time"

	"github.com/lenonet/leno/api"
)

// The history of a path has a point for each step of time: 4 hours in at most historyPoints bytes.
const (
	historyStep   = 2 * time.Minute
	historyPoints = 120
)

// history is the loss on a path over the last hours.
type history struct {
	shown      *api.PathHistory // nil before the first packet; what it points to is never changed
	sent, lost int              // packets in its last step
}

// add counts small packets.
func (h *history) add(now time.Time, sent, lost int) {
	if sent == 0 {
		return
	}
	before, passed := api.PathHistory{Last: now}, 1
	if h.shown != nil {
		before = *h.shown
		passed = max(0, int(now.Sub(before.Last)/historyStep))
		before.Last = before.Last.Add(time.Duration(passed) * historyStep)
	}
	if passed > 0 {
		h.sent, h.lost = 0, 0
	}
	h.sent, h.lost = h.sent+sent, h.lost+lost
	points := slices.Concat(before.Loss, slices.Repeat([]int8{-1}, min(passed, historyPoints)))
	points = slices.Clone(points[max(0, len(points)-historyPoints):])
	points[len(points)-1] = int8(math.Ceil(100 * float64(h.lost) / float64(h.sent)))
	h.shown = &api.PathHistory{StepSeconds: int(historyStep.Seconds()), Last: before.Last, Loss: points}
}
