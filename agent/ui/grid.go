package ui

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/lenonet/leno/registry"
)

// Bounds of the map of slots.
const (
	mostCells   = 1024 // a larger network has several slots in one
	titledCells = 300  // with more cells that are not free, none has a text of its own
	pitch       = 14   // from one cell to the next
	side        = 10   // of a cell
)

// grid is the map of a network's slots, drawn as squares in rows. A square is one slot, or as many slots as keep the
// map readable.
type grid struct {
	Cells         []cell // those that are not free
	Lines         []line // of free cells
	Width, Height int
	Per           uint64 // slots in a cell
	Total         uint64 // slots given to hosts
	Counts        []count
	First, Last   string // subnets
}

// cell is one square.
type cell struct {
	X, Y  int
	Shape string // id of a symbol
	Title string
	Row   string // id of the table's row, "" for several
}

// line is a run of adjacent squares.
type line struct{ X, Y, To int }

// count is the number of slots in a state.
type count struct {
	State State
	N     uint64
}

// newGrid draws the slots that hosts are given, and other slots that have rows.
func newGrid(plan registry.Plan, rows []Row, id func(Row) string) grid {
	if len(plan) == 0 {
		return grid{}
	}
	first, last := plan.Range()
	g := grid{Total: last - first + 1, Counts: counts(last-first+1, plan, rows),
		First: plan.Subnets(first)[0].String(), Last: plan.Subnets(last)[0].String()}
	for _, r := range rows {
		first, last = min(first, r.Slot), max(last, r.Slot)
	}
	g.Per = 1
	for (last-first)/g.Per >= mostCells {
		g.Per *= 2
	}
	first -= first % g.Per
	cells := (last-first)/g.Per + 1
	columns := columnsFor(cells)
	start := first
	if cells > uint64(columns) { // so that rows begin at round subnets
		start -= first % (g.Per * uint64(columns))
	}
	at := func(slot uint64) (x, y int) {
		k := int((slot - start) / g.Per)
		return k % columns * pitch, k / columns * pitch
	}
	for slot := first; ; {
		x, y := at(slot)
		left := uint64(columns-x/pitch) * g.Per
		end := min(last, slot+left-1)
		to, _ := at(end)
		g.Lines = append(g.Lines, line{x, y + side/2, to + side})
		if end == last {
			g.Width, g.Height = columns*pitch-(pitch-side), y+side
			break
		}
		slot = end + 1
	}
	g.draw(rows, at, id)
	return g
}

// columnsFor returns a number of columns that makes maps about twice as wide as high: a power of two for more than 8
// cells.
func columnsFor(cells uint64) int {
	if cells <= 8 {
		return int(cells)
	}
	return 1 << min(max((bits.Len64(cells-1)+2)/2, 3), 6)
}

// draw adds the cells that are not free.
func (g *grid) draw(rows []Row, at func(uint64) (int, int), id func(Row) string) {
	rows = slices.SortedFunc(slices.Values(rows), func(a, b Row) int { return int(a.Slot/g.Per) - int(b.Slot/g.Per) })
	for i := 0; i < len(rows); {
		n := 1
		for i+n < len(rows) && rows[i+n].Slot/g.Per == rows[i].Slot/g.Per {
			n++
		}
		g.Cells = append(g.Cells, g.cellOf(rows[i:i+n], at, id))
		i += n
	}
	if len(g.Cells) > titledCells {
		for i := range g.Cells {
			g.Cells[i].Title, g.Cells[i].Row = "", ""
		}
	}
}

func (g *grid) cellOf(rows []Row, at func(uint64) (int, int), id func(Row) string) cell {
	x, y := at(rows[0].Slot)
	state, words := Free, []string{}
	for _, r := range rows {
		state = max(state, r.State)
		if len(words) < 3 {
			words = append(words, fmt.Sprintf("%s %s %s", r.Subnets[0], r.State, r.Node))
		}
	}
	c := cell{X: x, Y: y, Shape: state.String(), Title: strings.Join(words, ", ")}
	switch {
	case len(rows) == 1:
		c.Row = id(rows[0])
	default:
		c.Title = fmt.Sprintf("%d of %d slots: %s", len(rows), g.Per, c.Title)
	}
	// If one square stands for many slots, its height shows how full it is.
	if state == Held && g.Per > 1 {
		c.Shape = fmt.Sprintf("h%d", 1+min(uint64(len(rows)-1)*4/g.Per, 3))
	}
	return c
}

// counts returns how many slots are in each state, best known first.
func counts(total uint64, plan registry.Plan, rows []Row) []count {
	var n [Contradictory + 1]uint64
	inside := uint64(0)
	for _, r := range rows {
		n[r.State]++
		if plan.InRange(r.Slot) {
			inside++
		}
	}
	n[Free] = total - min(inside, total)
	var out []count
	for _, s := range []State{Own, Held, Lapsed, Reserved, Contradictory, Free} {
		if n[s] > 0 || s == Free {
			out = append(out, count{s, n[s]})
		}
	}
	return out
}

// W returns the width of the drawing with a margin of one on each side.
func (g grid) W() int { return g.Width + 2 }

// H returns the height with the same margin.
func (g grid) H() int { return g.Height + 2 }

// Wide returns the width of the map where there is room, in pixels.
func (g grid) Wide() int { return min(g.W()*3/2, 720) }

// Sentence describes the map in words.
func (g grid) Sentence() string {
	var parts []string
	for _, c := range g.Counts {
		parts = append(parts, number(c.N)+" "+c.State.String())
	}
	return fmt.Sprintf("%s slots: %s", number(g.Total), strings.Join(parts, ", "))
}

// span is a run of adjacent free slots.
type span struct {
	From, To string
	N        uint64
}

// freeSpans returns the free slots that hosts are given, at most the first most spans, and whether there are more.
func freeSpans(plan registry.Plan, rows []Row, most int) (out []span, more bool) {
	if len(plan) == 0 {
		return nil, false
	}
	first, last := plan.Range()
	taken := []uint64{}
	for _, r := range rows {
		if plan.InRange(r.Slot) {
			taken = append(taken, r.Slot)
		}
	}
	slices.Sort(taken)
	add := func(from, to uint64) {
		out = append(out, span{plan.Subnets(from)[0].String(), plan.Subnets(to)[0].String(), to - from + 1})
	}
	next := first
	for _, slot := range slices.Compact(taken) {
		if slot > next {
			add(next, slot-1)
		}
		next = slot + 1
	}
	if next <= last {
		add(next, last)
	}
	if len(out) > most {
		return out[:most], true
	}
	return out, false
}
