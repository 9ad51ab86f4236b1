package ui

import (
	"fmt"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
)

// Size of a sparkline.
const (
	sparkPoints = 120 // the most that a history has
	sparkPitch  = 2   // from one point to the next
	sparkHeight = 20
)

// spark is the drawing of the loss on a path: a line where packets were sent, and a bar for each point with loss.
type spark struct {
	W, H  int
	Sent  string // paths
	Lost  string
	Label string
}

// newSpark draws a history, the latest point at the right edge.
func newSpark(now time.Time, h *api.PathHistory) spark {
	out := spark{W: sparkPoints * sparkPitch, H: sparkHeight}
	points := h.Loss[max(0, len(h.Loss)-sparkPoints):]
	step := time.Duration(h.StepSeconds) * time.Second
	var sent, lost strings.Builder
	worst, last := 0, time.Time{}
	for i, loss := range points {
		if loss < 0 {
			continue
		}
		x := (sparkPoints - len(points) + i) * sparkPitch
		if i == 0 || points[i-1] < 0 {
			fmt.Fprintf(&sent, "M%d %dH", x, sparkHeight-1)
		}
		if i == len(points)-1 || points[i+1] < 0 {
			fmt.Fprint(&sent, x+sparkPitch)
		}
		if loss > 0 {
			fmt.Fprintf(&lost, "M%d %dv-%d", x+sparkPitch/2, sparkHeight-1, 2+int(loss)*(sparkHeight-3)/100)
			worst, last = max(worst, int(loss)), h.Last.Add(-time.Duration(len(points)-1-i)*step)
		}
	}
	out.Sent, out.Lost = sent.String(), lost.String()
	out.Label = fmt.Sprintf("Loss in the last %s: ", age(time.Duration(len(points))*step))
	if worst == 0 {
		out.Label += "none"
		return out
	}
	out.Label += fmt.Sprintf("up to %d %% in %s, last at %s UTC", worst, age(step), clock(now, last))
	return out
}
