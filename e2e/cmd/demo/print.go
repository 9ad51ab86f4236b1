package main

import (
	"fmt"
	"strings"

	"github.com/fatih/color"
)

// styles are how lines look on a terminal.
type styles struct{ title, prompt, command, well *color.Color }

func newStyles(coloured bool) styles {
	s := styles{
		title: color.New(color.Bold, color.FgCyan), prompt: color.New(color.FgHiBlack),
		command: color.New(color.Bold), well: color.New(color.FgGreen),
	}
	for _, c := range []*color.Color{s.title, s.prompt, s.command, s.well} {
		if c.DisableColor(); coloured {
			c.EnableColor()
		}
	}
	return s
}

// title begins a scene.
func (d *demo) title(format string, args ...any) {
	d.scenes++
	fmt.Fprintf(d.out, "\n%s\n", d.styles.title.Sprintf("%d. %s", d.scenes, fmt.Sprintf(format, args...)))
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, "   "+format+"\n", args...) }

// well says what turned out as it should.
func (d *demo) well(format string, args ...any) {
	d.say("%s", d.styles.well.Sprintf("✓ "+format, args...))
}

// on shows a command that was run on a host, and what it printed.
func (d *demo) on(host, line, output string) {
	d.say("%s %s", d.styles.prompt.Sprint(host+"$"), d.styles.command.Sprint(line))
	d.output(output)
}

// output shows text as it stands.
func (d *demo) output(text string) {
	for line := range strings.Lines(text) {
		fmt.Fprintln(d.out, strings.TrimRight("     "+line, " \n"))
	}
}
