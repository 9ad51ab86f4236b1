package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

func (d *demo) title(text string) { fmt.Fprintf(d.out, "\n== %s\n", text) }

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, "   "+format+"\n", args...) }

// print shows a command and what it printed.
func (d *demo) print(command, output string) {
	d.say("%s", command)
	for line := range strings.Lines(output) {
		fmt.Fprintf(d.out, "     %s", line)
	}
	if !strings.HasSuffix(output, "\n") {
		fmt.Fprintln(d.out)
	}
}

// indented sets what it is given, whole lines, under a title.
func indented(w io.Writer) io.Writer { return indenter{w} }

type indenter struct{ w io.Writer }

func (i indenter) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		if _, err := fmt.Fprintf(i.w, "   %s", line); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}
