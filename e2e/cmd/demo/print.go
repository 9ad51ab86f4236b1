package main

import (
	"fmt"
	"strings"

	"github.com/fatih/color"
)

// styles are the styles of lines on a terminal.
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

// well reports something that works as expected.
func (d *demo) well(format string, args ...any) {
	d.say("%s", d.styles.well.Sprintf("✓ "+format, args...))
}

// on prints a command that was run on a host, and its output.
func (d *demo) on(host, line, output string) {
	d.say("%s %s", d.styles.prompt.Sprint(host+"$"), d.styles.command.Sprint(line))
	d.output(output)
}

// output prints text unchanged.
func (d *demo) output(text string) {
	for line := range strings.Lines(text) {
		fmt.Fprintln(d.out, strings.TrimRight("     "+line, " \n"))
	}
}
