package ui

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lenonet/leno/registry"
)

// drawn returns a map as text: one letter for each square, taken from the lines and cells as a browser draws them.
func drawn(g grid) string {
	rows := g.Height/pitch + 1
	columns := g.Width/pitch + 1
	squares := make([][]byte, rows)
	for y := range squares {
		squares[y] = []byte(strings.Repeat(" ", columns))
	}
	for _, l := range g.Lines {
		for x := l.X; x < l.To; x += pitch {
			squares[l.Y/pitch][x/pitch] = '.'
		}
	}
	for _, c := range g.Cells {
		letter := c.Shape[0]
		if len(c.Shape) == 2 { // its fill level
			letter = c.Shape[1]
		}
		squares[c.Y/pitch][c.X/pitch] = letter
	}
	var out []string
	for _, s := range squares {
		out = append(out, strings.TrimRight(string(s), " "))
	}
	return strings.Join(out, "\n")
}

func rowsAt(plan registry.Plan, states map[uint64]State) (out []Row) {
	for slot, s := range states {
		out = append(out, Row{Slot: slot, State: s, Subnets: plan.Subnets(slot), Node: fmt.Sprint("h", slot)})
	}
	return out
}

func TestMap(t *testing.T) {
	for _, tt := range []struct {
		name      string
		prefix    string
		subnetLen int
		states    map[uint64]State
		want      string
		sentence  string
	}{
		{"three slots", "10.5.0.0/22", 24, map[uint64]State{1: Own, 3: Lapsed}, "o.l", "3 slots: 1 own, 1 lapsed, 1 free"},
		{"every state", "10.5.0.0/20", 24, map[uint64]State{1: Own, 2: Held, 5: Lapsed, 9: Reserved, 15: Contradictory},
			" oh..l..\n.r.....c", "15 slots: 1 own, 1 held, 1 lapsed, 1 reserved, 1 contradictory, 10 free"},
		{"a slot outside the range", "10.5.0.0/21", 24, map[uint64]State{0: Held, 7: Held}, "h......h", "7 slots: 2 held, 6 free"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plan := planOf(t, tt.prefix, tt.subnetLen)
			g := newGrid(plan, rowsAt(plan, tt.states), func(r Row) string { return r.Node })
			if got := drawn(g); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
			if g.Sentence() != tt.sentence {
				t.Error(g.Sentence())
			}
		})
	}
}

// TestMapOfManySlots checks that a map has room for every slot and stays readable, whatever the size.
func TestMapOfManySlots(t *testing.T) {
	for _, tt := range []struct {
		prefix    string
		subnetLen int
		per       uint64
		width     int
	}{
		{"10.5.0.0/22", 24, 1, 3}, {"10.5.0.0/16", 24, 1, 32}, {"10.16.0.0/14", 24, 1, 64}, {"10.0.0.0/12", 24, 4, 64},
		{"10.0.0.0/8", 24, 64, 64}, {"fd00:5::/32", 64, 1 << 22, 64},
	} {
		t.Run(tt.prefix, func(t *testing.T) {
			plan := planOf(t, tt.prefix, tt.subnetLen)
			first, last := plan.Range()
			states := map[uint64]State{first: Own, last: Held, last - 1: Held}
			g := newGrid(plan, rowsAt(plan, states), func(r Row) string { return r.Node })
			text := drawn(g)
			lines := strings.Split(text, "\n")
			if g.Per != tt.per || len(lines[len(lines)-1]) > tt.width || g.Width != tt.width*pitch-(pitch-side) || len(text) > mostCells+len(lines) {
				t.Errorf("%d slots a square, %d wide:\n%s", g.Per, g.Width, text)
			}
			if !strings.Contains(text, "o") || strings.Trim(text[len(text)-1:], "h1234") != "" {
				t.Errorf("first or last are not where they belong:\n%s", text)
			}
		})
	}
}

func TestFreeSpans(t *testing.T) {
	plan := planOf(t, "10.5.0.0/20", 24)
	text := func(list []span) string {
		var out []string
		for _, s := range list {
			out = append(out, fmt.Sprintf("%s-%s:%d", s.From, s.To, s.N))
		}
		return strings.Join(out, " ")
	}
	spans, more := freeSpans(plan, rowsAt(plan, map[uint64]State{1: Own, 2: Held, 5: Lapsed, 15: Held}), 10)
	if got := text(spans); more || got != "10.5.3.0/24-10.5.4.0/24:2 10.5.6.0/24-10.5.14.0/24:9" {
		t.Errorf("%s, more %v", got, more)
	}
	if spans, more := freeSpans(plan, rowsAt(plan, map[uint64]State{2: Own, 4: Held}), 2); !more || len(spans) != 2 {
		t.Errorf("%s, more %v", text(spans), more)
	}
}
