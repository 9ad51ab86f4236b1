package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
)

// A piece is text that a program printed at once.
type piece struct {
	at   time.Duration // since the program's start
	text string
}

// record runs a command to its end on a terminal of the given size, and prints its output at the
// same time.
func record(ctx context.Context, columns, rows int, command []string) ([]piece, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // the command removes what it set up
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "NO_COLOR=")
	start := time.Now()
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: uint16(columns), Rows: uint16(rows)})
	if err != nil {
		return nil, err
	}
	defer terminal.Close()
	var out []piece
	buffer := make([]byte, 64<<10)
	for {
		n, err := terminal.Read(buffer)
		if n > 0 {
			out = append(out, piece{time.Since(start), string(buffer[:n])})
			os.Stdout.Write(buffer[:n])
		}
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.EIO) { // how Linux reports that no process has it open
			break
		}
		if err != nil {
			return nil, errors.Join(err, cmd.Wait())
		}
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("%s: %w", command[0], err)
	}
	return out, nil
}

// A line is a line of the terminal and the time at which it was complete.
type line struct {
	at    time.Duration
	spans []span
}

// A span is text in one style: the numbers of ECMA-48's SGR, "1;36", or "" for plain.
type span struct{ style, text string }

var (
	escape = regexp.MustCompile("\x1b\\[([0-9;]*)m")
	// Programs set all attributes of a style at once and then reset them, by one number or by one
	// per attribute.
	reset = regexp.MustCompile(`^(0|22|39|;)*$`)
)

// parse splits the output of a program into lines. Output that moves the cursor or erases text is
// refused, because a picture of lines cannot show it.
func parse(printed []piece) ([]line, error) {
	var out []line
	var open, style string
	for _, p := range printed {
		open = strings.ReplaceAll(open+p.text, "\r\n", "\n") // a piece may end between the two
		for {
			text, rest, whole := strings.Cut(open, "\n")
			if !whole {
				break
			}
			open = rest
			l := line{at: p.at}
			l.spans, style = spans(text, style)
			for _, s := range l.spans {
				if i := strings.IndexFunc(s.text, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 {
					return nil, fmt.Errorf("line %d, %q, has a control character that a picture cannot show", len(out)+1, text)
				}
			}
			out = append(out, l)
		}
	}
	if open != "" {
		return nil, fmt.Errorf("the last line, %q, has no end", open)
	}
	return out, nil
}

// spans splits a line that begins in the given style, and returns the style at its end as well.
func spans(text, style string) ([]span, string) {
	var out []span
	add := func(text string) {
		if text != "" {
			out = append(out, span{style, text})
		}
	}
	end := 0
	for _, m := range escape.FindAllStringSubmatchIndex(text, -1) {
		add(text[end:m[0]])
		if style = text[m[2]:m[3]]; reset.MatchString(style) {
			style = ""
		}
		end = m[1]
	}
	add(text[end:])
	return out, style
}

// prompted returns the line with the command, as a person would have typed it.
func prompted(prompt string, command []string) line {
	if prompt == "" {
		prompt = strings.Join(command, " ")
	}
	return line{spans: []span{{"90", "$ "}, {"1", prompt}}}
}

// pace adjusts a recording so that it can be read.
type pace struct {
	line time.Duration // minimum time between two lines
	wait time.Duration // maximum time between two lines
	end  time.Duration // how long the end stays visible
}

// set inserts the prompt before the lines and computes all times.
func (p pace) set(lines []line, prompt line) []line {
	out := []line{prompt}
	var now, before time.Duration
	for _, l := range lines {
		step := l.at - before
		before = l.at
		now += min(max(step, p.line), p.wait)
		l.at = now
		out = append(out, l)
	}
	return out
}
