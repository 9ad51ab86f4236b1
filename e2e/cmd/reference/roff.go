package main

import (
	"fmt"
	"strings"
)

// page is a manual page in the man macros of roff.
type page struct {
	strings.Builder
	begun bool // the section has text already
}

func newPage(name, section, date, version, title string) *page {
	p := &page{}
	p.line(".TH %s %s %q %q %q", strings.ToUpper(escape(name)), section, date, strings.TrimSpace("leno "+version), "leno manual")
	p.section("NAME")
	p.line(`%s \- %s`, escape(name), prose(title))
	return p
}

func (p *page) line(format string, args ...any) {
	fmt.Fprintf(p, format, args...)
	p.WriteByte('\n')
}

func (p *page) section(name string) {
	p.line(".SH %s", name)
	p.begun = false
}

func (p *page) subsection(name string) {
	p.line(".SS %s", escape(name))
	p.begun = false
}

// separate begins a paragraph, which the first one of a section does not need.
func (p *page) separate() {
	if p.begun {
		p.line(".PP")
	}
	p.begun = true
}

// paragraph writes text that is filled.
func (p *page) paragraph(s string) {
	p.separate()
	p.line("%s", prose(s))
}

// item writes a term in bold and its explanation.
func (p *page) item(term, explanation string) {
	p.line(".TP")
	p.line(".B %s", strings.ReplaceAll(escape(term), `"`, `\(dq`))
	if explanation != "" {
		p.line("%s", prose(explanation))
	}
}

// example writes lines as they are.
func (p *page) example(s string) {
	p.separate()
	p.line(".nf\n.RS 2")
	for line := range strings.SplitSeq(strings.Trim(s, "\n"), "\n") {
		p.line("%s", guard(escape(line)))
	}
	p.line(".RE\n.fi")
}

// seeAlso writes references to pages, such as "leno(1)".
func (p *page) seeAlso(pages []string) {
	p.section("SEE ALSO")
	for i, name := range pages {
		title, section, _ := strings.Cut(name, "(")
		comma := ","
		if i == len(pages)-1 {
			comma = ""
		}
		p.line(".BR %s (%s%s", escape(title), section, comma)
	}
}

// escape writes text that readers copy: its hyphens are minus signs.
func escape(s string) string { return strings.ReplaceAll(plain(s), "-", `\-`) }

// prose writes running text: only hyphens that begin a word, as in -wait, are minus signs.
func prose(s string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(plain(s), "\n") {
		for i, word := range strings.Fields(line) {
			if i > 0 {
				b.WriteByte(' ')
			}
			bare := strings.TrimLeft(word, `("'`)
			if strings.HasPrefix(bare, "-") {
				word = strings.ReplaceAll(word, "-", `\-`)
			}
			if b.Len() == 0 || strings.HasSuffix(b.String(), "\n") {
				word = guard(word)
			}
			b.WriteString(word)
		}
		b.WriteByte('\n')
	}
	return strings.TrimRight(b.String(), "\n")
}

// plain escapes what roff interprets anywhere in a line.
func plain(s string) string {
	return strings.NewReplacer(`\`, `\e`, "…", "...", "’", "'").Replace(s)
}

// guard protects a line that would begin with a request.
func guard(line string) string {
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		return `\&` + line
	}
	return line
}
