package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// A picture is an animated drawing of a terminal. Each line is in it once, as text, and appears at
// its time. The lines move up when there are more than rows. Without animation, or for readers who
// want no motion, the picture shows the end.
type picture struct {
	title, description string
	columns, rows      int
	lines              []line
	hold               time.Duration // how long the end stays before the animation starts over
}

// Sizes in pixels. A column is as wide as in the widest of the common monospaced fonts.
const (
	fontSize   = 14
	columnWide = 8.43
	rowHigh    = 20
	margin     = 16
)

// look is the style sheet of a terminal that is legible on light and dark pages.
const look = `
svg{font:%dpx ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace}
rect{fill:#10161d;stroke:#3d4b5c}
text{fill:#d5dde6;white-space:pre}
.bold{fill:#fff;font-weight:bold}
.grey{fill:#8a99ab}
.title{fill:#62d2e8;font-weight:bold}
.green{fill:#6fdc8c}
`

// class returns the CSS class of a style.
func class(style string) (string, error) {
	switch style {
	case "1":
		return "bold", nil
	case "90":
		return "grey", nil
	case "1;36":
		return "title", nil
	case "32":
		return "green", nil
	}
	return "", fmt.Errorf("a style, %q, that it does not know", style)
}

// length returns the duration of the animation.
func (p *picture) length() time.Duration { return p.lines[len(p.lines)-1].at + p.hold }

// percent returns a moment of the animation as a percentage.
func (p *picture) percent(at time.Duration) string {
	return strings.TrimSuffix(fmt.Sprintf("%.2f", 100*at.Seconds()/p.length().Seconds()), ".00") + "%"
}

func (p *picture) svg() ([]byte, error) {
	wide, high := float64(p.columns)*columnWide+2*margin, p.rows*rowHigh+2*margin
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" role="img" aria-labelledby="title description">`+"\n", wide, high, wide, high)
	fmt.Fprintf(&b, "<title id=\"title\">%s</title>\n<desc id=\"description\">%s</desc>\n", escaped(p.title), escaped(p.description))
	fmt.Fprintf(&b, "<style>"+look, fontSize)
	p.rules(&b)
	b.WriteString("</style>\n")
	fmt.Fprintf(&b, `<rect x=".5" y=".5" width="%.0f" height="%d" rx="8"/>`+"\n", wide-1, high-1)
	fmt.Fprintf(&b, `<svg x="%d" y="%d" width="%.0f" height="%d"><g id="s">`+"\n", margin, margin, wide-2*margin, p.rows*rowHigh)
	for i, l := range p.lines {
		if err := p.line(&b, i, l); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	b.WriteString("</g></svg>\n</svg>\n")
	return b.Bytes(), nil
}

// rules writes the CSS rules that make each line appear and all lines move up.
func (p *picture) rules(b *bytes.Buffer) {
	up := func(lines int) string { return fmt.Sprintf("transform:translateY(-%dpx)", lines*rowHigh) }
	seconds := p.length().Seconds()
	fmt.Fprintf(b, "#s{%s}\n", up(max(0, len(p.lines)-p.rows)))
	b.WriteString("@media (prefers-reduced-motion:no-preference){\n")
	// The animation begins with its end, so that readers see a full terminal before the first line is typed.
	fmt.Fprintf(b, "#s,text{animation:s %.1fs step-end infinite;animation-delay:-%.1fs}\n", seconds, seconds-p.hold.Seconds())
	b.WriteString("@keyframes s{0%{transform:none}")
	for i, l := range p.lines[min(p.rows, len(p.lines)):] {
		fmt.Fprintf(b, "%s{%s}", p.percent(l.at), up(i+1))
	}
	b.WriteString("}\n")
	for i, l := range p.lines {
		if len(l.spans) == 0 {
			continue
		}
		fmt.Fprintf(b, "#l%d{animation-name:l%d}@keyframes l%d{0%%{opacity:0}%s{opacity:1}}\n", i, i, i, p.percent(l.at))
	}
	b.WriteString("}\n")
}

func (p *picture) line(b *bytes.Buffer, i int, l line) error {
	if len(l.spans) == 0 {
		return nil
	}
	wide := 0
	fmt.Fprintf(b, `<text id="l%d" y="%d" xml:space="preserve">`, i, i*rowHigh+rowHigh-5)
	for _, s := range l.spans {
		wide += utf8.RuneCountInString(s.text)
		if s.style == "" {
			b.WriteString(escaped(s.text))
			continue
		}
		name, err := class(s.style)
		if err != nil {
			return err
		}
		fmt.Fprintf(b, `<tspan class="%s">%s</tspan>`, name, escaped(s.text))
	}
	b.WriteString("</text>\n")
	if wide > p.columns {
		return fmt.Errorf("%d columns, of %d", wide, p.columns)
	}
	return nil
}

func escaped(text string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(text)) // writing to a builder cannot fail
	return b.String()
}
