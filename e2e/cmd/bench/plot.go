package main

import (
	"fmt"
	"html/template"
	"io"
)

// plotted returns the figures of the plot, one panel each.
func plotted() []string {
	return []string{
		tcp(1), tcp(4), udpReceived(64), udpReceived(1400),
		"ping_average", "load_average", machineCPU(1), meanCPU(1), memory,
	}
}

// Sizes of the plot in pixels.
const (
	plotColumns = 3
	panelWidth  = 360
	labelWidth  = 100 // for the contenders' names
	barWidth    = 180 // of the longest bar; the value follows it
	barHeight   = 16
	barStep     = 24
	titleHeight = 30
)

// A panel shows one figure: one bar per contender, starting at 0.
type panel struct {
	X, Y  int
	Title string
	Bars  []bar
}

type bar struct {
	Y           int
	Name, Text  string
	Width       float64 // up to the median
	Left, Right float64 // ends of the range
	Ours        bool
}

// plot writes an SVG with the medians as bars and the ranges as lines on them.
func (r *result) plot(out io.Writer) error {
	var panels []panel
	height := titleHeight + barStep*len(r.Contenders) + barHeight
	for _, key := range plotted() {
		for _, f := range r.Figures {
			if f.Key != key {
				continue
			}
			n := len(panels)
			panels = append(panels, panel{
				X: n % plotColumns * panelWidth, Y: titleHeight + n/plotColumns*height,
				Title: f.Name + ", " + f.Unit, Bars: r.bars(f),
			})
		}
	}
	rows := (len(panels) + plotColumns - 1) / plotColumns
	return plotTemplate().Execute(out, map[string]any{
		"Width": plotColumns * panelWidth, "Height": 2*titleHeight + rows*height, "Panels": panels,
		"Title": fmt.Sprintf("%s, %d CPUs, Linux %s, %s: medians and ranges, rounds: %d", r.Date, r.CPUs, r.Kernel, r.Leno, r.Rounds),
		"Label": labelWidth, "Thick": barHeight,
	})
}

func (r *result) bars(f figure) (out []bar) {
	var most float64
	for _, c := range r.Contenders {
		if s := c.Values[f.Key]; s != nil {
			most = max(most, s.Max)
		}
	}
	for i, c := range r.Contenders {
		s := c.Values[f.Key]
		b := bar{Y: titleHeight + i*barStep, Name: c.Name, Text: "–", Ours: hasAims(c.Name)}
		if s != nil {
			scale := func(v float64) float64 { return labelWidth + barWidth*v/max(most, 1e-9) }
			b.Text = fmt.Sprintf("%.*f", f.digits, s.Median)
			b.Width, b.Left, b.Right = scale(s.Median)-labelWidth, scale(s.Min), scale(s.Max)
		}
		out = append(out, b)
	}
	return out
}

func plotTemplate() *template.Template {
	return template.Must(template.New("plot").Funcs(template.FuncMap{
		"middle": func(y int) int { return y + barHeight/2 },
		"base":   func(y int) int { return y + barHeight - 4 },
		"behind": func(b bar) float64 { return max(b.Right, labelWidth) + 6 },
	}).Parse(`<svg xmlns="http://www.w3.org/2000/svg" width="{{.Width}}" height="{{.Height}}" viewBox="0 0 {{.Width}} {{.Height}}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>
<text x="8" y="20" fill="#555">{{.Title}}</text>
{{range .Panels}}<g transform="translate({{.X}} {{.Y}})">
<text x="8" y="20" font-weight="bold">{{.Title}}</text>
{{range .Bars}}<text x="{{$.Label}}" y="{{base .Y}}" dx="-6" text-anchor="end">{{.Name}}</text>
<rect x="{{$.Label}}" y="{{.Y}}" width="{{printf "%.1f" .Width}}" height="{{$.Thick}}" fill="{{if .Ours}}#c2410c{{else}}#94a3b8{{end}}"/>
{{if lt .Left .Right}}<path d="M{{printf "%.1f" .Left}} {{middle .Y}}H{{printf "%.1f" .Right}}" stroke="#111" stroke-width="2"/>
{{end}}<text x="{{behind . | printf "%.1f"}}" y="{{base .Y}}">{{.Text}}</text>
{{end}}</g>
{{end}}</svg>
`))
}
