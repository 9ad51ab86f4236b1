package main

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Sizes in pixels.
const (
	width      = 1120
	boxHeight  = 26
	boxGap     = 14 // between two boxes of a row
	rowGap     = 46 // between two rows
	letterWide = 6.9
	padding    = 9
	margin     = 16
)

// style is legible on a light page and on a dark one. A box has the class of its
// package's top folder.
const style = `
svg{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace}
.page{fill:#fff;stroke:#c8d0d9}
.box{stroke:#5b6b7d;fill:#eef1f4}
.agent{fill:#dcebfb}.command{fill:#e8e2f8}.registry{fill:#fbe9d3}.backend{fill:#dcf3e1}.api{fill:#f9dde4}
text{fill:#17212b;text-anchor:middle}
path{fill:none;stroke:#8895a3;stroke-width:1;opacity:.75}
`

// box is a package's place in the picture.
type box struct{ left, top, wide float64 }

func (b box) middle() float64 { return b.left + b.wide/2 }

// draw returns the picture of a graph, the package that nothing imports at the top.
// The same graph always gives the same bytes.
func draw(g graph) ([]byte, error) {
	floors, err := g.floors()
	if err != nil {
		return nil, err
	}
	direct := g.direct()
	rows := arrange(floors, direct)
	boxes, height := place(rows)

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%d" height="%.0f" `+
		`role="img" aria-labelledby="title description">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<title id=\"title\">The packages of leno</title>\n"+
		"<desc id=\"description\">%d packages. Each one imports only packages below it.</desc>\n", len(g))
	fmt.Fprintf(&b, "<style>%s</style>\n", style)
	fmt.Fprintf(&b, `<rect class="page" x=".5" y=".5" width="%d" height="%.0f" rx="8"/>`+"\n", width-1, height-1)
	for _, name := range slices.Sorted(maps.Keys(direct)) {
		for _, imported := range direct[name] {
			arrow(&b, name, imported, boxes[name], boxes[imported])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(boxes)) {
		top, _, _ := strings.Cut(name, "/")
		x := boxes[name]
		fmt.Fprintf(&b, `<rect class="box %s" x="%.1f" y="%.1f" width="%.1f" height="%d" rx="5"/><text x="%.1f" y="%.1f">%s</text>`+"\n",
			top, x.left, x.top, x.wide, boxHeight, x.middle(), x.top+boxHeight-9, name)
	}
	b.WriteString("</svg>\n")
	return b.Bytes(), nil
}

func arrow(b *bytes.Buffer, name, imported string, from, to box) {
	top, bottom := from.top+boxHeight, to.top
	half := (bottom - top) / 2
	fmt.Fprintf(b, `<path d="M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f"><title>%s imports %s</title></path>`+"\n",
		from.middle(), top, from.middle(), top+half, to.middle(), bottom-half, to.middle(), bottom, name, imported)
}

// arrange turns floors into rows that fit the picture's width, the highest first,
// and orders the packages of each row by those that import them.
func arrange(floors [][]string, direct graph) [][]string {
	var rows [][]string
	at := map[string]float64{} // a package's place in its row, 0 to 1
	for _, floor := range slices.Backward(floors) {
		weight := map[string]float64{}
		for _, name := range floor {
			weight[name] = importers(name, direct, at)
		}
		slices.SortStableFunc(floor, func(a, b string) int { return cmp.Or(cmp.Compare(weight[a], weight[b]), strings.Compare(a, b)) })
		count := 1 + int(rowWidth(floor)/(width-2*margin))
		for part := range slices.Chunk(floor, (len(floor)+count-1)/count) {
			rows = append(rows, part)
			for i, name := range part {
				at[name] = (float64(i) + 0.5) / float64(len(part))
			}
		}
	}
	return rows
}

// importers returns the mean place of the packages that import one, the middle
// when there are none.
func importers(name string, direct graph, at map[string]float64) float64 {
	sum, count := 0.0, 0.0
	for importer, imports := range direct {
		if slices.Contains(imports, name) {
			sum, count = sum+at[importer], count+1
		}
	}
	if count == 0 {
		return 0.5
	}
	// Additions of floating-point numbers depend on their order, which is that of a map.
	return float64(int(1e6*sum/count+0.5)) / 1e6
}

func boxWidth(name string) float64 { return float64(len(name))*letterWide + 2*padding }

func rowWidth(row []string) float64 {
	total := float64(len(row)-1) * boxGap
	for _, name := range row {
		total += boxWidth(name)
	}
	return total
}

// place returns where each package's box is, and the picture's height.
func place(rows [][]string) (boxes map[string]box, height float64) {
	boxes = map[string]box{}
	top := float64(margin)
	for _, row := range rows {
		gap := (width - 2*margin - rowWidth(row)) / float64(len(row)+1)
		left := margin + gap
		for _, name := range row {
			boxes[name] = box{left: left, top: top, wide: boxWidth(name)}
			left += boxWidth(name) + boxGap + gap
		}
		top += boxHeight + rowGap
	}
	return boxes, top - rowGap + margin
}
